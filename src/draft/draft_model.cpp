// SPDX-License-Identifier: Apache-2.0
#include "draft/draft_model.hpp"

#include <algorithm>
#include <utility>

#include "base/for_what.hpp"
#include "base/limits.hpp"
#include "model/deepseek.hpp"
#include "ops/rank_terms.hpp"

namespace espalier::draft {
namespace {

model::Activations::Sizes sizes_of(const NetworkShape& shape, const PassLimits& limits) {
    return {.tokens = std::max(limits.tokens, limits.nodes),
            .gather = limits.nodes,
            .attention_input = shape.attention_input,
            .shard = shape.shard};
}

mla::Capacities attention_of(const NetworkShape& shape, int workers, const PassLimits& limits) {
    return {.heads = static_cast<std::int32_t>(model::heads_of(shape.config, shape.shard)),
            .head_dims = shape.config.head_dims(),
            .rows = limits.rows,
            .tokens = limits.nodes,
            .max_q_len = kMaxNodes,
            .max_kv_len = static_cast<std::int32_t>(limits.max_kv_len),
            .total_splits = limits.max_splits,
            .workers = workers,
            .decompressed = false,
            .index_heads = model::index_heads(shape.config),
            .index_width = shape.config.indexer ? shape.config.indexer->head_dim : 0};
}

std::size_t scratch_bytes(const NetworkShape& shape, const ops::Backend& backend,
                          const mla::Kernels& kernels, int workers, const PassLimits& limits) {
    const model::Activations::Sizes sizes = sizes_of(shape, limits);
    return std::max(
        {backend.scratch_bytes(sizes.tokens, sizes.gather, shape.config.vocab_size, workers),
         model::exchange_scratch(shape.config, shape.shard),
         kernels.scratch_bytes(attention_of(shape, workers, limits))});
}

}  // namespace

std::size_t draft_memory_bytes(const NetworkShape& shape, const ops::Backend& backend,
                               const mla::Kernels& kernels, int workers, const PassLimits& limits) {
    const model::Activations::Sizes sizes = sizes_of(shape, limits);
    // Taps, as they come and as products read them; states: of the backlog, before and after a
    // pass, embedded and joined.
    const std::int64_t columns = 2 * shape.taps + 6 * shape.state;
    return model::Activations::plan_bytes(shape.config, shape.act, sizes) +
           scratch_bytes(shape, backend, kernels, workers, limits) +
           kernels.plan_bytes(attention_of(shape, workers, limits)) +
           static_cast<std::size_t>(sizes.tokens * columns) * sizeof(float);
}

Expected<std::unique_ptr<DraftModel>> DraftModel::create(std::unique_ptr<Network> network,
                                                         const Machine& machine,
                                                         const PassLimits& limits) {
    const NetworkShape& shape = network->shape();
    const model::Activations::Sizes sizes = sizes_of(shape, limits);
    ESPALIER_RETURN_IF_ERROR(network->reserve(machine.device, sizes.tokens));
    ESPALIER_ASSIGN_OR_RETURN(Buffer activations,
                              for_what(machine.device.allocate(model::Activations::plan_bytes(
                                           shape.config, shape.act, sizes)),
                                       fmt::format("the activations of {}", network->name())));
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer scratch,
        for_what(machine.device.allocate(scratch_bytes(shape, machine.backend, machine.kernels,
                                                       machine.device.workers(), limits)),
                 fmt::format("the workspace of {}", network->name())));
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer plan, for_what(machine.device.allocate(machine.kernels.plan_bytes(
                                  attention_of(shape, machine.device.workers(), limits))),
                              fmt::format("the plan of attention of {}", network->name())));
    return std::unique_ptr<DraftModel>(new DraftModel(std::move(network), machine, limits,
                                                      std::move(activations), std::move(scratch),
                                                      std::move(plan)));
}

