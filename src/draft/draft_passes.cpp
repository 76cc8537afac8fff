// SPDX-License-Identifier: Apache-2.0
#include "draft/draft_passes.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"

namespace espalier::draft {

TokenArrays::TokenArrays(std::byte* base, std::int64_t count)
    : slot(reinterpret_cast<std::int64_t*>(base)),
      tokens(reinterpret_cast<std::int32_t*>(slot + count)),
      position(tokens + count),
      before(position + count),
      tail_page(before + count),
      tail_token(tail_page + count),
      kept_entry(tail_token + count),
      kept_page(kept_entry + count) {}

batch::StepCapacity largest_level(const PassLimits& limits) {
    return {.absorbed_tokens = limits.nodes,
            .absorbed_rows = limits.rows,
            .max_q_len = kMaxNodes,
            .max_kv_len = static_cast<std::int32_t>(limits.max_kv_len),
            .table_rows = limits.rows,
            .block_stride = cache::pages_for(limits.max_kv_len),
            .total_splits = limits.max_splits};
}

Expected<std::unique_ptr<DraftPasses>> DraftPasses::create(std::unique_ptr<Network> network,
                                                           const Machine& machine,
                                                           const PassLimits& limits,
                                                           const DraftCache& cache,
                                                           const model::Taps& taps) {
    CHECK(limits.nodes >= limits.rows, "{} nodes of a level for {} requests", limits.nodes,
          limits.rows);
    ESPALIER_ASSIGN_OR_RETURN(auto model, DraftModel::create(std::move(network), machine, limits));
    std::unique_ptr<DraftPasses> passes(
        new DraftPasses(std::move(model), machine, limits, cache, taps));
    ESPALIER_RETURN_IF_ERROR(passes->allocate());
    ESPALIER_RETURN_IF_ERROR(passes->warm_up());
    return passes;
}

DraftPasses::DraftPasses(std::unique_ptr<DraftModel> model, const Machine& machine,
                         const PassLimits& limits, const DraftCache& cache, const model::Taps& taps)
    : model_(std::move(model)),
      cache_(cache),
      tap_sources_(model_->network().tap_sources(taps)),
      limits_(limits),
      most_(largest_level(limits)),
      batch_(machine.device, machine.capture.poison) {}

Expected<void> DraftPasses::allocate() {
    const NetworkShape& shape = model_->network().shape();
    Device& device = model_->context().device;
    const auto matrix = [&](Buffer& memory, Matrix& to, std::int64_t rows,
                            std::int64_t cols) -> Expected<void> {
        ESPALIER_ASSIGN_OR_RETURN(
            memory, device.allocate(static_cast<std::size_t>(rows * cols) * sizeof(float)));
        to = Matrix::of(memory.as<float>(), rows, cols);
        return {};
    };
    const std::int64_t longest = std::max(limits_.tokens, limits_.nodes);
    ESPALIER_RETURN_IF_ERROR(matrix(log_memory_, log_, limits_.tokens, shape.taps));
    ESPALIER_RETURN_IF_ERROR(matrix(state_memory_, states_, limits_.tokens, shape.state));
    ESPALIER_RETURN_IF_ERROR(matrix(before_memory_, before_, longest, shape.state));
    ESPALIER_RETURN_IF_ERROR(matrix(after_memory_, after_, limits_.nodes, shape.state));
    ESPALIER_ASSIGN_OR_RETURN(array_memory_, device.allocate(TokenArrays::bytes(longest)));
    ESPALIER_ASSIGN_OR_RETURN(level_memory_, device.allocate(batch::BatchLayout(most_).bytes));
    ESPALIER_ASSIGN_OR_RETURN(
        parent_memory_,
        device.allocate(static_cast<std::size_t>(limits_.nodes) * sizeof(std::int32_t)));
    return {};
}

// A pass over a page that is thrown away. Memory that nothing has touched yet would make the first
// call hundreds of times as long as the others, and calls are planned by what they take.
Expected<void> DraftPasses::warm_up() {
    OpContext& context = model_->context();
    const cache::KvLayout layout =
        cache_.storage.layout().layer(cache::Plane::Of::draft, cache_.layer);
    ESPALIER_ASSIGN_OR_RETURN(cache::KvStorage storage,
                              cache::KvStorage::create(context.device, layout, 2));
    const cache::LayerPages kv = storage.layer(cache::Plane::Of::draft, cache_.layer);
    const std::array<std::int32_t, 1> token = {0};
    const std::array<std::int32_t, 1> pages = {cache::kNullPage + 1};
    batch::RowSpec row;
    row.tokens = token;
    row.block_table = pages;
    row.first_slot = kFirstSlot;
    batch::BatchBuilder builder(most_);
    ESPALIER_RETURN_IF_ERROR(builder.add(row));
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView batch,
                              batch_.upload(context.stream, builder.finish()));
    model_->combine(log_.slice(0, 1), states_.slice(0, 1));
    ESPALIER_RETURN_IF_ERROR(
        model_->write_kv({1, batch.tokens, batch.position, batch.slot}, before_.slice(0, 1), kv));
    ESPALIER_RETURN_IF_ERROR(model_->logits(batch, kv, after_.slice(0, 1)));
    return context.device.synchronize(context.stream);
}

