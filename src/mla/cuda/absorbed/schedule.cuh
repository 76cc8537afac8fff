// SPDX-License-Identifier: Apache-2.0
// Who computes what, found on the device from lengths and masks (plan.cu writes it down once per
// step; all layers share it). Nothing is read by the host, so a captured graph may be replayed with
// other lengths.
//
// Even: every row is cut into pieces of nearly equal length, one piece to a part. Taken when that
//   costs at most 8 % over a perfect balance, since no part then starts twice.
// Line: otherwise the tiles of all rows in one line, cut into equal parts anywhere.
// Invariant: invariant_schedule.cuh.
#pragma once

#include "mla/cuda/absorbed/absorbed_params.hpp"

namespace espalier::mla::cuda {

// Division by the number of heads, exact below 2^25 packed rows.
__device__ __forceinline__ int token_of(const AbsorbedParams& p, int packed) {
    return static_cast<int>(static_cast<std::uint64_t>(packed) * p.heads_inverse >> 32);
}

struct RowShape {
    int first_token = 0;
    int tokens = 0;
    int keys = 0;
    MaskKind mask = MaskKind::full;
};

// Keys are those of logical index 0, 1, …: slots from first_slot on, of which a row has one fewer.
// Lengths are data: whatever they say, they stay inside the capacities.
__device__ inline RowShape row_shape(const AbsorbedParams& p, int row) {
    RowShape shape;
    shape.first_token = p.rows.q_indptr[row];
    const int end = min(p.rows.q_indptr[row + 1], static_cast<int>(p.rows.token_end));
    shape.tokens = max(end - shape.first_token, 0);
    if (shape.first_token < 0 || shape.tokens > p.rows.max_q_len) shape.tokens = 0;
    const long long reach = p.rows.block_stride * p.kv.page_tokens;
    shape.keys = min(max(p.rows.kv_len[row], 0), p.rows.max_kv_len);
    if (shape.keys > reach) shape.keys = static_cast<int>(reach);
    if (table_of(p.rows, row) < 0) shape.keys = 0;
    shape.keys = max(shape.keys - p.rows.first_slot, 0);
    shape.mask = p.rows.mask[row];
    const int packed = shape.tokens * p.heads;
    if (packed < p.least_packed || packed > p.most_packed) shape.tokens = 0;
    return shape;
}

__device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Number of last slots that a tree row's words speak of.
__device__ inline int tail_slots(const AbsorbedParams& p, int row, int tokens) {
    const int tail = p.rows.tail_len == nullptr ? tokens : p.rows.tail_len[row];
    return min(max(tail, 0), static_cast<int>(kMaxTail));
}
// A token's word, without bits that lie behind the tail.
__device__ inline std::uint64_t tail_word(const AbsorbedParams& p, int token, int tail) {
    if (p.rows.words == nullptr || tail == 0) return 0;
    return p.rows.words[token] & ~std::uint64_t{0} >> (kMaxTail - tail);
}

// Slots of a tree row that all its tokens see: those before the tail.
__device__ inline int history_keys(const AbsorbedParams& p, int row, const RowShape& shape) {
    const int tail = tail_slots(p, row, shape.tokens);
    if (p.rows.dcp_world == 1) return max(shape.keys - tail, 0);
    const long long global = static_cast<long long>(p.rows.global_kv_len[row]) - tail;
    const long long world = p.rows.dcp_world;
    const long long local = (global - p.rows.dcp_rank + world - 1) / world;
    return static_cast<int>(min(max(local, 0ll), static_cast<long long>(shape.keys)));
}

// Byte `key` of a dense token's mask, which speaks of slots below first_slot too; what lies outside
// the mask is hidden.
__device__ inline bool dense_visible(const AbsorbedParams& p, int row, int keys, int token,
                                     int key) {
    if (p.rows.custom_mask_offset == nullptr || p.rows.custom_mask == nullptr) return false;
    const auto offset = static_cast<std::uint64_t>(p.rows.custom_mask_offset[row]);
    const int first = p.rows.first_slot;
    const std::uint64_t index =
        offset + static_cast<std::uint64_t>(token) * (keys + first) + (key + first);
    return index < static_cast<std::uint64_t>(p.rows.custom_mask_len) &&
           p.rows.custom_mask[index] != 0;
}

__device__ inline int row_blocks(const AbsorbedParams& p, const RowShape& shape) {
    return (shape.tokens * p.heads + (1 << p.block_shift) - 1) >> p.block_shift;
}

__device__ inline Item row_item(const AbsorbedParams& p, int row, const RowShape& shape) {
    Item item{};
    item.row = row;
    item.table = static_cast<int>(table_of(p.rows, row));
    item.first_token = shape.first_token;
    item.tokens = shape.tokens;
    item.keys = shape.keys;
    item.mask = static_cast<int>(shape.mask);
    item.gathered = -1;
    item.run = 1;
    return item;
}

// Number of leading keys that every column of the item sees.
__device__ inline int free_keys(const AbsorbedParams& p, const Item& item, const RowShape& shape) {
    switch (shape.mask) {
        case MaskKind::full:
            return shape.keys;
        case MaskKind::causal: {
            const int token = token_of(p, item.row_first);
            if (p.rows.dcp_world == 1) return max(shape.keys - (shape.tokens - 1) + token, 0);
            const long long world = p.rows.dcp_world;
            const long long bound =
                static_cast<long long>(p.rows.global_kv_len[item.row]) - (shape.tokens - 1) + token;
            const long long local = (bound - p.rows.dcp_rank + world - 1) / world;
            return static_cast<int>(min(max(local, 0ll), static_cast<long long>(shape.keys)));
        }
        case MaskKind::tree:
            return history_keys(p, item.row, shape);
        case MaskKind::dense:
            return 0;
    }
    return 0;
}

// The item's columns are packed rows `first` … `end` - 1 of its row.
__device__ inline void place_columns(const AbsorbedParams& p, Item& item, const RowShape& shape,
                                     int first, int end) {
    item.row_first = first;
    item.packed_first = shape.first_token * p.heads + first;
    item.columns = end - first;
    item.free_keys = free_keys(p, item, shape);
}

// Even: pieces. Line: tiles and what starting a row costs.
__device__ inline int row_cost(const AbsorbedParams& p, const Partition& partition,
                               const RowShape& shape) {
    if (shape.tokens == 0 || shape.keys == 0) return 0;
    const int tiles = ceil_div(shape.keys, kTileKeys);
    if (partition.piece > 0) return ceil_div(tiles, partition.piece);
    return tiles + p.row_cost;
}

template <typename T>
__device__ inline T warp_sum(T value) {
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}
__device__ inline int warp_prefix(int value) {  // inclusive
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(~0u, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

// Rows that a lane sums up: a run of them.
__device__ inline int rows_per_lane(const AbsorbedParams& p) { return ceil_div(p.rows.rows, 32); }

__device__ inline int lane_cost(const AbsorbedParams& p, const Partition& partition, int lane) {
    const int first = lane * rows_per_lane(p);
    const int end = min(first + rows_per_lane(p), p.rows.rows);
    int sum = 0;
#pragma unroll 1
    for (int row = first; row < end; ++row) sum += row_cost(p, partition, row_shape(p, row));
    return sum;
}

// The whole warp.
__device__ inline Partition make_partition(const AbsorbedParams& p) {
    const int lane = threadIdx.x % 32;
    Partition partition;
    int tiles = 0;
    int most = 0;
    int busy = 0;  // rows with work
    const int end = min((lane + 1) * rows_per_lane(p), p.rows.rows);
#pragma unroll 1
    for (int row = lane * rows_per_lane(p); row < end; ++row) {
        const int cost = row_cost(p, partition, row_shape(p, row)) - p.row_cost;
        if (cost <= 0) continue;
        tiles += cost;
        most = max(most, cost);
        ++busy;
    }
    tiles = warp_sum(tiles);
    busy = warp_sum(busy);
    most = __reduce_max_sync(~0u, most);
    const int balanced = max(ceil_div(tiles, p.parts), p.least_tiles);
    if (busy > 0 && busy <= p.parts) {
        const int piece = max(ceil_div(most, p.parts / busy), p.least_tiles);
        if (piece * 25 <= balanced * 27) partition.piece = piece;
    }
    partition.length = 1;
    if (partition.piece > 0) {
        partition.total = warp_sum(lane_cost(p, partition, lane));
    } else {
        partition.total = tiles + busy * p.row_cost;
        partition.length = max(ceil_div(partition.total, p.parts), p.least_tiles);
    }
    return partition;
}

// The whole warp.
__device__ inline PartPlan plan_part(const AbsorbedParams& p, const Partition& partition,
                                     int part) {
    const int lane = threadIdx.x % 32;
    PartPlan share;
    share.even = partition.piece > 0;
    share.begin = min(part * partition.length, partition.total);
    share.end = min(share.begin + partition.length, partition.total);
    const int mine = lane_cost(p, partition, lane);
    const int before = warp_prefix(mine) - mine;
    const unsigned owner = __ballot_sync(~0u, before <= share.begin && share.begin < before + mine);
    if (owner == 0) {  // nothing left for this part
        share.end = share.begin;
        return share;
    }
    const int lane_of_row = __ffs(static_cast<int>(owner)) - 1;
    share.start = __shfl_sync(~0u, before, lane_of_row);
#pragma unroll 1
    for (share.row = lane_of_row * rows_per_lane(p);; ++share.row) {
        const RowShape shape = row_shape(p, share.row);
        const int cost = row_cost(p, partition, shape);
        if (share.begin >= share.start + cost) {
            share.start += cost;
            continue;
        }
        if (partition.piece == 0) return share;
        const long long piece = share.begin - share.start;
        const int tiles = ceil_div(shape.keys, kTileKeys);
        share.item = row_item(p, share.row, shape);
        share.item.tile_begin = static_cast<int>(piece * tiles / cost);
        share.item.tile_end = static_cast<int>((piece + 1) * tiles / cost);
        place_columns(p, share.item, shape, 0, min(shape.tokens * p.heads, 1 << p.block_shift));
        share.item.slot = cost == 1 ? -1 : part * p.max_blocks * 2;
        return share;
    }
}

// Facts of a row that the merge needs; zero tokens if there is nothing to merge.
__device__ inline MergeRow merge_row(const AbsorbedParams& p, const Partition& partition,
                                     const RowShape& shape, int start, int cost) {
    MergeRow merge;
    if (shape.tokens == 0) return merge;
    merge.first_token = shape.first_token;
    merge.blocks = row_blocks(p, shape);
    merge.first = start;
    if (partition.piece > 0) {
        merge.splits = cost;
    } else if (cost > 0) {
        const int first_tile = start + p.row_cost;
        merge.first = first_tile / partition.length;
        merge.splits = (start + cost - 1) / partition.length - merge.first + 1;
        merge.place = first_tile > merge.first * partition.length ? 1 : 0;
    }
    if (merge.splits != 1) merge.tokens = shape.tokens;  // no splits: zeros, written there
    return merge;
}

// The whole warp. Also counts them.
__device__ inline void list_merges(const AbsorbedParams& p, Partition& partition) {
    const int lane = threadIdx.x % 32;
    int before = 0;
    int merges = 0;
#pragma unroll 1
    for (int base = 0; base < p.rows.rows; base += 32) {
        const int row = base + lane;
        RowShape shape;
        int cost = 0;
        if (row < p.rows.rows) {
            shape = row_shape(p, row);
            cost = row_cost(p, partition, shape);
        }
        const int sum = warp_prefix(cost);
        MergeRow merge;
        if (row < p.rows.rows) merge = merge_row(p, partition, shape, before + sum - cost, cost);
        const unsigned votes = __ballot_sync(~0u, merge.tokens > 0);
        if (merge.tokens > 0) p.merge_rows[merges + __popc(votes & ((1u << lane) - 1))] = merge;
        before += __shfl_sync(~0u, sum, 31);
        merges += __popc(votes);
    }
    partition.merges = merges;
}

}  // namespace espalier::mla::cuda
