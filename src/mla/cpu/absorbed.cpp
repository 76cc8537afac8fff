// SPDX-License-Identifier: Apache-2.0
// Absorbed attention. A row's (token, head) pairs are packed into units of 16 lanes; a unit's keys
// are cut by logical index into splits of 512 and those into tiles. Tiles fold in ascending order
// into a split's state, splits merge in ascending order into the unit's: always, so that it makes
// no difference whether one worker does all of a unit or several share its splits. A row's tiles
// before its tail serve all 16 lanes; tiles with a tree's tail (all tiles of a dense row) are laid
// out per token.
#include <algorithm>

#include "mla/cpu/entries.hpp"
#include "mla/cpu/key_tiles.hpp"

namespace espalier::mla::cpu {
namespace {

constexpr std::int64_t kSplitKeys = 512;
constexpr int kWaveSplits = 4;  // splits per worker between two merges when workers share units
constexpr std::int64_t kStateFloats = kLanes * (kLatent + 2);

LaneState state_at(float* memory) { return {memory, memory + kLanes, memory + 2 * kLanes}; }

struct Worker {
    std::byte* query;  // one unit's lanes, [576][16]
    std::byte* keys;   // one tile of copied keys
    TileScratch* scratch;
    float* part;
    float* total;
};

std::int64_t query_bytes(const TileKernels& kernels) {
    return kKey * kLanes * element_bytes(kernels);
}
std::int64_t tile_bytes(const TileKernels& kernels) {
    return kernels.absorbed_tile * kKey * element_bytes(kernels);
}

// 16 packed rows (token · heads + head) of one row.
struct Unit {
    RowView row;
    std::int64_t first = 0;
    int lanes = 0;
    std::int64_t splits = 0;
};

// A unit's splits that fall into one wave of split tasks.
struct Share {
    Unit unit;
    std::int64_t first_split = 0;
    std::int64_t last_split = 0;  // exclusive
    std::int64_t first_state = 0;
};

class Absorbed {
  public:
    Absorbed(OpContext& context, const TileKernels& kernels, const AbsorbedCall& call)
        : context_(context),
          kernels_(kernels),
          call_(call),
          output_{call.out, call.out_dtype, call.lse, kLatent},
          workers_(context.pool.workers()) {
        memory_ = context.arena.take<std::byte>(per_worker(kernels) * workers_);
        for (std::int32_t b = 0; b < call.rows.rows; ++b) {
            const RowView row = view_row(call.rows, b);
            units_ += units_of(row);
            splits_ += units_of(row) * splits_of(row);
            if (row.tokens > 0) most_splits_ = std::max(most_splits_, splits_of(row));
        }
    }

    void run() {
        // Whole units per worker unless the longest would keep the others waiting for half of the
        // work or more.
        if (workers_ == 1 || most_splits_ <= 1 || most_splits_ * workers_ * 2 <= splits_)
            run_units();
        else
            run_splits();
    }

    static std::int64_t per_worker(const TileKernels& kernels) {
        const std::int64_t bytes = query_bytes(kernels) + tile_bytes(kernels) +
                                   static_cast<std::int64_t>(sizeof(TileScratch)) +
                                   2 * kStateFloats * 4;
        return (bytes + 63) / 64 * 64;
    }

    static std::int64_t wave_floats(int workers) {
        return (kWaveSplits * workers + 1) * kStateFloats;
    }

  private:
    static std::int64_t splits_of(const RowView& row) {
        return (row.keys + kSplitKeys - 1) / kSplitKeys;
    }
    std::int64_t units_of(const RowView& row) const {
        return (row.tokens * call_.heads + kLanes - 1) / kLanes;
    }

    Worker worker(int index) const {
        std::byte* at = memory_ + per_worker(kernels_) * index;
        Worker result{};
        result.scratch = reinterpret_cast<TileScratch*>(at);
        at += sizeof(TileScratch);
        result.part = reinterpret_cast<float*>(at);
        result.total = result.part + kStateFloats;
        at += 2 * kStateFloats * 4;
        result.query = at;
        result.keys = at + query_bytes(kernels_);
        return result;
    }

    Unit make_unit(const RowView& row, std::int64_t index) const {
        const std::int64_t first = index * kLanes;
        const auto lanes =
            static_cast<int>(std::min<std::int64_t>(kLanes, row.tokens * call_.heads - first));
        const std::int64_t last_token = (first + lanes - 1) / call_.heads;
        const std::int64_t keys = row.all_straight() ? row.prefix(last_token) : row.keys;
        return {row, first, lanes, (keys + kSplitKeys - 1) / kSplitKeys};
    }