Expected<void> DraftPasses::log_taps(std::int64_t first, std::span<const std::int32_t> rows) {
    OpContext& context = model_->context();
    ESPALIER_RETURN_IF_ERROR(context.device.upload(context.stream, array_memory_.data(),
                                                   rows.data(), rows.size_bytes()));
    std::int64_t column = 0;
    for (const Matrix& source : tap_sources_) {
        model_->backend().gather_rows(
            context, source, array_memory_.as<std::int32_t>(),
            log_.slice(first, std::ssize(rows)).columns(column, source.cols));
        column += source.cols;
    }
    return {};
}

Expected<void> DraftPasses::upload_kv_half(std::span<const std::byte> arrays) {
    OpContext& context = model_->context();
    return context.device.upload(context.stream, array_memory_.data(), arrays.data(),
                                 arrays.size());
}

// before_: from the states of the backlog, or from what was kept with pages.
Expected<void> DraftPasses::run_kv_half(std::int64_t tokens, std::int64_t waiting) {
    const TokenArrays device(array_memory_.data(), tokens);
    const ops::Backend& backend = model_->backend();
    OpContext& context = model_->context();
    const Matrix before = before_.slice(0, tokens);
    Matrix states = after_;  // where no entry waits every index is -1: nothing is read
    if (waiting > 0) states = model_->combine(log_.slice(0, waiting), states_.slice(0, waiting));
    backend.gather_rows(context, states, device.before, before);
    backend.copy_rows(context, tails(), {device.tail_page, device.tail_token, tokens}, before);
    ESPALIER_RETURN_IF_ERROR(
        model_->write_kv({tokens, device.tokens, device.position, device.slot}, before, kv()));
    backend.copy_rows(context, states, {device.kept_entry, device.kept_page, waiting}, tails());
    return {};
}

Expected<batch::BatchView> DraftPasses::upload_roots(const batch::HostBatch& batch) {
    return batch_.upload(model_->context().stream, batch);
}

Expected<Matrix> DraftPasses::run_roots(const batch::BatchView& roots) {
    return model_->logits(roots, kv(), after_.slice(0, roots.cap_tokens));
}

batch::StepCapacity DraftPasses::level_capacity(batch::StepCapacity capacity,
                                                const batch::BatchView& roots) const {
    capacity.table_rows = roots.absorbed.table_rows;
    capacity.block_stride = roots.absorbed.block_stride;
    return capacity;
}

Expected<void> DraftPasses::upload_level(std::span<const std::byte> bytes,
                                         std::span<const std::int32_t> parents) {
    OpContext& context = model_->context();
    ESPALIER_RETURN_IF_ERROR(
        context.device.upload(context.stream, level_memory_.data(), bytes.data(), bytes.size()));
    return context.device.upload(context.stream, parent_memory_.data(), parents.data(),
                                 parents.size_bytes());
}

Expected<Matrix> DraftPasses::run_level(const batch::BatchView& level) {
    const Matrix before = before_.slice(0, level.cap_tokens);
    model_->backend().gather_rows(model_->context(), after_, parents(), before);
    return model_->write_kv_and_logits(level, before, kv(), after_.slice(0, level.cap_tokens));
}

Expected<void> DraftPasses::poison() {
    ESPALIER_RETURN_IF_ERROR(model_->poison());
    OpContext& context = model_->context();
    for (Buffer* memory : {&level_memory_, &parent_memory_})
        ESPALIER_RETURN_IF_ERROR(
            context.device.fill(context.stream, memory->data(), std::byte{0xFF}, memory->bytes()));
    return {};
}

}  // namespace espalier::draft
