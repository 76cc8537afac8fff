// SPDX-License-Identifier: Apache-2.0
// ModelDrafter::propose: one pass per level over the frontiers of all requests, as a recording
// where passes are recorded. A level's plan of attention is made in its pass, from its own rows.
#include <algorithm>
#include <array>

#include "accept/constraint.hpp"
#include "base/check.hpp"
#include "draft/model_drafter.hpp"

namespace espalier::draft {

using cache::kPageTokens;
using speculate::DraftCall;

namespace {

// Few widths, so that few recordings are needed: what more is found is left aside.
std::int32_t recorded_width(std::int32_t width) {
    for (const std::int32_t wide : {8, 16, 32})
        if (width <= wide) return wide;
    return kMaxDrafts;
}

}  // namespace

Expected<void> ModelDrafter::propose(std::span<const DraftCall> calls) {
    CHECK(std::ssize(calls) <= limits_.rows, "{} requests, at most {}", calls.size(), limits_.rows);
    if (calls.empty()) return {};
    start(calls);
    const std::span<Growth> growths = std::span(growths_).first(calls.size());
    const auto grows = [](const Growth& one) { return !one.frontier().empty(); };
    for (std::int32_t level = 0; std::any_of(growths.begin(), growths.end(), grows); ++level) {
        ESPALIER_RETURN_IF_ERROR(run_level(calls, level));
        for (Growth& one : growths) one.next_level();
    }
    for (std::size_t i = 0; i < calls.size(); ++i) growths_[i].finish(*calls[i].proposal);
    return {};
}

// Every request has the same share of a level's nodes and of attention's partial results; one that
// is too long for its share is not drafted for.
void ModelDrafter::start(std::span<const DraftCall> calls) {
    const std::int64_t share = std::max<std::int64_t>(1, limits_.nodes / std::ssize(calls));
    const std::int64_t splits = limits_.max_splits / std::ssize(calls);
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const DraftCall& call = calls[i];
        const std::int64_t slots =
            std::min(std::ssize(call.block_table) * kPageTokens, limits_.max_kv_len);
        const auto places = std::clamp<std::int64_t>(slots - call.root_position, 0, kMaxNodes);
        const std::int64_t width =
            limits_.max_splits == 0
                ? share
                : std::min(share,
                           splits / mla::row_splits(
                                        1, call.root_position + std::max(places, std::int64_t{1})));
        growths_[i].start(call.proposal->tree.token(0), call.shape,
                          static_cast<std::int32_t>(width > 0 ? places : 0),
                          static_cast<std::int32_t>(width));
    }
}

// The frontiers as one batch: a row for each request that has one.
Expected<batch::BatchView> ModelDrafter::upload_frontiers(std::span<const DraftCall> calls) {
    builder_.clear();
    tokens_.clear();
    depths_.clear();
    words_.clear();
    parent_rows_.clear();
    for (std::size_t i = 0; i < calls.size(); ++i) {
        Growth& growth = growths_[i];
        const std::size_t first = tokens_.size();
        for (const std::int32_t index : growth.frontier()) {
            Growth::Node& node = growth.node(index);
            node.row = static_cast<std::int32_t>(tokens_.size());
            tokens_.push_back(node.token);
            depths_.push_back(node.depth);
            words_.push_back(node.word);
            parent_rows_.push_back(index == 0 ? -1 : growth.node(node.parent).row);
        }
        const std::size_t count = tokens_.size() - first;
        if (count == 0) continue;
        const std::int32_t before =
            growth.places_used() - static_cast<std::int32_t>(count);  // nodes in the cache
        batch::RowSpec row;
        row.tokens = std::span(tokens_).subspan(first, count);
        row.block_table = calls[i].block_table;
        row.table_row = static_cast<std::int32_t>(i);
        row.first_slot = static_cast<std::int32_t>(calls[i].root_position) + before;
        if (before > 0) {
            row.mask = mla::MaskKind::tree;
            row.tail_len = growth.places_used();
            row.depth = std::span(depths_).subspan(first, count);
            row.words = std::span(words_).subspan(first, count);
        }
        ESPALIER_RETURN_IF_ERROR(builder_.add(row));
    }
    const batch::StepCapacity& need = builder_.need();
    ESPALIER_ASSIGN_OR_RETURN(
        const batch::HostBatch batch,
        builder_.finish(captures() ? batch::captured_capacity(need, most_) : need));
    return batch_.upload(model_->context().stream, batch);
}

// Rows of after_, where the last level left the states of the parents of this one's nodes.
Expected<void> ModelDrafter::upload_parents(std::int64_t nodes) {
    parent_rows_.resize(static_cast<std::size_t>(nodes), -1);
    const OpContext& context = model_->context();
    return context.device.upload(context.stream, array_memory_.data(), parent_rows_.data(),
                                 parent_rows_.size() * sizeof(std::int32_t));
}

