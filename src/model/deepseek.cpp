// SPDX-License-Identifier: Apache-2.0
#include "model/deepseek.hpp"

#include <algorithm>
#include <string_view>

#include "base/for_what.hpp"
#include "model/activations.hpp"
#include "model/decoder_layer.hpp"
#include "model/kv_layout.hpp"
#include "ops/rank_terms.hpp"
#include "parallel/ranks.hpp"

namespace espalier::model {
namespace {

// Limits of the operations, refused here with both numbers rather than found out in a step.
Expected<void> check_operations_hold(const checkpoint::ModelConfig& config) {
    const auto at_most = [](std::string_view what, std::int64_t value,
                            std::int64_t limit) -> Expected<void> {
        if (value <= limit) return {};
        return fail(ErrorKind::unsupported, "{} is {}, more than the {} this build can run", what,
                    value, limit);
    };
    ESPALIER_RETURN_IF_ERROR(
        at_most("n_routed_experts", config.n_routed_experts, ops::kMaxExperts));
    ESPALIER_RETURN_IF_ERROR(
        at_most("num_experts_per_tok", config.num_experts_per_tok, ops::kMaxTopK));
    return at_most("vocab_size", config.vocab_size, ops::kMaxVocabulary);
}

ModelLimits with_defaults(ModelLimits limits, const checkpoint::ModelConfig& config) {
    if (limits.max_kv_len == 0) limits.max_kv_len = config.max_position_embeddings;
    if (limits.max_rows == 0) limits.max_rows = static_cast<std::int32_t>(limits.max_tokens);
    return limits;
}

// Attention takes queries of the activations' dtype over these caches.
Expected<mla::KvFormat> kv_format_for(DType act, const std::optional<mla::KvFormat>& wanted) {
    using mla::KvFormat;
    const KvFormat native = act == DType::bf16 ? KvFormat::bf16 : KvFormat::f32;
    if (!wanted || *wanted == native) return native;
    const bool narrow = *wanted == KvFormat::fp8_token || *wanted == KvFormat::fp8_tensor;
    if (act == DType::bf16 && narrow) return *wanted;
    return fail(ErrorKind::unsupported, "a {} cache for {} activations: {} possible",
                mla::name_of(*wanted), name_of(act),
                act == DType::bf16 ? "bf16, fp8_token and fp8_tensor are" : "only f32 is");
}

}  // namespace

struct DeepseekModel::State {
    checkpoint::ModelConfig config;
    Weights weights;
    const ops::Backend& backend;
    const mla::Kernels& kernels;
    ModelLimits limits;
    cache::KvLayout kv_layout;
    DecoderRule rule;
    Arena activations_arena;
    Arena scratch;
    Buffer attention_plan;
    Activations a;
    OpContext context;

    State(const checkpoint::ModelConfig& config_in, Weights weights_in,
          const ops::Backend& backend_in, const mla::Kernels& kernels_in, Device& device,
          const ModelLimits& limits_in, mla::KvFormat format, parallel::Ranks* ranks,
          Buffer activations, Buffer scratch_memory, Buffer plan)
        : config(config_in),
          weights(std::move(weights_in)),
          backend(backend_in),
          kernels(kernels_in),
          limits(limits_in),
          kv_layout(model::kv_layout(config, format)),
          rule(config, weights.shard),
          activations_arena(std::move(activations)),
          scratch(std::move(scratch_memory)),
          attention_plan(std::move(plan)),
          a(Activations::take(
              activations_arena, config, weights.format.input(),
              {.tokens = limits.max_tokens, .gather = limits.max_gather, .shard = weights.shard})),
          context{device, scratch} {
        context.ranks = ranks;
        a.attention_plan = attention_plan.data();
    }

