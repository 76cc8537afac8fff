// SPDX-License-Identifier: Apache-2.0
// Index scores and the choice of keys. Tokens are taken in waves whose scores fit in scratch
// memory: first tasks of (some tokens of one row, 512 keys) score them, so that a tile of keys is
// read and turned once for all of the tokens, then each token chooses. A score is computed alike
// wherever its key lies, in history or tail, so neither the wave nor the tokens beside it change
// it.
#include <algorithm>

#include "base/element.hpp"
#include "mla/cpu/best_scores.hpp"
#include "mla/cpu/entries.hpp"
#include "mla/cpu/key_order.hpp"
#include "mla/storage.hpp"

namespace espalier::mla::cpu {
namespace {

constexpr std::int64_t kGroupTokens = 4;  // 128 KB of queries of 64 heads stay in cache
constexpr std::int64_t kWaveTokens = 64;
constexpr std::int64_t kWaveFloats = std::int64_t{1} << 20;  // of scores, and one token's besides
constexpr std::int64_t kTaskKeys = 512;

constexpr std::int64_t whole_tiles(std::int64_t keys) {
    return (keys + kLanes - 1) / kLanes * kLanes;
}

// A token that chooses, and its scores in logical order: history, then its slots in the tail.
struct Chooser {
    RowView row;
    std::int64_t i = 0;        // of the row's tokens
    std::int64_t history = 0;  // logical keys [0, history) are the slots from first_slot on
    std::int64_t seen = 0;
    std::int32_t tail[kMaxTail] = {};  // [seen − history]
    float* scores = nullptr;           // [whole_tiles(seen)], and a tile more

    std::int64_t token() const { return row.first_token + i; }
    std::int32_t slot_of(std::int64_t logical) const {
        return logical < history ? static_cast<std::int32_t>(row.first_slot + logical)
                                 : tail[logical - history];
    }
};

// Choosers of one row that share tiles of keys.
struct Group {
    std::int64_t first = 0;  // of the wave's choosers
    std::int64_t count = 0;
    std::int64_t history = 0;     // the longest
    std::int64_t first_task = 0;  // of history, 512 keys each, and one for the tails
};

class Select {
  public:
    Select(OpContext& context, const TileKernels& kernels, const SelectCall& call)
        : context_(context),
          kernels_(kernels),
          call_(call),
          worker_floats_(worker_floats(call.heads, call.keys.dims.latent)) {
        score_floats_ = kWaveFloats + whole_tiles(call.rows.max_kv_len) + kLanes;
        choosers_ = context.arena.take<Chooser>(kWaveTokens);
        groups_ = context.arena.take<Group>(kWaveTokens + 1);
        scores_ = context.arena.take<float>(score_floats_);
        scratch_ = context.arena.take<float>(worker_floats_ * context.device.workers());
    }

    static std::int64_t worker_floats(std::int64_t heads, std::int64_t width) {
        return kGroupTokens * heads * (width + 1) + (width + 1) * kLanes;
    }
    static std::int64_t scratch_bytes(const Capacities& most) {
        return kWaveTokens * std::int64_t{sizeof(Chooser)} +
               (kWaveTokens + 1) * std::int64_t{sizeof(Group)} +
               4 * (kWaveFloats + whole_tiles(most.max_kv_len) + kLanes +
                    worker_floats(most.index_heads, most.index_width) * most.workers) +
               4 * 64;
    }

    void run() {
        const RaggedRows& rows = call_.rows;
        std::fill(call_.lists.count + rows.q_indptr[0], call_.lists.count + rows.token_end, -1);
        for (std::int32_t b = 0; b < rows.rows; ++b) {
            const RowView row = view_row(rows, b);
            if (row.keys <= call_.top_k) continue;
            for (std::int64_t i = 0; i < row.tokens; ++i) add(row, i);
        }
        choose();
    }

  private:
    void add(const RowView& row, std::int64_t i) {
        Chooser chooser{.row = row, .i = i};
        chooser.history = row.mask == MaskKind::tree ? row.history() : row.prefix(i);
        chooser.seen = chooser.history;
        SlotCursor cursor;
        if (row.mask == MaskKind::tree)
            chooser.seen += row.slots(i, chooser.history, kMaxTail, chooser.tail, cursor);
        if (chooser.seen <= call_.top_k) return;
        const std::int64_t floats = whole_tiles(chooser.seen) + kLanes;
        if (wave_ == kWaveTokens || used_ + floats > score_floats_) choose();
        chooser.scores = scores_ + used_;
        used_ += floats;
        choosers_[wave_++] = chooser;
    }

    // The wave's choosers, and it begins anew.
    void choose() {
        const std::int64_t tasks = make_groups();
        pool_of(context_).run(tasks, [this](std::int64_t task, int worker) {
            const Group* group = groups_;
            while (group[1].first_task <= task) ++group;
            score(*group, task - group->first_task, scratch_ + worker * worker_floats_);
        });
        pool_of(context_).run(wave_, [this](std::int64_t index, int) {
            const Chooser& chooser = choosers_[index];
            std::int32_t* list = call_.lists.slots + chooser.token() * call_.lists.stride;
            const bool nan = choose_best(chooser.scores, chooser.seen, call_.top_k, list);
            for (std::int64_t key = 0; key < call_.top_k; ++key)
                list[key] = chooser.slot_of(list[key]);
            call_.lists.count[chooser.token()] = static_cast<std::int32_t>(call_.top_k);
            if (nan && call_.nonfinite != nullptr) call_.nonfinite[chooser.token()] = 1;
        });
        wave_ = used_ = 0;
    }

