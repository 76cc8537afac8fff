// SPDX-License-Identifier: Apache-2.0
#include "draft/model_drafter.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.hpp"

namespace espalier::draft {

using cache::kPageTokens;
using speculate::DraftCall;

// The arrays of a KV half in one piece of memory: one upload. By token, the last two by entry of
// the backlog, of which there are no more.
struct ModelDrafter::TokenArrays {
    std::int64_t* slot = nullptr;
    std::int32_t* tokens = nullptr;
    std::int32_t* position = nullptr;
    std::int32_t* before = nullptr;      // row of the states; -1: zeros, or a page's tail state
    std::int32_t* tail_page = nullptr;   // whose tail state comes before it; -1: none
    std::int32_t* tail_token = nullptr;  // the token itself
    std::int32_t* kept_entry = nullptr;  // whose state its page keeps; -1: none
    std::int32_t* kept_page = nullptr;

    TokenArrays(std::byte* base, std::int64_t count)
        : slot(reinterpret_cast<std::int64_t*>(base)),
          tokens(reinterpret_cast<std::int32_t*>(slot + count)),
          position(tokens + count),
          before(position + count),
          tail_page(before + count),
          tail_token(tail_page + count),
          kept_entry(tail_token + count),
          kept_page(kept_entry + count) {}
    static std::size_t bytes(std::int64_t count) {
        return static_cast<std::size_t>(count) * (sizeof(std::int64_t) + 7 * sizeof(std::int32_t));
    }
};

Expected<std::unique_ptr<ModelDrafter>> ModelDrafter::create(
    std::unique_ptr<Network> network, const Machine& machine, const PassLimits& limits,
    const DraftCache& cache, const model::Taps& taps, std::int64_t vocabulary) {
    CHECK(limits.nodes >= limits.rows, "{} nodes of a level for {} requests", limits.nodes,
          limits.rows);
    ESPALIER_ASSIGN_OR_RETURN(auto model, DraftModel::create(std::move(network), machine, limits));
    ESPALIER_ASSIGN_OR_RETURN(LevelDraws draws,
                              LevelDraws::create(machine.device, limits, vocabulary));
    ESPALIER_ASSIGN_OR_RETURN(TreeGrowth growth, TreeGrowth::create(machine.device, limits.rows));
    std::unique_ptr<ModelDrafter> drafter(new ModelDrafter(
        std::move(model), machine, limits, cache, taps, std::move(draws), std::move(growth)));
    ESPALIER_RETURN_IF_ERROR(drafter->allocate(limits));
    ESPALIER_RETURN_IF_ERROR(drafter->warm_up());
    if (drafter->captures()) ESPALIER_RETURN_IF_ERROR(drafter->capture_ahead());
    return drafter;
}

// A pass over a page that is thrown away. Memory that nothing has touched yet would make the first
// call hundreds of times as long as the others, and calls are planned by what they take.
Expected<void> ModelDrafter::warm_up() {
    OpContext& context = model_->context();
    const cache::KvLayout layout =
        cache_.storage.layout().layer(cache::Plane::Of::draft, cache_.layer);
    ESPALIER_ASSIGN_OR_RETURN(cache::KvStorage storage,
                              cache::KvStorage::create(context.device, layout, 2));
    const mla::KvPages kv = storage.draft(cache_.layer);
    const std::array<TokenId, 1> token = {0};
    const std::array<std::int32_t, 1> pages = {cache::kNullPage + 1};
    batch::RowSpec row;
    row.tokens = token;
    row.block_table = pages;
    row.first_slot = kFirstSlot;
    ESPALIER_RETURN_IF_ERROR(builder_.add(row));
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView batch,
                              batch_.upload(context.stream, builder_.finish()));
    model_->combine(log_.slice(0, 1), states_.slice(0, 1));
    ESPALIER_RETURN_IF_ERROR(
        model_->write_kv({1, batch.tokens, batch.position, batch.slot}, before_.slice(0, 1), kv));
    ESPALIER_RETURN_IF_ERROR(model_->logits(batch, kv, after_.slice(0, 1)));
    return context.device.synchronize(context.stream);
}