    Expected<void> check_batch(const batch::BatchView& batch, const cache::KvStorage& kv) const;
    Expected<void> check_taps(const Taps& taps, std::int64_t tokens) const;
    void tap_residual(const Taps& taps, std::size_t layer, std::int64_t tokens);
    void tap_final_state(const Taps& taps, std::int64_t tokens);
    Matrix logits_of(const batch::BatchView& batch);
};

Expected<void> DeepseekModel::State::check_batch(const batch::BatchView& batch,
                                                 const cache::KvStorage& kv) const {
    if (batch.cap_tokens > limits.max_tokens)
        return fail(ErrorKind::exhausted, "a batch of {} tokens: this model was set up for {}",
                    batch.cap_tokens, limits.max_tokens);
    if (batch.cap_gather > limits.max_gather)
        return fail(ErrorKind::exhausted, "a batch wants {} logits: this model was set up for {}",
                    batch.cap_gather, limits.max_gather);
    const std::int64_t longest = std::max(batch.absorbed.max_kv_len, batch.decompressed.max_kv_len);
    if (longest > limits.max_kv_len)
        return fail(ErrorKind::exhausted, "a sequence of {} tokens: this model was set up for {}",
                    longest, limits.max_kv_len);
    const std::int64_t layers = kv.layout().layers(cache::Plane::Of::target);
    if (layers != config.num_hidden_layers)
        return fail(ErrorKind::invalid, "a cache of {} layers for a model of {}", layers,
                    config.num_hidden_layers);
    const KeyDims& keys = kv.layout().planes.front().columns;
    if (keys != config.key_dims())
        return fail(ErrorKind::invalid, "a cache of {} + {} columns for a model of {} + {}",
                    keys.latent, keys.rope, config.kv_lora_rank, config.qk_rope_head_dim);
    for (std::int64_t layer = 0; layer < layers; ++layer)
        if (config.layer_has_indexer(layer) &&
            !kv.layout().has(cache::kIndexKeys, cache::Plane::Of::target, layer))
            return fail(ErrorKind::invalid, "a cache without the index keys of layer {}", layer);
    const std::int32_t rows = std::max(batch.absorbed.rows, batch.decompressed.rows);
    if (rows > limits.max_rows)
        return fail(ErrorKind::exhausted, "a batch of {} rows: this model was set up for {}", rows,
                    limits.max_rows);
    if (limits.max_splits > 0 && batch.absorbed.rows > 0 &&
        (batch.absorbed.total_splits == 0 || batch.absorbed.total_splits > limits.max_splits))
        return fail(ErrorKind::exhausted,
                    "a batch of {} splits (0: not bounded): this model was set up for {}",
                    batch.absorbed.total_splits, limits.max_splits);
    return {};
}

Expected<void> DeepseekModel::State::check_taps(const Taps& taps, std::int64_t tokens) const {
    CHECK(taps.layers.size() == taps.residual.size(), "{} matrices for {} tapped layers",
          taps.residual.size(), taps.layers.size());
    const auto fits = [&](const Matrix& matrix) {
        return matrix.dtype == DType::f32 && matrix.rows >= tokens &&
               matrix.cols == config.hidden_size;
    };
    const bool all_fit = std::all_of(taps.residual.begin(), taps.residual.end(), fits);
    if (all_fit && (taps.final_state.data == nullptr || fits(taps.final_state))) return {};
    return fail(ErrorKind::exhausted, "the taps hold no f32 [{}, {}] for this batch", tokens,
                config.hidden_size);
}

// Before layer `layer` runs, or behind the last.
void DeepseekModel::State::tap_residual(const Taps& taps, std::size_t layer, std::int64_t tokens) {
    for (std::size_t i = 0; i < taps.layers.size(); ++i)
        if (static_cast<std::size_t>(taps.layers[i]) == layer)
            backend.convert(context, a.residual.slice(0, tokens), 0, 1, config.hidden_size,
                            taps.residual[i].slice(0, tokens), 0);
}

void DeepseekModel::State::tap_final_state(const Taps& taps, std::int64_t tokens) {
    if (taps.final_state.data == nullptr) return;
    backend.rms_norm(context, a.residual.slice(0, tokens), weights.final_norm.data(), rule.epsilon,
                     taps.final_state.slice(0, tokens), {});
}

Matrix DeepseekModel::State::logits_of(const batch::BatchView& batch) {
    const Matrix gathered = a.gathered.slice(0, batch.cap_gather);
    const Matrix gathered_act = a.gathered_act.slice(0, batch.cap_gather);
    const Matrix logits = a.logits.slice(0, batch.cap_gather);
    backend.gather_rows(context, a.residual.slice(0, batch.cap_tokens), batch.gather, gathered);
    backend.rms_norm(context, gathered, weights.final_norm.data(), rule.epsilon, gathered_act, {});
    Matrix here = a.logits_here;
    if (here.data != nullptr) here = here.slice(0, batch.cap_gather);
    ops::dealt_product(backend, context, gathered_act, weights.head.view(), here, logits);
    return logits;
}

namespace {

// Scratch of the products with the widest inputs: down of a dense layer or a shared expert, the
// experts' down, the attention's output. (Gated products use the memory of what they do not store.)
std::size_t product_scratch(const checkpoint::ModelConfig& c, const ops::Backend& backend,
                            std::int64_t tokens) {
    const std::int64_t widest =
        std::max({c.hidden_size, c.intermediate_size, c.n_shared_experts * c.moe_intermediate_size,
                  c.num_attention_heads * c.v_head_dim});
    return std::max(
        backend.product_scratch_bytes(tokens, widest),
        backend.product_scratch_bytes(tokens * c.num_experts_per_tok, c.moe_intermediate_size));
}

}  // namespace

std::int32_t index_heads(const checkpoint::ModelConfig& config) {
    return config.indexer ? static_cast<std::int32_t>(config.indexer->heads) : 0;
}

StepMemory step_memory(const checkpoint::ModelConfig& config, DType act,
                       const ops::Backend& backend, const mla::Kernels& kernels, int workers,
                       const ModelLimits& limits, const Shard& shard) {
    const ModelLimits bounded = with_defaults(limits, config);
    const mla::Capacities attention{.heads = static_cast<std::int32_t>(heads_of(config, shard)),
                                    .head_dims = config.head_dims(),
                                    .rows = bounded.max_rows,
                                    .tokens = bounded.max_tokens,
                                    .max_q_len = static_cast<std::int32_t>(bounded.max_tokens),
                                    .max_kv_len = static_cast<std::int32_t>(bounded.max_kv_len),
                                    .total_splits = bounded.max_splits,
                                    .workers = workers,
                                    .index_heads = index_heads(config),
                                    .index_width = config.indexer ? config.indexer->head_dim : 0};
    return {
        .activations = Activations::plan_bytes(
            config, act,
            {.tokens = bounded.max_tokens, .gather = bounded.max_gather, .shard = shard}),
        .scratch = std::max({backend.scratch_bytes(bounded.max_tokens, bounded.max_gather,
                                                   config.vocab_size, workers),
                             product_scratch(config, backend, bounded.max_tokens),
                             exchange_scratch(config, shard), kernels.scratch_bytes(attention)}),
        .attention_plan = kernels.plan_bytes(attention)};
}

Expected<DeepseekModel> DeepseekModel::create(const checkpoint::ModelConfig& config,
                                              Weights weights, const ops::Backend& backend,
                                              const mla::Kernels& kernels, Device& device,
                                              const ModelSettings& settings) {
    ESPALIER_RETURN_IF_ERROR(check_operations_hold(config));
    const ModelLimits bounded = with_defaults(settings.limits, config);
    const DType act = weights.format.input();
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat format, kv_format_for(act, settings.kv_format));
    const int ranks = settings.ranks == nullptr ? 1 : settings.ranks->count();
    if (weights.shard.count != ranks || (ranks > 1 && weights.shard.rank != settings.ranks->rank()))
        return fail(ErrorKind::invalid, "the weights of rank {} of {} on rank {} of {}",
                    weights.shard.rank, weights.shard.count,
                    settings.ranks == nullptr ? 0 : settings.ranks->rank(), ranks);
    const StepMemory bytes =
        step_memory(config, act, backend, kernels, device.workers(), bounded, weights.shard);
    ESPALIER_ASSIGN_OR_RETURN(Buffer activations, for_what(device.allocate(bytes.activations),
                                                           "the activations of a step"));
    ESPALIER_ASSIGN_OR_RETURN(Buffer scratch,
                              for_what(device.allocate(bytes.scratch), "the workspace of a step"));
    ESPALIER_ASSIGN_OR_RETURN(
        Buffer plan, for_what(device.allocate(bytes.attention_plan), "the plan of attention"));
    return DeepseekModel(std::make_unique<State>(
        config, std::move(weights), backend, kernels, device, bounded, format, settings.ranks,
        std::move(activations), std::move(scratch), std::move(plan)));
}

