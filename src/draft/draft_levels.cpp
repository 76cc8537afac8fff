// SPDX-License-Identifier: Apache-2.0
// ModelDrafter::propose: one pass per level over the frontiers of all requests, as a recording
// where passes are recorded. A level's plan of attention is made in its pass, from its own rows.
// The host lays the first level; all others are laid on the device from what the one before found,
// and where passes are recorded the host waits for none, but for every second level.
#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "draft/model_drafter.hpp"

namespace espalier::draft {

using cache::kPageTokens;
using speculate::DraftCall;

namespace {

// Recorded levels that are queued before the host looks whether a tree still grows. A level of
// Sapling's EAGLE3 takes 75 µs on an H200 whether or not there is a node left, and of four levels
// that were asked for 2.8 had one; looking is a download of 60 bytes a tree.
constexpr std::int32_t kUnseenLevels = 2;

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
    if (growth_.most(0).nodes == 0) return {};
    ESPALIER_ASSIGN_OR_RETURN(const Level roots, run_roots(calls));
    const Stream stream = model().context().stream;
    for (std::int32_t level = 1;; ++level) {
        TreeGrowth::Size size = growth_.most(level);
        if (size.nodes > 0 && (!captures() || level % kUnseenLevels == 0)) {
            ESPALIER_ASSIGN_OR_RETURN(size, growth_.next(stream));
        }
        if (size.nodes == 0) break;
        ESPALIER_RETURN_IF_ERROR(run_level(roots, size));
    }
    return growth_.download(stream, calls);
}

// Every request has the same share of a level's nodes and of attention's partial results; one that
// is too long for its share is not drafted for, nor is one whose root has no state before it.
void ModelDrafter::start(std::span<const DraftCall> calls) {
    const std::int64_t share = std::max<std::int64_t>(1, limits_.nodes / std::ssize(calls));
    const std::int64_t splits = limits_.max_splits / std::ssize(calls);
    growth_.begin();
    level_splits_ = 0;
    std::int32_t row = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const DraftCall& call = calls[i];
        const std::int64_t slots =
            std::min(std::ssize(call.block_table) * kPageTokens, limits_.max_kv_len);
        const bool stateless = call.root_position < kFirstSlot;
        const auto places =
            stateless ? 0 : std::clamp<std::int64_t>(slots - call.root_position, 0, kMaxNodes);
        const std::int64_t of_node =
            mla::row_splits(1, call.root_position + std::max(places, std::int64_t{1}));
        const std::int64_t room =
            limits_.max_splits == 0 ? share : std::min(share, splits / of_node);
        const speculate::DraftShape& shape = call.shape;
        const std::int64_t width = std::min<std::int64_t>(shape.width, room);
        if (limits_.max_splits > 0) level_splits_ += width * of_node;
        growth_.add(
            {.depth = shape.depth,
             .width = static_cast<std::int32_t>(width),
             .nodes = shape.nodes,
             .places = static_cast<std::int32_t>(places),
             .children = std::min({shape.nodes - 1, std::max(kChildren, shape.width), kMaxDrafts}),
             .coupled = LevelDraws::coupled(call) ? 1 : 0,
             .root_row = row,
             .root_position = static_cast<std::int32_t>(call.root_position),
             .root_token = call.proposal->tree.token(0),
             .table_row = static_cast<std::int32_t>(i),
             .banned_levels = LevelDraws::banned_levels(call)});
        if (growth_.trees().back().state.frontier > 0) ++row;
    }
}

// Which nodes a level has is known to the device alone, but not how many splits at most: one of two
// sizes, which are recorded apart.
batch::StepCapacity ModelDrafter::padded(batch::StepCapacity need) const {
    const std::int64_t few = batch::few_splits(most_);
    need.total_splits = few > 0 && level_splits_ <= few ? few : most_.total_splits;
    return captures() ? batch::captured_capacity(need, most_, steps_.options().most_tokens) : need;
}