ModelDrafter::ModelDrafter(std::unique_ptr<DraftModel> model, const Machine& machine,
                           const PassLimits& limits, const DraftCache& cache,
                           const model::Taps& taps, LevelDraws draws, TreeGrowth growth)
    : model_(std::move(model)),
      cache_(cache),
      tap_sources_(model_->network().tap_sources(taps)),
      limits_(limits),
      draws_(std::move(draws)),
      growth_(std::move(growth)),
      backlog_(limits.tokens),
      followed_(cache.storage.page_count()),
      batch_(machine.device, machine.capture.poison),
      steps_(machine.device, machine.capture),
      most_({.absorbed_tokens = limits.nodes,
             .absorbed_rows = limits.rows,
             .max_q_len = kMaxNodes,
             .max_kv_len = static_cast<std::int32_t>(limits.max_kv_len),
             .table_rows = limits.rows,
             .block_stride = cache::pages_for(limits.max_kv_len),
             .total_splits = limits.max_splits}),
      builder_(most_),
      arrays_(TokenArrays::bytes(std::max(limits.tokens, limits.nodes))) {
    roots_.reserve(static_cast<std::size_t>(limits.rows));
    tokens_.reserve(static_cast<std::size_t>(limits.rows));
}

Expected<void> ModelDrafter::allocate(const PassLimits& limits) {
    const NetworkShape& shape = model_->network().shape();
    Device& device = model_->context().device;
    const auto matrix = [&](Buffer& memory, Matrix& to, std::int64_t rows,
                            std::int64_t cols) -> Expected<void> {
        ESPALIER_ASSIGN_OR_RETURN(
            memory, device.allocate(static_cast<std::size_t>(rows * cols) * sizeof(float)));
        to = Matrix::of(memory.as<float>(), rows, cols);
        return {};
    };
    ESPALIER_RETURN_IF_ERROR(matrix(log_memory_, log_, limits.tokens, shape.taps));
    ESPALIER_RETURN_IF_ERROR(matrix(state_memory_, states_, limits.tokens, shape.state));
    ESPALIER_RETURN_IF_ERROR(
        matrix(before_memory_, before_, std::max(limits.tokens, limits.nodes), shape.state));
    ESPALIER_RETURN_IF_ERROR(matrix(after_memory_, after_, limits.nodes, shape.state));
    const std::int64_t longest = std::max(limits.tokens, limits.nodes);
    ESPALIER_ASSIGN_OR_RETURN(array_memory_, device.allocate(TokenArrays::bytes(longest)));
    ESPALIER_ASSIGN_OR_RETURN(level_memory_, device.allocate(batch::BatchLayout(most_).bytes));
    ESPALIER_ASSIGN_OR_RETURN(
        parent_memory_,
        device.allocate(static_cast<std::size_t>(limits.nodes) * sizeof(std::int32_t)));
    return {};
}

Matrix ModelDrafter::tails() const { return cache_.storage.tail_states(cache_.layer); }

void ModelDrafter::begin(RequestSlot request, std::span<const TokenId>, std::int64_t) {
    serials_.grown_to(request) = next_serial_++;
    followed_.begin(request);
}

// Waiting entries would be written later to pages that may be others' by then.
void ModelDrafter::forget() {
    backlog_.clear();
    followed_.forget();
}

Expected<void> ModelDrafter::extend(std::span<const speculate::Extension> extensions) {
    std::int64_t count = 0;
    for (const speculate::Extension& one : extensions) count += std::ssize(one.tokens);
    if (count > backlog_.capacity() - backlog_.size()) ESPALIER_RETURN_IF_ERROR(flush());
    ESPALIER_RETURN_IF_ERROR(log_taps(extensions));
    if (backlog_.completes_page()) ESPALIER_RETURN_IF_ERROR(flush());
    return {};
}

Expected<void> ModelDrafter::log_taps(std::span<const speculate::Extension> extensions) {
    OpContext& context = model_->context();
    const std::int64_t first = backlog_.size();
    auto* rows = reinterpret_cast<std::int32_t*>(arrays_.data());
    std::int64_t count = 0;
    for (const speculate::Extension& one : extensions) {
        backlog_.add(one);
        followed_.add(one);
        std::ranges::copy(one.taps, rows + count);
        count += std::ssize(one.taps);
    }
    CHECK(first + count == backlog_.size(), "{} taps for {} tokens", count,
          backlog_.size() - first);
    if (count == 0) return {};
    ESPALIER_RETURN_IF_ERROR(
        context.device.upload(context.stream, array_memory_.data(), rows,
                              static_cast<std::size_t>(count) * sizeof(std::int32_t)));
    std::int64_t column = 0;
    for (const Matrix& source : tap_sources_) {
        model_->backend().gather_rows(context, source, array_memory_.as<std::int32_t>(),
                                      log_.slice(first, count).columns(column, source.cols));
        column += source.cols;
    }
    return {};
}