DeepseekModel::DeepseekModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeepseekModel::DeepseekModel(DeepseekModel&&) noexcept = default;
DeepseekModel& DeepseekModel::operator=(DeepseekModel&&) noexcept = default;
DeepseekModel::~DeepseekModel() = default;

const checkpoint::ModelConfig& DeepseekModel::config() const { return state_->config; }
const Weights& DeepseekModel::weights() const { return state_->weights; }
const ModelLimits& DeepseekModel::limits() const { return state_->limits; }
Device& DeepseekModel::device() const { return state_->context.device; }
const cache::KvLayout& DeepseekModel::kv_layout() const { return state_->kv_layout; }

Expected<ForwardResult> DeepseekModel::forward(const batch::BatchView& batch, cache::KvStorage& kv,
                                               const Taps& taps) {
    State& s = *state_;
    const std::int64_t tokens = batch.cap_tokens;
    ESPALIER_RETURN_IF_ERROR(s.check_batch(batch, kv));
    ESPALIER_RETURN_IF_ERROR(s.check_taps(taps, tokens));
    ESPALIER_RETURN_IF_ERROR(s.context.device.fill(s.context.stream, s.a.nonfinite, std::byte{0},
                                                   static_cast<std::size_t>(tokens)));
    s.backend.embed(s.context, batch.tokens, s.weights.embedding.table,
                    s.a.residual.slice(0, tokens));
    s.backend.rope_angles(s.context, batch.position, tokens, s.rule.rope,
                          s.a.cos_sin.slice(0, tokens));
    const std::size_t layers = s.weights.layers.size();
    for (std::size_t index = 0; index < layers; ++index) {
        s.tap_residual(taps, index, tokens);
        cache::LayerPages pages =
            kv.layer(cache::Plane::Of::target, static_cast<std::int64_t>(index));
        pages.latents = s.weights.layers[index].attention.scaled(pages.latents);
        const DecoderLayer layer({s.rule, s.backend, s.kernels, s.a, s.context},
                                 s.weights.layers[index]);
        if (index == 0) ESPALIER_RETURN_IF_ERROR(layer.plan_attention(batch, pages));
        ESPALIER_RETURN_IF_ERROR(layer.run(
            batch, pages, index == 0 ? DecoderLayer::Input::residual : DecoderLayer::Input::normed,
            index + 1 < layers ? &s.weights.layers[index + 1] : nullptr));
    }
    s.tap_residual(taps, layers, tokens);
    s.tap_final_state(taps, tokens);
    return ForwardResult{.logits = s.logits_of(batch), .nonfinite = s.a.nonfinite};
}