Expected<void> ModelDrafter::run_level(std::span<const DraftCall> calls, std::int32_t number) {
    OpContext& context = model_->context();
    if (steps_.options().poison) ESPALIER_RETURN_IF_ERROR(model_->poison());
    Level level{.first = number == 0};
    ESPALIER_ASSIGN_OR_RETURN(level.batch, upload_frontiers(calls));
    const std::int32_t width = lay_draws(calls, level.batch.cap_tokens);
    level.search = draws_.search(captures() ? recorded_width(width) : width);
    ESPALIER_ASSIGN_OR_RETURN(level.draws, draws_.upload(context.stream));
    if (level.first) {
        ESPALIER_RETURN_IF_ERROR(run_roots(calls, level));
    } else {
        ESPALIER_RETURN_IF_ERROR(upload_parents(level.batch.cap_tokens));
        ESPALIER_RETURN_IF_ERROR(queue_pass(level));
    }
    ESPALIER_RETURN_IF_ERROR(draws_.download(context, level.search, width));
    for (std::size_t i = 0; i < calls.size(); ++i)
        for (const std::int32_t index : growths_[i].frontier())
            growths_[i].add_children(index, legal_children(calls[i], growths_[i], index));
    return {};
}

// So that no pass runs below what the grammar refuses. Valid until the next call.
std::span<const Growth::Child> ModelDrafter::legal_children(const DraftCall& call,
                                                            const Growth& growth,
                                                            std::int32_t index) {
    const std::span<const Growth::Child> found = draws_.children(growth.node(index).row);
    if (call.constraint == nullptr) return found;
    accept::Constraint& constraint = *call.constraint;
    std::array<TokenId, kMaxDrafts> room;
    const std::span<const TokenId> path = growth.path(index, room);
    for (const TokenId token : path)
        CHECK(constraint.descend(token), "token {} of a draft's path is not legal", token);
    legal_.clear();
    for (const Growth::Child& child : found) {
        if (!constraint.descend(child.token)) continue;
        constraint.ascend();
        legal_.push_back(child);
    }
    for (std::size_t i = 0; i < path.size(); ++i) constraint.ascend();
    return legal_;
}

// The first level, with the KV half of all that waits in the same pass if that is not too long to
// be recorded.
Expected<void> ModelDrafter::run_roots(std::span<const DraftCall> calls, Level& level) {
    const std::int64_t nodes = level.batch.cap_tokens;
    if (nodes + backlog_.size() > limits_.tokens) ESPALIER_RETURN_IF_ERROR(flush());
    roots_.clear();
    for (std::size_t i = 0; i < calls.size(); ++i)
        if (!growths_[i].frontier().empty()) roots_.push_back(&calls[i]);
    // The level's tokens are the first of the half, pads included.
    std::int64_t tokens = std::max(std::ssize(roots_) + backlog_.size(), nodes);
    const std::int64_t bucket = captures() ? batch::token_bucket(tokens) : 0;
    if (bucket != 0 && bucket <= limits_.tokens) level.kv_half = tokens = bucket;
    ESPALIER_ASSIGN_OR_RETURN(const KvHalf half, begin_kv_half(tokens));
    if (level.kv_half == 0) ESPALIER_RETURN_IF_ERROR(write_kv_half(tokens));
    ESPALIER_RETURN_IF_ERROR(queue_pass(level));
    return end_kv_half(half);
}

Expected<void> ModelDrafter::run_pass(const Level& level) {
    const batch::BatchView& batch = level.batch;
    const std::int64_t nodes = batch.cap_tokens;
    if (level.first) {
        if (level.kv_half > 0) ESPALIER_RETURN_IF_ERROR(write_kv_half(level.kv_half));
    } else {
        model_->backend().gather_rows(model_->context(), after_, array_memory_.as<std::int32_t>(),
                                      before_.slice(0, nodes));
        ESPALIER_RETURN_IF_ERROR(model_->write_kv({nodes, batch.tokens, batch.position, batch.slot},
                                                  before_.slice(0, nodes), kv()));
    }
    ESPALIER_ASSIGN_OR_RETURN(const Matrix logits,
                              model_->logits(batch, kv(), after_.slice(0, nodes)));
    draws_.find(*model_, logits, level.draws, level.search);
    return {};
}

Expected<void> ModelDrafter::queue_pass(const Level& level) {
    const batch::BatchView& batch = level.batch;
    if (!captures() || batch::token_bucket(batch.cap_tokens) == 0) return run_pass(level);
    // All that tells two recordings apart: 9 bits each of nodes and of the half's tokens.
    std::int64_t key = batch.cap_tokens;
    key = key << 9 | level.kv_half;
    key = key << 6 | level.search.width;
    key = key << 3 | (level.first ? 4 : 0) | (level.search.coupled ? 2 : 0) |
          (level.search.plain ? 1 : 0);
    if (RecordedWork* const recording = steps_.find(key)) return recording->queue();
    return steps_.run_and_record(key, [this, level] { return run_pass(level); });
}

// Returns how many children of a node are looked at.
std::int32_t ModelDrafter::lay_draws(std::span<const DraftCall> calls, std::int64_t nodes) {
    draws_.begin(nodes);
    std::int32_t width = 1;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        if (growths_[i].frontier().empty()) continue;
        const speculate::DraftShape& shape = calls[i].shape;
        width = std::max(width, std::min(shape.nodes - 1, std::max(kChildren, shape.width)));
        draws_.add(calls[i], growths_[i], serials_[static_cast<std::size_t>(calls[i].request)]);
    }
    return std::min(width, kMaxDrafts);
}

}  // namespace espalier::draft