    // Units are numbered through the rows.
    Unit unit_at(std::int64_t index) const {
        std::int32_t b = 0;
        RowView row = view_row(call_.rows, b);
        for (; index >= units_of(row); row = view_row(call_.rows, ++b)) index -= units_of(row);
        return make_unit(row, index);
    }

    void pack(const Unit& unit, std::byte* query) const {
        const auto row_bytes = kKey * static_cast<std::int64_t>(bytes_of(call_.q_dtype));
        const std::int64_t packed = unit.row.first_token * call_.heads + unit.first;
        for (int lane = 0; lane < unit.lanes; ++lane)
            pack_query(kernels_, call_.q + (packed + lane) * row_bytes, call_.q_dtype, kKey, lane,
                       query);
        for (int lane = unit.lanes; lane < kLanes; ++lane) clear_query(kernels_, kKey, lane, query);
    }

    // Folds split `split` of the unit's keys into `state`.
    void fold_split(const Unit& unit, std::int64_t split, const Worker& mine,
                    const LaneState& state) const {
        reset_state(state, kLatent);
        const std::int64_t straight = unit.row.straight();
        const std::int64_t end = std::min((split + 1) * kSplitKeys, unit.row.keys);
        for (std::int64_t first = split * kSplitKeys; first < end;
             first += kernels_.absorbed_tile) {
            if (unit.row.all_straight() || first + kernels_.absorbed_tile <= straight)
                fold_shared(unit, first, mine, state);
            else
                for (std::int64_t token = unit.first / call_.heads;
                     token <= (unit.first + unit.lanes - 1) / call_.heads; ++token)
                    fold_private(unit, token, first, mine, state);
        }
    }

    std::int64_t token_of(const Unit& unit, int lane) const {
        return (unit.first + lane) / call_.heads;
    }

    void fold_shared(const Unit& unit, std::int64_t first, const Worker& mine,
                     const LaneState& state) const {
        KeyTile tile{};
        std::int64_t most = 0;
        for (int lane = 0; lane < unit.lanes; ++lane) {
            const std::int64_t seen = unit.row.all_straight()
                                          ? unit.row.prefix(token_of(unit, lane)) - first
                                          : kernels_.absorbed_tile;
            const std::int64_t visible = std::clamp<std::int64_t>(seen, 0, kernels_.absorbed_tile);
            tile.visible[lane] = static_cast<std::int32_t>(visible);
            most = std::max(most, visible);
        }
        const KeySource source(kernels_, call_.kv, unit.row);
        for (std::int64_t key = 0; key < most; key += kGroupKeys) {
            const std::int64_t readable =
                std::min<std::int64_t>(kGroupKeys, unit.row.keys - (first + key));
            add_group(tile, source.straight(first + key, readable, group_copy(mine, tile)));
        }
        fold(tile, mine, state);
    }

    // The lanes of one token; the others see nothing of this tile.
    void fold_private(const Unit& unit, std::int64_t token, std::int64_t first, const Worker& mine,
                      const LaneState& state) const {
        std::int32_t slots[kMaxTileKeys];
        const std::int64_t count = unit.row.slots(token, first, kernels_.absorbed_tile, slots);
        KeyTile tile{};
        for (int lane = 0; lane < unit.lanes; ++lane)
            if (token_of(unit, lane) == token)
                tile.visible[lane] = static_cast<std::int32_t>(count);
        const KeySource source(kernels_, call_.kv, unit.row);
        const std::int64_t straight = unit.row.straight();
        for (std::int64_t key = 0; key < count; key += kGroupKeys) {
            const std::int64_t here = std::min<std::int64_t>(kGroupKeys, count - key);
            std::byte* copy = group_copy(mine, tile);
            add_group(tile, first + key + kGroupKeys <= straight
                                ? source.straight(first + key, kGroupKeys, copy)
                                : source.gathered(slots + key, here, copy));
        }
        fold(tile, mine, state);
    }

    std::byte* group_copy(const Worker& mine, const KeyTile& tile) const {
        return mine.keys + tile.groups * kGroupKeys * kKey * element_bytes(kernels_);
    }
    static void add_group(KeyTile& tile, const std::byte* keys) {
        tile.key[tile.groups] = keys;
        tile.value[tile.groups] = keys;
        ++tile.groups;
    }
    void fold(const KeyTile& tile, const Worker& mine, const LaneState& state) const {
        if (tile.groups > 0) kernels_.absorbed(mine.query, call_.scale, tile, *mine.scratch, state);
    }

