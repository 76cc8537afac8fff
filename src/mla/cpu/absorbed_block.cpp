// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/absorbed_block.hpp"

#include <algorithm>
#include <utility>

namespace espalier::mla::cpu {
namespace {

constexpr std::int64_t states_bytes(const KeyDims& dims) {
    return kBlockUnits * state_floats_of(dims) * 4;
}

std::int64_t tile_bytes(const TileKernels& kernels, const KeyDims& dims) {
    return kernels.absorbed_tile * dims.key() * element_bytes(kernels);
}

}  // namespace

AbsorbedPlan::AbsorbedPlan(const TileKernels& kernels_, const AbsorbedCall& call_)
    : kernels(kernels_),
      call(call_),
      dims(call.kv.dims),
      fold(kernels.absorbed[index_of(dims)]),
      state_floats(state_floats_of(dims)),
      query_bytes(query_block_bytes(dims.key())),
      elements(elements_of(kernels, call.kv.format, call.kv.scale, call.q_dtype)),
      scores(plan_scores(static_cast<int>(dims.key() / 2), 0,
                         elements.token_scales ? static_cast<int>(dims.latent / 2) : 0,
                         elements.query_terms)),
      output{call.out, call.out_dtype, call.lse, dims.latent, elements.key_scale} {
    const double query_scale =
        call.q_dtype == DType::e4m3 ? static_cast<double>(call.q_scale) : 1.0;
    score_scale = static_cast<float>(static_cast<double>(call.scale) *
                                     static_cast<double>(elements.key_scale) * query_scale);
}

BlockScratch::BlockScratch(const TileKernels& kernels, const KeyDims& dims, std::byte* memory)
    : packed(-1), buffer(0), ready_first(-1), ready_groups(0) {
    const auto take = [&memory](std::int64_t bytes) {
        return std::exchange(memory, memory + bytes);
    };
    tile = reinterpret_cast<TileScratch*>(take(sizeof(TileScratch)));
    queries = take(kBlockUnits * query_block_bytes(dims.key()));
    for (int i = 0; i < 2; ++i) {
        keys[i] = take(tile_bytes(kernels, dims));
        scales[i] = reinterpret_cast<float*>(take(kMaxTileKeys * 4));
    }
    part = reinterpret_cast<float*>(take(states_bytes(dims)));
    total = reinterpret_cast<float*>(take(states_bytes(dims)));
}

std::int64_t BlockScratch::bytes(const TileKernels& kernels, const KeyDims& dims) {
    static_assert(query_block_bytes(1) % 64 == 0 && kLanes * 4 % 64 == 0);
    return static_cast<std::int64_t>(sizeof(TileScratch)) +
           kBlockUnits * query_block_bytes(dims.key()) +
           2 * (tile_bytes(kernels, dims) + kMaxTileKeys * 4) + 2 * states_bytes(dims);
}

BlockFold::BlockFold(const AbsorbedPlan& plan, const Block& block, BlockScratch& mine)
    : plan_(plan),
      block_(block),
      mine_(mine),
      source_(plan.kernels, plan.elements, plan.call.kv, block_.row) {
    reach_ = block_.row.all_straight() ? block_.row.prefix(token_of(block_.rows - 1))
                                       : block_.row.straight();
    const std::int64_t packed = block_.row.first_token * plan_.call.heads + block_.first;
    if (mine_.packed == packed) return;
    mine_.packed = packed;
    mine_.ready_first = -1;
    const std::int64_t columns = plan_.dims.key();
    const auto row_bytes = columns * static_cast<std::int64_t>(bytes_of(plan_.call.q_dtype));
    for (int unit = 0; unit < block_.units(); ++unit)
        pack_queries(plan_.kernels, plan_.call.q + (packed + unit * kLanes) * row_bytes,
                     plan_.call.q_dtype, columns, columns, block_.lanes(unit),
                     mine_.queries + unit * plan_.query_bytes);
}

void BlockFold::fold_split(std::int64_t split, std::int64_t stride, float* states) {
    split_end_ = (split + 1) * kSplitKeys;
    jump_ = (stride - 1) * kSplitKeys;
    std::fill_n(fresh_, kBlockUnits, true);
    const std::int64_t tile = plan_.kernels.absorbed_tile;
    const std::int64_t straight = block_.row.straight();
    const std::int64_t end = std::min(split_end_, block_.row.most_keys());
    for (std::int64_t first = split * kSplitKeys; first < end; first += tile) {
        if (block_.row.all_straight() || first + tile <= straight) {
            fold_shared(first, states);
            continue;
        }
        for (std::int64_t token = token_of(0); token <= token_of(block_.rows - 1); ++token)
            fold_private(token, first, states);
    }
    for (int unit = 0; unit < block_.units(); ++unit)
        if (fresh_[unit]) reset_state(plan_.state_at(states, unit), plan_.dims.latent);
}

// Number of keys of a shared tile that packed row `row` of the block sees.
std::int64_t BlockFold::seen_by(int row, std::int64_t first) const {
    const std::int64_t tile = plan_.kernels.absorbed_tile;
    if (!block_.row.all_straight()) return tile;
    return std::clamp<std::int64_t>(block_.row.prefix(token_of(row)) - first, 0, tile);
}

void BlockFold::fold_shared(std::int64_t first, float* states) {
    const int ready = mine_.ready_first == first ? mine_.ready_groups : 0;
    if (ready > 0) mine_.buffer ^= 1;
    KeyTile tile = empty_tile();
    // The last token sees the most.
    const std::int64_t most = seen_by(block_.rows - 1, first);
    for (std::int64_t key = 0; key < most; key += kGroupKeys, ++tile.groups) {
        const std::int64_t readable =
            std::min<std::int64_t>(kGroupKeys, block_.row.keys - (first + key));
        std::byte* copy = copy_of(tile.groups, mine_.buffer);
        tile.key[tile.groups] = tile.value[tile.groups] =
            tile.groups < ready ? copy
                                : source_.straight(first + key, readable, copy,
                                                   scales_of(tile.groups, mine_.buffer));
    }
    fetch_ahead(first, tile);
    for (int unit = 0; unit < block_.units(); ++unit) {
        std::int64_t unit_most = 0;
        for (int lane = 0; lane < block_.lanes(unit); ++lane) {
            unit_most = seen_by(unit * kLanes + lane, first);
            tile.visible[lane] = static_cast<std::int32_t>(unit_most);
        }
        tile.groups = static_cast<int>((unit_most + kGroupKeys - 1) / kGroupKeys);
        tile.lanes = block_.lanes(unit);
        std::fill(tile.visible + tile.lanes, tile.visible + kLanes, 0);
        if (tile.groups == 0) continue;
        if (tile.ahead_step != 0) widen_ahead(first + plan_.kernels.absorbed_tile, tile);
        fold(tile, unit, states);
        tile.ahead_step = 0;  // once is enough
        std::fill_n(tile.widening, kMaxGroups, nullptr);
    }
}

// Lets the tile's fold widen the first groups of the tile at `next`, as many as it scores itself.
void BlockFold::widen_ahead(std::int64_t next, KeyTile& tile) {
    if (!plan_.elements.codes || tile.lanes <= kLanes / 2) return;
    if (next >= split_end_) next += jump_;
    const int other = mine_.buffer ^ 1;
    int group = 0;
    for (; group < tile.groups && next + (group + 1) * kGroupKeys <= reach_; ++group) {
        const std::int64_t keys = next + group * kGroupKeys;
        std::byte* const copy = copy_of(group, other);
        float* const scales = scales_of(group, other);
        if (!source_.in_one_page(keys)) {
            source_.straight(keys, kGroupKeys, copy, scales);
            continue;
        }
        widening_[group] = source_.widening(keys, copy, scales);
        tile.widening[group] = &widening_[group];
    }
    mine_.ready_first = next;
    mine_.ready_groups = group;
}

// Keys that are read in place are fetched two groups ahead (kernels may score two at once); codes,
// two groups before they are widened, which is a tile before they are scored.
void BlockFold::fetch_ahead(std::int64_t first, KeyTile& tile) const {
    const std::int64_t lead =
        2 * kGroupKeys + (plan_.elements.in_place ? 0 : plan_.kernels.absorbed_tile);
    for (int group = 0; group < tile.groups; ++group) {
        std::int64_t next = first + group * kGroupKeys + lead;
        if (next >= split_end_) next += jump_;
        tile.ahead[group] = tile.key[group];
        if (next < reach_) source_.lines(next, tile.ahead[group], tile.ahead_rope[group]);
    }
    tile.ahead_step = source_.line_step();
}

// The lanes of one token; the others see nothing of this tile.
void BlockFold::fold_private(std::int64_t token, std::int64_t first, float* states) {
    const std::int64_t straight = block_.row.straight();
    std::int32_t slots[kMaxTileKeys];
    const std::int64_t count = block_.row.slots(token, first, plan_.kernels.absorbed_tile, slots,
                                                cursors_[token - token_of(0)]);
    if (count == 0) return;
    KeyTile tile = empty_tile();
    for (std::int64_t key = 0; key < count; key += kGroupKeys, ++tile.groups) {
        const std::int64_t here = std::min<std::int64_t>(kGroupKeys, count - key);
        std::byte* copy = copy_of(tile.groups, mine_.buffer);
        float* scales = scales_of(tile.groups, mine_.buffer);
        const std::byte* group = first + key + kGroupKeys <= straight
                                     ? source_.straight(first + key, kGroupKeys, copy, scales)
                                     : source_.gathered(slots + key, here, copy, scales);
        tile.ahead[tile.groups] = tile.key[tile.groups] = tile.value[tile.groups] = group;
    }
    // The token's packed rows within the block.
    const std::int64_t heads = plan_.call.heads;
    const auto begin = static_cast<int>(std::max<std::int64_t>(token * heads - block_.first, 0));
    const auto end =
        static_cast<int>(std::min<std::int64_t>((token + 1) * heads - block_.first, block_.rows));
    for (int unit = begin / kLanes; unit * kLanes < end; ++unit) {
        tile.first_lane = std::max(begin - unit * kLanes, 0);
        tile.lanes = std::min(end - unit * kLanes, kLanes) - tile.first_lane;
        std::fill_n(tile.visible, kLanes, 0);
        std::fill_n(tile.visible + tile.first_lane, tile.lanes, static_cast<std::int32_t>(count));
        fold(tile, unit, states);
    }
}

KeyTile BlockFold::empty_tile() const {
    KeyTile tile{};
    if (plan_.elements.token_scales)
        tile.score_scale = tile.value_scale = mine_.scales[mine_.buffer];
    return tile;
}
std::byte* BlockFold::copy_of(int group, int buffer) const {
    return mine_.keys[buffer] +
           group * kGroupKeys * plan_.dims.key() * element_bytes(plan_.kernels);
}
float* BlockFold::scales_of(int group, int buffer) const {
    return mine_.scales[buffer] + group * kGroupKeys;
}

// A state begins with the first tile folded into it. Where that writes all of `out`, zeroing it
// first would only wait for 32 KB of lines that another core merged last.
void BlockFold::fold(KeyTile& tile, int unit, float* states) {
    const LaneState state = plan_.state_at(states, unit);
    tile.fresh = fresh_[unit] && plan_.kernels.bf16_elements && tile.lanes > kLanes / 2;
    if (fresh_[unit]) reset_state(state, tile.fresh ? 0 : plan_.dims.latent);
    fresh_[unit] = false;
    plan_.fold({mine_.queries + unit * plan_.query_bytes, plan_.score_scale, &plan_.scores}, tile,
               *mine_.tile, state);
}

void finish_lanes(const AbsorbedPlan& plan, const Block& block, float* states, int unit, int first,
                  int last) {
    const std::int64_t packed =
        block.row.first_token * plan.call.heads + block.first + unit * kLanes;
    for (int lane = first; lane < std::min(last, block.lanes(unit)); ++lane)
        plan.output.finish(plan.kernels, plan.state_at(states, unit), lane, packed + lane);
}

}  // namespace espalier::mla::cpu