// The roots as one batch, and how their children are drawn.
Expected<ModelDrafter::Level> ModelDrafter::lay_roots(std::span<const DraftCall> calls) {
    builder_.clear();
    roots_.clear();
    std::int32_t width = 1;
    tokens_.resize(calls.size());  // rows borrow them
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const auto& [rule, state] = growth_.trees()[i];
        if (state.frontier == 0) continue;
        tokens_[i] = rule.root_token;
        batch::RowSpec row;
        row.tokens = std::span(tokens_).subspan(i, 1);
        row.block_table = calls[i].block_table;
        row.table_row = rule.table_row;
        row.first_slot = rule.root_position;
        row.later_slots = rule.places - 1;
        ESPALIER_RETURN_IF_ERROR(builder_.add(row));
        roots_.push_back(&calls[i]);
        width = std::max(width, rule.children);
    }
    const batch::StepCapacity& need = builder_.need();
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch batch, builder_.finish(padded(need)));
    const Stream stream = model().context().stream;
    Level level{.host = batch, .first = true};
    ESPALIER_ASSIGN_OR_RETURN(level.batch, passes_->upload_roots(batch));
    draws_.begin(level.batch.cap_tokens);
    for (const DraftCall* call : roots_) draws_.add(*call, serials_[call->request]);
    level.search = draws_.search(captures() ? recorded_width(width) : width);
    ESPALIER_ASSIGN_OR_RETURN(level.draws.batch, draws_.upload(stream));
    return level;
}

// The first level, behind the KV half of its tokens and of all that waits.
Expected<ModelDrafter::Level> ModelDrafter::run_roots(std::span<const DraftCall> calls) {
    if (growth_.most(0).nodes + backlog_.size() > limits_.tokens) ESPALIER_RETURN_IF_ERROR(flush());
    ESPALIER_RETURN_IF_ERROR(poison());
    if (steps_.options().poison) ESPALIER_RETURN_IF_ERROR(growth_.poison(model().context().stream));
    ESPALIER_ASSIGN_OR_RETURN(const Level level, lay_roots(calls));
    ESPALIER_RETURN_IF_ERROR(growth_.upload(model().context().stream, level.draws.batch));
    // The level's tokens are the first of the half, pads included.
    ESPALIER_RETURN_IF_ERROR(write_kv_half(level.batch.cap_tokens));
    if (echo_ != nullptr) echo_->roots(level.host);
    ESPALIER_RETURN_IF_ERROR(queue_pass(level));
    return level;
}

// Recordings that the first calls need, made before them: by those calls it is learnt
// what drafts cost, and 128 greedy texts never asked a draft model again whose first two calls took
// 2.4 and 1.3 ms instead of 0.3. Chains, plain and coupled; trees come later.
Expected<void> ModelDrafter::capture_ahead() {
    const std::int64_t most = std::min({steps_.options().ahead, steps_.options().most_tokens,
                                        std::int64_t{limits_.rows}, limits_.nodes, limits_.tokens});
    for (const std::int64_t bucket : batch::token_buckets_to(most))
        for (const bool coupled : {false, true})
            ESPALIER_RETURN_IF_ERROR(capture_levels(
                static_cast<std::int32_t>(std::min(bucket, most)),
                {.width = recorded_width(kChildren), .coupled = coupled, .plain = !coupled}));
    return model().context().device.synchronize(model().context().stream);
}

// The KV half, a first level and a later one, of pads alone: they have no page and write no slot.
Expected<void> ModelDrafter::capture_levels(std::int32_t nodes, const LevelDraws::Search& search) {
    const Stream stream = model().context().stream;
    builder_.clear();
    roots_.clear();
    growth_.begin();
    ESPALIER_RETURN_IF_ERROR(poison());
    ESPALIER_ASSIGN_OR_RETURN(const batch::HostBatch pads,
                              builder_.finish(padded({.absorbed_tokens = nodes, .max_q_len = 1})));
    Level first{.search = search, .first = true};
    ESPALIER_ASSIGN_OR_RETURN(first.batch, passes_->upload_roots(pads));
    draws_.begin(first.batch.cap_tokens);
    ESPALIER_ASSIGN_OR_RETURN(first.draws.batch, draws_.upload(stream));
    ESPALIER_RETURN_IF_ERROR(growth_.upload(stream, first.draws.batch));
    ESPALIER_RETURN_IF_ERROR(write_kv_half(first.batch.cap_tokens));
    ESPALIER_RETURN_IF_ERROR(queue_pass(first));
    return run_level(first, {.nodes = nodes, .rows = nodes, .longest_row = 1, .longest = 1});
}

// A level of at most this size, which the device lays.
Expected<void> ModelDrafter::run_level(const Level& roots, const TreeGrowth::Size& size) {
    ESPALIER_RETURN_IF_ERROR(poison());
    batch::StepCapacity need = most_;
    need.absorbed_tokens = size.nodes;
    need.absorbed_rows = size.rows;
    need.max_q_len = size.longest_row;
    need.max_kv_len = size.longest;
    Level level{.search = roots.search};
    lay_level(padded(need), roots.batch, level);
    return queue_pass(level);
}