void DeepseekModel::sample(const Matrix& logits, const ops::SamplingBatch& batch) {
    state_->backend.sample_nodes(state_->context, logits, batch);
}

Expected<void> DeepseekModel::upload_moves(std::span<const std::int64_t> source,
                                           std::span<const std::int64_t> destination) {
    CHECK(source.size() == destination.size(), "{} slots move to {}", source.size(),
          destination.size());
    CHECK(std::ssize(source) <= state_->limits.max_tokens, "{} moves after a batch of at most {}",
          source.size(), state_->limits.max_tokens);
    const OpContext& context = state_->context;
    ESPALIER_RETURN_IF_ERROR(context.device.upload(context.stream, state_->a.move_source,
                                                   source.data(), source.size_bytes()));
    return context.device.upload(context.stream, state_->a.move_destination, destination.data(),
                                 destination.size_bytes());
}

Expected<void> DeepseekModel::run_moves(std::int64_t moves, cache::KvStorage& kv) {
    mla::CompactCall call;
    call.moves = moves;
    call.source = state_->a.move_source;
    call.destination = state_->a.move_destination;
    const std::vector<cache::Plane>& planes = kv.layout().planes;
    for (std::size_t plane = 0; plane < planes.size(); ++plane) {
        if (planes[plane].model != cache::Plane::Of::target || !planes[plane].of_slots) continue;
        call.kv = kv.pages(plane);
        ESPALIER_RETURN_IF_ERROR(state_->kernels.compact(state_->context, call));
    }
    return {};
}

Expected<void> DeepseekModel::compact(std::span<const std::int64_t> source,
                                      std::span<const std::int64_t> destination,
                                      cache::KvStorage& kv) {
    ESPALIER_RETURN_IF_ERROR(upload_moves(source, destination));
    return run_moves(std::ssize(source), kv);
}

Expected<void> DeepseekModel::poison() {
    State& s = *state_;
    for (Buffer* memory : {&s.activations_arena.memory(), &s.scratch.memory(), &s.attention_plan})
        ESPALIER_RETURN_IF_ERROR(s.context.device.fill(s.context.stream, memory->data(),
                                                       std::byte{0xFF}, memory->bytes()));
    return {};
}

}  // namespace espalier::model
