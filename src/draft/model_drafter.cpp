// SPDX-License-Identifier: Apache-2.0
#include "draft/model_drafter.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.hpp"

namespace espalier::draft {

using cache::kPageTokens;
using speculate::DraftCall;

Expected<std::unique_ptr<ModelDrafter>> ModelDrafter::create(
    std::unique_ptr<Network> network, const Machine& machine, const PassLimits& limits,
    const DraftCache& cache, const model::Taps& taps, std::int64_t vocabulary, PassEcho* echo) {
    ESPALIER_ASSIGN_OR_RETURN(
        auto passes, DraftPasses::create(std::move(network), machine, limits, cache, taps));
    ESPALIER_ASSIGN_OR_RETURN(LevelDraws draws,
                              LevelDraws::create(machine.device, limits, vocabulary));
    ESPALIER_ASSIGN_OR_RETURN(TreeGrowth growth, TreeGrowth::create(machine.device, limits.rows));
    std::unique_ptr<ModelDrafter> drafter(new ModelDrafter(
        std::move(passes), machine, cache, std::move(draws), std::move(growth), echo));
    if (drafter->captures()) ESPALIER_RETURN_IF_ERROR(drafter->capture_ahead());
    return drafter;
}

ModelDrafter::ModelDrafter(std::unique_ptr<DraftPasses> passes, const Machine& machine,
                           const DraftCache& cache, LevelDraws draws, TreeGrowth growth,
                           PassEcho* echo)
    : passes_(std::move(passes)),
      echo_(echo),
      limits_(passes_->limits()),
      draws_(std::move(draws)),
      growth_(std::move(growth)),
      backlog_(limits_.tokens),
      followed_(cache.storage.page_count()),
      steps_(machine.device, machine.capture),
      most_(passes_->most()),
      builder_(most_),
      arrays_(TokenArrays::bytes(std::max(limits_.tokens, limits_.nodes))) {
    CHECK(echo == nullptr || !machine.capture.capture, "passes of several ranks that are recorded");
    roots_.reserve(static_cast<std::size_t>(limits_.rows));
    tokens_.reserve(static_cast<std::size_t>(limits_.rows));
}

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
    const std::span<const std::int32_t> logged(rows, static_cast<std::size_t>(count));
    if (echo_ != nullptr) echo_->log_taps(first, logged);
    return passes_->log_taps(first, logged);
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
    std::int64_t waiting = backlog_.size();
    std::int64_t tokens = std::max(std::ssize(roots_) + waiting, least);
    const std::int64_t bucket = captures() ? batch::token_bucket(tokens) : 0;
    const bool recorded =
        bucket != 0 && bucket <= std::min(limits_.tokens, steps_.options().most_tokens);
    if (recorded) waiting = tokens = bucket;
    const TokenArrays host(arrays_.data(), tokens);
    lay_out(host, tokens);
    lay_tails(host, tokens, waiting);
    const auto arrays = std::span<const std::byte>(arrays_).first(TokenArrays::bytes(tokens));
    if (echo_ != nullptr) echo_->kv_half(tokens, waiting, arrays);
    ESPALIER_RETURN_IF_ERROR(passes_->upload_kv_half(arrays));
    if (recorded) {
        // A level's key is positive.
        ESPALIER_RETURN_IF_ERROR(queue(
            -tokens, tokens, [this, tokens] { return passes_->run_kv_half(tokens, tokens); }));
    } else {
        ESPALIER_RETURN_IF_ERROR(passes_->run_kv_half(tokens, waiting));
    }
    backlog_.clear();
    return {};
}

}  // namespace espalier::draft