// Arrays of such a level.
void ModelDrafter::lay_level(batch::StepCapacity capacity, const batch::BatchView& roots,
                             Level& level) {
    capacity = passes_->level_capacity(capacity, roots);
    std::byte* const base = passes_->level_memory();
    const batch::BatchLayout layout(capacity);
    const auto ints = [base](std::size_t at) { return reinterpret_cast<std::int32_t*>(base + at); };
    level.capacity = capacity;
    level.batch = batch::view_batch(capacity, base, roots.absorbed.block_table);
    level.draws = draws_.frontier(capacity.absorbed_tokens);
    level.frontier = {.capacity = capacity.absorbed_tokens,
                      .rows = capacity.absorbed_rows,
                      .tokens = ints(layout.tokens),
                      .position = ints(layout.position),
                      .slot = reinterpret_cast<std::int64_t*>(base + layout.slot),
                      .row_of = ints(layout.row_of),
                      .words = reinterpret_cast<std::uint64_t*>(base + layout.words),
                      .parent_row = passes_->parents(),
                      .q_indptr = ints(layout.absorbed.q_indptr),
                      .kv_len = ints(layout.absorbed.kv_len),
                      .tail_len = ints(layout.absorbed.tail_len),
                      .table_row = ints(layout.absorbed.table_row),
                      .mask = reinterpret_cast<std::uint8_t*>(base + layout.absorbed.mask),
                      .tree_mask = static_cast<std::uint8_t>(mla::MaskKind::tree),
                      .pad_mask = static_cast<std::uint8_t>(mla::MaskKind::causal),
                      .block_tables = roots.absorbed.block_table,
                      .block_stride = roots.absorbed.block_stride,
                      .page_tokens = kPageTokens};
}

Expected<void> ModelDrafter::run_pass(const Level& level) {
    const ops::Backend& backend = model().backend();
    OpContext& context = model().context();
    Matrix logits;
    if (level.first) {
        ESPALIER_ASSIGN_OR_RETURN(logits, passes_->run_roots(level.batch));
    } else {
        backend.lay_frontiers(context, growth_.view(), level.frontier, level.draws);
        if (echo_ != nullptr) tell_level(level);
        ESPALIER_ASSIGN_OR_RETURN(logits, passes_->run_level(level.batch));
    }
    draws_.find(model(), logits, level.draws.batch, level.search);
    backend.grow_trees(context, growth_.view(), draws_.found(level.search));
    return {};
}

// Passes of several ranks are not recorded, and a CPU's memory is the host's: a level that was laid
// can be read here.
void ModelDrafter::tell_level(const Level& level) {
    const auto bytes = batch::BatchLayout(level.capacity).bytes;
    echo_->level(level.capacity, {passes_->level_memory(), bytes},
                 {passes_->parents(), static_cast<std::size_t>(level.batch.cap_tokens)});
}

Expected<void> ModelDrafter::queue_pass(const Level& level) {
    const batch::BatchView& batch = level.batch;
    if (!captures() || batch.cap_tokens > steps_.options().most_tokens) return run_pass(level);
    // All that tells two recordings apart.
    std::int64_t key = batch.cap_tokens;
    key = key << 1 | (batch.absorbed.max_q_len == 1 ? 1 : 0);
    key = key << 1 | (batch.absorbed.total_splits < most_.total_splits ? 1 : 0);
    key = key << 6 | level.search.width;
    key = key << 3 | (level.first ? 4 : 0) | (level.search.coupled ? 2 : 0) |
          (level.search.plain ? 1 : 0);
    return queue(key, batch.cap_tokens, [this, level] { return run_pass(level); });
}

Expected<void> ModelDrafter::queue(std::int64_t key, std::int64_t tokens, Device::Work work) {
    if (RecordedWork* const recording = steps_.find(key)) return recording->queue();
    return steps_.run_and_record(key, tokens, std::move(work));
}

Expected<void> ModelDrafter::poison() {
    if (!steps_.options().poison) return {};
    ESPALIER_RETURN_IF_ERROR(passes_->poison());
    OpContext& context = model().context();
    return draws_.poison(context.device, context.stream);
}

}  // namespace espalier::draft