    std::int64_t make_groups() {
        std::int64_t groups = 0, tasks = 0;
        for (std::int64_t first = 0; first < wave_; ++groups) {
            Group group{.first = first, .first_task = tasks};
            const std::int32_t row = choosers_[first].row.index;
            while (first < wave_ && group.count < kGroupTokens &&
                   choosers_[first].row.index == row) {
                group.history = std::max(group.history, choosers_[first++].history);
                ++group.count;
            }
            groups_[groups] = group;
            tasks += (group.history + kTaskKeys - 1) / kTaskKeys + 1;
        }
        groups_[groups] = {.first_task = tasks};
        return tasks;
    }

    // Task 0 of a group scores the tails.
    void score(const Group& group, std::int64_t task, float* scratch) const {
        const std::int64_t width = call_.keys.dims.latent, query = call_.heads * width;
        float* const weights = scratch + kGroupTokens * query;
        float* const tile = weights + kGroupTokens * call_.heads;
        float* const results = tile + width * kLanes;
        const auto score_tile = [&](std::int64_t t, std::int64_t first, std::int64_t count) {
            const Chooser& chooser = choosers_[group.first + t];
            kernels_.index_scores({scratch + t * query, weights + t * call_.heads, call_.heads,
                                   static_cast<int>(width), call_.scale},
                                  tile, results);
            std::copy_n(results, count, chooser.scores + first);
        };
        for (std::int64_t t = 0; t < group.count; ++t)
            load_query(choosers_[group.first + t].token(), scratch + t * query,
                       weights + t * call_.heads);
        if (task == 0) {
            for (std::int64_t t = 0; t < group.count; ++t) {
                const Chooser& chooser = choosers_[group.first + t];
                for (std::int64_t at = chooser.history; at < chooser.seen; at += kLanes) {
                    const std::int64_t count = std::min<std::int64_t>(kLanes, chooser.seen - at);
                    load_keys(chooser, at, count, tile);
                    score_tile(t, at, count);
                }
            }
            return;
        }
        const std::int64_t begin = (task - 1) * kTaskKeys;
        const std::int64_t end = std::min(group.history, begin + kTaskKeys);
        for (std::int64_t at = begin; at < end; at += kLanes) {
            load_keys(longest(group), at, std::min<std::int64_t>(kLanes, end - at), tile);
            for (std::int64_t t = 0; t < group.count; ++t) {
                const std::int64_t rest = choosers_[group.first + t].history - at;
                if (rest > 0) score_tile(t, at, std::min<std::int64_t>(kLanes, rest));
            }
        }
    }

    const Chooser& longest(const Group& group) const {
        return *std::max_element(
            choosers_ + group.first, choosers_ + group.first + group.count,
            [](const Chooser& a, const Chooser& b) { return a.history < b.history; });
    }

    void load_query(std::int64_t token, float* q, float* weights) const {
        const std::int64_t count = call_.heads * call_.keys.dims.latent;
        for (std::int64_t d = 0; d < count; ++d)
            q[d] = load_element(call_.q, call_.q_dtype, token * count + d);
        for (std::int64_t h = 0; h < call_.heads; ++h)
            weights[h] = call_.weights[token * call_.heads + h] * call_.weight_scale;
    }

    // Logical keys [first, first + count) as columns [width][16]; those behind them are zeros.
    void load_keys(const Chooser& chooser, std::int64_t first, std::int64_t count,
                   float* tile) const {
        const std::int64_t width = call_.keys.dims.latent;
        const DType dtype = call_.keys.format == KvFormat::f32 ? DType::f32 : DType::bf16;
        for (std::int64_t key = 0; key < kLanes; ++key) {
            const std::int64_t slot = pool_slot(chooser.row.pages, call_.keys.page_tokens,
                                                chooser.slot_of(first + std::min(key, count - 1)));
            const std::byte* from = slot_bytes(call_.keys, slot);
            for (std::int64_t d = 0; d < width; ++d)
                tile[d * kLanes + key] = key < count ? load_element(from, dtype, d) : 0.0f;
        }
    }

    OpContext& context_;
    const TileKernels& kernels_;
    const SelectCall& call_;
    std::int64_t worker_floats_;
    std::int64_t score_floats_;
    Chooser* choosers_;
    Group* groups_;
    float* scores_;
    float* scratch_;
    std::int64_t wave_ = 0;  // choosers
    std::int64_t used_ = 0;  // floats of scores
};

}  // namespace

void select(OpContext& context, const TileKernels& kernels, const SelectCall& call) {
    const Arena::Mark mark(context.arena);
    Select(context, kernels, call).run();
}

std::int64_t select_scratch(const Capacities& most) {
    return most.index_heads == 0 ? 0 : Select::scratch_bytes(most);
}

}  // namespace espalier::mla::cpu
