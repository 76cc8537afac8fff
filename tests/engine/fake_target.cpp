// SPDX-License-Identifier: Apache-2.0
#include "engine/fake_target.hpp"

#include <algorithm>
#include <stdexcept>

#include "mla/storage.hpp"
#include "ops/sampling_node.hpp"

namespace espalier::engine {
namespace {

tl::unexpected<Error> out_of_order() {
    return fail(ErrorKind::io, "the test's device is out of order");
}

}  // namespace

FakeTarget::FakeTarget(std::int64_t vocabulary, const model::ModelLimits& limits,
                       std::int64_t page_count)
    : info_{.vocabulary = vocabulary,
            .eos_token_ids = {1},
            .limits = limits,
            .kv_layout = cache::make_layout(1, mla::KvFormat::bf16),
            .page_count = page_count},
      cached_(static_cast<std::size_t>(page_count * cache::kPageTokens), -1) {}

// FNV-1a over the ids, of which the upper bits are drawn: an id taken from the lowest bits would
// clear them when it is hashed in turn, and every token after it would be 0.
std::int32_t FakeTarget::next_token(std::span<const std::int32_t> prefix,
                                    std::span<const std::int32_t> banned,
                                    const std::uint32_t* allowed) const {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const std::int32_t token : prefix)
        hash = (hash ^ static_cast<std::uint64_t>(token)) * 0x100000001b3u;
    auto drawn =
        static_cast<std::int32_t>((hash >> 40) % static_cast<std::uint64_t>(info_.vocabulary));
    const auto legal = [&](std::int32_t token) {
        return std::find(banned.begin(), banned.end(), token) == banned.end() &&
               (allowed == nullptr || (allowed[token / 32] >> token % 32 & 1) != 0);
    };
    for (std::int64_t tries = 0; tries < info_.vocabulary; ++tries) {
        if (legal(drawn)) return drawn;
        drawn = (drawn + 1) % static_cast<std::int32_t>(info_.vocabulary);
    }
    return -1;
}

// All tokens that one of the batch sees, itself last: history in order, then its ancestors.
std::vector<std::int32_t> FakeTarget::prefix_of(const mla::RaggedRows& rows, std::int32_t row,
                                                std::int64_t token) const {
    const std::int64_t q_len = rows.q_indptr[row + 1] - rows.q_indptr[row];
    const std::int64_t kv_len = rows.kv_len[row];
    const std::int64_t index = token - rows.q_indptr[row];
    const bool tree = rows.mask[row] == mla::MaskKind::tree;
    const std::int64_t tail = rows.tail_len == nullptr ? q_len : rows.tail_len[row];
    const std::int64_t begin = tree ? kv_len - tail : kv_len - q_len + index + 1;
    std::vector<std::int32_t> prefix;
    const auto see = [&](std::int64_t slot) {
        const std::int32_t* table = rows.block_table + mla::table_of(rows, row) * rows.block_stride;
        const auto at = mla::pool_slot(table, cache::kPageTokens, slot);
        prefix.push_back(cached_.at(static_cast<std::size_t>(at)));
    };
    for (std::int64_t slot = 0; slot < begin; ++slot) see(slot);
    for (std::int64_t j = 0; tree && j < tail; ++j)
        if (rows.words[token] >> j & 1) see(begin + j);
    return prefix;
}

void FakeTarget::read_prefixes(const mla::RaggedRows& rows, std::int64_t first, std::int64_t end) {
    for (std::int32_t row = 0; row < rows.rows; ++row)
        for (std::int64_t token = std::max<std::int64_t>(first, rows.q_indptr[row]);
             token < std::min<std::int64_t>(end, rows.q_indptr[row + 1]); ++token) {
            prefixes_[static_cast<std::size_t>(token)] = prefix_of(rows, row, token);
            of_tree_[static_cast<std::size_t>(token)] = rows.mask[row] == mla::MaskKind::tree;
        }
}