    void finish(const Unit& unit, const LaneState& state) const {
        const std::int64_t packed = unit.row.first_token * call_.heads + unit.first;
        for (int lane = 0; lane < unit.lanes; ++lane)
            output_.finish(kernels_, state, lane, packed + lane);
    }

    void run_units() {
        context_.pool.run(units_, [this](std::int64_t task, int index) {
            const Worker mine = worker(index);
            const Unit unit = unit_at(task);
            pack(unit, mine.query);
            const LaneState total = state_at(mine.total);
            const LaneState part = state_at(mine.part);
            reset_state(total, kLatent);
            for (std::int64_t split = 0; split < unit.splits; ++split) {
                fold_split(unit, split, mine, split == 0 ? total : part);
                if (split > 0) kernels_.merge(part, total, kLatent);
            }
            finish(unit, total);
        });
    }

    // All splits of all units in order, some per worker at a time; after each wave its units merge.
    // A unit that the wave leaves unfinished is carried over, and there is at most one.
    void run_splits() {
        float* states = context_.arena.take<float>(wave_floats(workers_));
        float* carry = states + kWaveSplits * workers_ * kStateFloats;
        Share* shares = context_.arena.take<Share>(kWaveSplits * workers_);
        std::int32_t row_index = 0;
        std::int64_t unit_index = 0;
        std::int64_t split = 0;
        for (;;) {
            std::int64_t count = 0;
            std::int64_t used = 0;
            while (row_index < call_.rows.rows && used < kWaveSplits * workers_) {
                const RowView row = view_row(call_.rows, row_index);
                if (unit_index >= units_of(row)) {
                    ++row_index;
                    unit_index = 0;
                    continue;
                }
                // A unit without keys still has one, empty, split: its output must be written.
                Unit unit = make_unit(row, unit_index);
                unit.splits = std::max<std::int64_t>(unit.splits, 1);
                const std::int64_t taken =
                    std::min(unit.splits - split, kWaveSplits * workers_ - used);
                shares[count++] = {unit, split, split + taken, used};
                used += taken;
                split += taken;
                if (split == unit.splits) {
                    split = 0;
                    ++unit_index;
                }
            }
            if (count == 0) return;
            run_wave(shares, count, used, states, carry);
        }
    }

    void run_wave(const Share* shares, std::int64_t count, std::int64_t used, float* states,
                  float* carry) {
        context_.pool.run(used, [&](std::int64_t task, int index) {
            std::int64_t at = 0;
            while (at + 1 < count && shares[at + 1].first_state <= task) ++at;
            const Worker mine = worker(index);
            pack(shares[at].unit, mine.query);
            fold_split(shares[at].unit, shares[at].first_split + task - shares[at].first_state,
                       mine, state_at(states + task * kStateFloats));
        });
        context_.pool.run(count, [&](std::int64_t at, int) {
            const Share& share = shares[at];
            float* const own = states + share.first_state * kStateFloats;
            const std::int64_t merged = share.last_split - share.first_split;
            const bool continues = share.first_split > 0;
            const LaneState total = state_at(continues ? carry : own);
            for (std::int64_t i = continues ? 0 : 1; i < merged; ++i)
                kernels_.merge(state_at(own + i * kStateFloats), total, kLatent);
            if (share.last_split == share.unit.splits) finish(share.unit, total);
        });
        const Share& last = shares[count - 1];
        if (last.last_split < last.unit.splits && last.first_split == 0)
            std::copy_n(states + last.first_state * kStateFloats, kStateFloats, carry);
    }

    OpContext& context_;
    const TileKernels& kernels_;
    const AbsorbedCall& call_;
    OutputRows output_;
    int workers_;
    std::byte* memory_ = nullptr;
    std::int64_t units_ = 0;
    std::int64_t splits_ = 0;
    std::int64_t most_splits_ = 0;
};

}  // namespace

void absorbed(OpContext& context, const TileKernels& kernels, const AbsorbedCall& call) {
    const Arena::Mark mark(context.arena);
    const OutputRows output{call.out, call.out_dtype, call.lse, kLatent};
    for (std::int64_t packed = call.rows.q_indptr[call.rows.rows] * std::int64_t{call.heads};
         packed < call.rows.token_end * call.heads; ++packed)
        output.nothing(packed);
    Absorbed(context, kernels, call).run();
}

std::int64_t absorbed_scratch(const TileKernels& kernels, int workers) {
    return Absorbed::per_worker(kernels) * workers + Absorbed::wave_floats(workers) * 4 +
           kWaveSplits * workers * static_cast<std::int64_t>(sizeof(Share)) + 3 * 64;
}

}  // namespace espalier::mla::cpu