DraftModel::DraftModel(std::unique_ptr<Network> network, const Machine& machine,
                       const PassLimits& limits, Buffer activations, Buffer scratch, Buffer plan)
    : network_(std::move(network)),
      backend_(machine.backend),
      kernels_(machine.kernels),
      rule_(network_->shape().config, network_->shape().shard),
      activations_arena_(std::move(activations)),
      scratch_(std::move(scratch)),
      attention_plan_(std::move(plan)),
      a_(model::Activations::take(activations_arena_, network_->shape().config,
                                  network_->shape().act, sizes_of(network_->shape(), limits))),
      context_{machine.device, scratch_} {
    if (!network_->shape().shard.whole()) context_.ranks = machine.ranks;
    rule_.first_slot = kFirstSlot;
    a_.attention_plan = attention_plan_.data();
}

cache::LayerPages DraftModel::scaled(const cache::LayerPages& pages) const {
    return {network_->layer().attention.scaled(pages.latents), pages.index_keys};
}

model::DecoderParts DraftModel::parts() { return {rule_, backend_, kernels_, a_, context_}; }

Matrix DraftModel::combine(const Matrix& taps, const Matrix& room) {
    return network_->combine(parts(), taps, room);
}

void DraftModel::enter(const TokenView& tokens, const Matrix& before) {
    network_->enter(parts(), tokens.tokens, before);
    backend_.rope_angles(context_, tokens.position, tokens.count, rule_.rope,
                         a_.cos_sin.slice(0, tokens.count));
}

Expected<void> DraftModel::write_kv(const TokenView& tokens, const Matrix& before,
                                    const cache::LayerPages& kv) {
    enter(tokens, before);
    batch::BatchView view;
    view.cap_tokens = tokens.count;
    view.slot = tokens.slot;
    return model::DecoderLayer(parts(), network_->layer()).write_kv(view, scaled(kv));
}

// The plan comes first: attention then reads it, and its first keys, before its queries are there.
Expected<Matrix> DraftModel::logits(const batch::BatchView& batch, const cache::LayerPages& pages,
                                    const Matrix& after) {
    const cache::LayerPages kv = scaled(pages);
    const model::DecoderLayer layer(parts(), network_->layer());
    ESPALIER_RETURN_IF_ERROR(layer.plan_attention(batch, kv));
    ESPALIER_RETURN_IF_ERROR(layer.finish(batch, kv));
    return leave(batch, after);
}

Expected<Matrix> DraftModel::write_kv_and_logits(const batch::BatchView& batch,
                                                 const Matrix& before,
                                                 const cache::LayerPages& pages,
                                                 const Matrix& after) {
    const cache::LayerPages kv = scaled(pages);
    const model::DecoderLayer layer(parts(), network_->layer());
    ESPALIER_RETURN_IF_ERROR(layer.plan_attention(batch, kv));
    enter({batch.cap_tokens, batch.tokens, batch.position, batch.slot}, before);
    ESPALIER_RETURN_IF_ERROR(layer.run(batch, kv, model::DecoderLayer::Input::residual));
    return leave(batch, after);
}

Matrix DraftModel::leave(const batch::BatchView& batch, const Matrix& after) {
    network_->leave(parts(), after);
    const std::int64_t vocabulary = network_->shape().vocabulary;
    const Matrix logits{a_.logits.data, DType::f32, batch.cap_tokens, vocabulary, vocabulary};
    Matrix here = a_.logits_here;
    if (here.data != nullptr) here = here.slice(0, batch.cap_tokens);
    ops::dealt_product(backend_, context_, a_.gathered_act.slice(0, batch.cap_tokens),
                       network_->head(), here, logits);
    return logits;
}

Expected<void> DraftModel::poison() {
    for (Buffer* memory : {&activations_arena_.memory(), &scratch_.memory(), &attention_plan_})
        ESPALIER_RETURN_IF_ERROR(context_.device.fill(context_.stream, memory->data(),
                                                      std::byte{0xFF}, memory->bytes()));
    return {};
}

}  // namespace espalier::draft