Expected<void> FakeTarget::run(const batch::HostBatch& batch,
                               const ops::SamplingBatchBuilder* draws) {
    if (at_run) at_run();
    if (fault == Fault::refuse_run) return out_of_order();
    ESPALIER_RETURN_IF_ERROR(pass(batch));
    return draws == nullptr ? Expected<void>() : draw(*draws);
}

Expected<void> FakeTarget::pass(const batch::HostBatch& host_batch) {
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView batch,
                              batch_.upload(device_.stream(), host_batch));
    const auto tokens = static_cast<std::size_t>(batch.cap_tokens);
    nonfinite_.assign(tokens, 0);
    for (std::size_t t = 0; t < tokens; ++t) {
        if (batch.slot[t] < 0) continue;
        cached_.at(static_cast<std::size_t>(batch.slot[t])) = batch.tokens[t];
        nonfinite_[t] = batch.tokens[t] == poison ? 1 : 0;
    }
    prefixes_.assign(tokens, {});
    of_tree_.assign(tokens, false);
    read_prefixes(batch.absorbed, 0, batch.cap_absorbed);
    read_prefixes(batch.decompressed, batch.cap_absorbed, batch.cap_tokens);
    gathered_.assign(batch.gather, batch.gather + batch.cap_gather);
    // Slots and positions of a plain sequence agree; those of a tree go by depth.
    for (std::size_t t = 0; t < tokens; ++t)
        if (batch.row_of[t] >= 0 &&
            std::ssize(prefixes_[t]) != static_cast<std::int64_t>(batch.position[t]) + 1)
            throw std::runtime_error("a token's position is not the length of what it sees");
    draws_.clear();
    alternatives_.clear();
    return {};
}

Expected<void> FakeTarget::reserve(const StepRoom& room) {
    ESPALIER_ASSIGN_OR_RETURN(sampling_, ops::SamplingMemory::create(device_, room.draws));
    return {};
}

Expected<void> FakeTarget::draw(const ops::SamplingBatchBuilder& draws) {
    ESPALIER_ASSIGN_OR_RETURN(const ops::SamplingBatch batch,
                              sampling_.value().upload(device_.stream(), draws));
    asked_.clear();
    const auto words = static_cast<std::size_t>(draws.capacity().mask_words());
    for (std::int64_t g = 0; g < batch.nodes; ++g) {
        const auto token = static_cast<std::size_t>(gathered_.at(static_cast<std::size_t>(g)));
        const ops::SamplingNode node = ops::node_of(batch, g);
        AskedNode& asked = asked_.emplace_back();
        asked.prefix = prefixes_.at(token);
        asked.banned = {node.banned.begin(), node.banned.end()};
        if (node.allowed != nullptr) asked.allowed = {node.allowed, node.allowed + words};
        asked.wanted = node.wanted;
        asked.of_tree = of_tree_.at(token);
        const std::uint32_t* allowed = fault == Fault::ignore_masks ? nullptr : node.allowed;
        const std::int32_t drawn =
            node.wanted >= 0 ? node.wanted : next_token(asked.prefix, node.banned, allowed);
        draws_.push_back(
            {drawn, -1.0f, drawn < 0 ? ops::DrawFlag::nothing_left : ops::DrawFlag::fine});
    }
    alternatives_.assign(static_cast<std::size_t>(draws.alternatives()), {});
    return {};
}

Expected<StepResult> FakeTarget::wait() {
    if (at_wait) at_wait();
    if (fault == Fault::refuse_wait) return out_of_order();
    return StepResult{
        .draws = draws_, .alternatives = alternatives_, .nonfinite = nonfinite_, .times = times};
}

Expected<void> FakeTarget::compact(std::span<const std::int64_t> source,
                                   std::span<const std::int64_t> destination) {
    if (fault == Fault::refuse_compact) return out_of_order();
    for (std::size_t i = 0; i < source.size(); ++i)
        cached_.at(static_cast<std::size_t>(destination[i])) =
            cached_.at(static_cast<std::size_t>(source[i]));
    return {};
}

}  // namespace espalier::engine