Expected<void> ModelDrafter::flush() {
    roots_.clear();
    if (backlog_.size() == 0) return {};
    ESPALIER_RETURN_IF_ERROR(poison());
    return write_kv_half(0);
}

// Roots first, then all that waits. A text's first token has no KV, only a state.
void ModelDrafter::lay_out(const TokenArrays& arrays, std::int64_t tokens) const {
    std::int64_t i = 0;
    for (const DraftCall* call : roots_) {
        const std::int64_t position = call->root_position;
        const cache::PageId page =
            call->block_table[static_cast<std::size_t>(position / kPageTokens)];
        arrays.slot[i] = std::int64_t{page} * kPageTokens + position % kPageTokens;
        arrays.tokens[i] = call->proposal->tree.token(0);
        arrays.position[i] = static_cast<std::int32_t>(position);
        arrays.before[i] = backlog_.last_row(call->request, position - 1);
        ++i;
    }
    for (const Backlog::Entry& entry : backlog_.entries()) {
        arrays.slot[i] = entry.position < kFirstSlot ? -1 : entry.slot;
        arrays.tokens[i] = entry.token;
        arrays.position[i] = static_cast<std::int32_t>(entry.position);
        arrays.before[i] = entry.before_row;
        ++i;
    }
    std::fill(arrays.slot + i, arrays.slot + tokens, -1);
    std::fill(arrays.tokens + i, arrays.tokens + tokens, 0);
    std::fill(arrays.position + i, arrays.position + tokens, 0);
    std::fill(arrays.before + i, arrays.before + tokens, -1);
}

// States that were kept with pages, and those that pages keep from now on.
void ModelDrafter::lay_tails(const TokenArrays& arrays, std::int64_t tokens,
                             std::int64_t waiting) const {
    const std::span<const Backlog::Entry> entries = backlog_.entries();
    std::fill(arrays.tail_page, arrays.tail_page + tokens, -1);
    std::iota(arrays.tail_token, arrays.tail_token + tokens, 0);
    std::fill(arrays.kept_entry, arrays.kept_entry + waiting, -1);
    std::fill(arrays.kept_page, arrays.kept_page + waiting, 0);
    std::int64_t token = 0;
    for (const DraftCall* call : roots_) {
        if (arrays.before[token] < 0 && call->root_position > 0)
            arrays.tail_page[token] = call->block_table[static_cast<std::size_t>(
                (call->root_position - 1) / kPageTokens)];
        ++token;
    }
    for (std::size_t i = 0; i < entries.size(); ++i, ++token) {
        if (entries[i].before_page != cache::kNullPage)
            arrays.tail_page[token] = entries[i].before_page;
        if (!backlog_.keeps_state(i)) continue;
        arrays.kept_entry[i] = static_cast<std::int32_t>(i);
        arrays.kept_page[i] = entries[i].page;
    }
}

Expected<void> ModelDrafter::write_kv_half(std::int64_t least) {
    OpContext& context = model_->context();
    std::int64_t waiting = backlog_.size();
    std::int64_t tokens = std::max(std::ssize(roots_) + waiting, least);
    const std::int64_t bucket = captures() ? batch::token_bucket(tokens) : 0;
    const bool recorded =
        bucket != 0 && bucket <= std::min(limits_.tokens, steps_.options().most_tokens);
    if (recorded) waiting = tokens = bucket;
    const TokenArrays host(arrays_.data(), tokens);
    lay_out(host, tokens);
    lay_tails(host, tokens, waiting);
    ESPALIER_RETURN_IF_ERROR(context.device.upload(context.stream, array_memory_.data(),
                                                   arrays_.data(), TokenArrays::bytes(tokens)));
    if (recorded) {
        // A level's key is positive.
        ESPALIER_RETURN_IF_ERROR(
            queue(-tokens, tokens, [this, tokens] { return run_kv_half(tokens, tokens); }));
    } else {
        ESPALIER_RETURN_IF_ERROR(run_kv_half(tokens, waiting));
    }
    backlog_.clear();
    return {};
}

// before_: from the states of the backlog, or from what was kept with pages.
Expected<void> ModelDrafter::run_kv_half(std::int64_t tokens, std::int64_t waiting) {
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

}  // namespace espalier::draft
