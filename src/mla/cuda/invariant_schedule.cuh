// SPDX-License-Identifier: Apache-2.0
// Who computes what where a token's bits may depend on its query and its visible keys alone. Keys
// are cut by logical index into splits of split_keys(n), n the number of keys that the token sees:
// the same in every batch, tree and chunking. A row is one group of tokens, or several where that
// length differs among them; a group is blocks of packed rows, a block is its splits. All splits of
// all blocks lie in one line, block after block, and parts are cut from it between splits.
//
// Where every split of every block has a part to itself even if blocks have 16 or 32 packed rows,
// they do: more parts have fewer rows each to store and merge, and of a tree fewer paths. (Not
// where long splits are gone through for nothing but that: 3 % slower, keys being read several
// times.)
//
// Each split's result is rounded to 16 bits, also where it is the only one (partial.cuh), and
// splits merge in ascending order (invariant_merge.cuh): where parts are cut changes no bits.
#pragma once

#include "mla/cuda/schedule.cuh"

namespace espalier::mla::cuda {

// Tokens of one row that are computed together.
struct Group {
    int first = 0, end = 0;  // packed rows of the row
    int tiles = 1;           // of a split
    int splits = 1;
    int history = -1;  // a tree's tokens: keys that all of them see
    int alone = -1;    // the one token of the group, whose keys are gathered
};

// Local keys below a bound that counts those of all ranks.
__device__ inline int keys_below(const AbsorbedParams& p, const RowShape& shape, long long bound) {
    const long long world = p.rows.dcp_world;
    const long long local = world == 1 ? bound : (bound - p.rows.dcp_rank + world - 1) / world;
    return static_cast<int>(min(max(local, 0ll), static_cast<long long>(shape.keys)));
}
__device__ inline long long all_keys(const AbsorbedParams& p, int row, const RowShape& shape) {
    return p.rows.dcp_world == 1 ? shape.keys : p.rows.global_kv_len[row];
}

// How many keys token i of a full or causal row sees.
__device__ inline int straight_keys(const AbsorbedParams& p, int row, const RowShape& shape,
                                    int i) {
    if (shape.mask == MaskKind::full) return shape.keys;
    return keys_below(p, shape, all_keys(p, row, shape) - (shape.tokens - 1) + i);
}

// Splits of this many keys and more are long. (Their merge has groups of two quads: a matter of the
// token's own number of keys, as their length is.)
inline constexpr int kLongSplit = 512;
__device__ inline int split_tiles(int visible) { return split_keys(visible) / kTileKeys; }
__device__ inline int splits_of(int visible, int tiles) {
    return max(ceil_div(visible, tiles * kTileKeys), 1);
}
// A row's groups are numbered. full: one; causal: one per length of splits; tree: one, or one per
// token if its words could lead to different lengths; dense: one per token.
class RowGroups {
  public:
    __device__ RowGroups(const AbsorbedParams& p, int row, const RowShape& shape)
        : p_(p), row_(row), shape_(shape) {
        if (shape.tokens == 0) return;
        count_ = 1;
        if (shape.keys == 0) return;
        if (shape.mask == MaskKind::causal) {
            first_rule_ = split_rule_of(straight_keys(p, row, shape, 0));
            count_ =
                split_rule_of(straight_keys(p, row, shape, shape.tokens - 1)) - first_rule_ + 1;
        } else if (shape.mask == MaskKind::tree) {
            history_ = history_keys(p, row, shape);
            reach_ = min(shape.keys, history_ + static_cast<int>(kMaxTail));
            alone_ = split_rule_of(history_) != split_rule_of(reach_);
            if (alone_) count_ = shape.tokens;
        } else if (shape.mask == MaskKind::dense && p.rows.custom_mask != nullptr) {
            count_ = shape.tokens;
            reach_ = shape.keys;
        }
        if (shape.mask == MaskKind::dense) alone_ = true;
    }
    __device__ int count() const { return count_; }

    __device__ Group at(int index) const {
        Group group;
        group.end = shape_.tokens * p_.heads;
        if (shape_.keys == 0 || count_ == 0) return group;
        if (alone_) {
            // Without a mask nothing is visible, and nothing is counted.
            if (p_.rows.custom_mask == nullptr && shape_.mask == MaskKind::dense) return group;
            group.first = index * p_.heads;
            group.end = group.first + p_.heads;
            group.alone = index;
            group.tiles = split_tiles(reach_);
            group.splits = max(static_cast<int>(most_splits(reach_)), 1);
            return group;
        }
        int most = shape_.keys;
        if (shape_.mask == MaskKind::causal) {
            const int rule = first_rule_ + index;
            group.first = token_above(rule - 1) * p_.heads;
            group.end = token_above(rule) * p_.heads;
            if (group.first == group.end) return group;
            most = straight_keys(p_, row_, shape_, token_of(p_, group.end - 1));
        } else if (shape_.mask == MaskKind::tree) {
            group.history = history_;
            most = reach_;
        }
        group.tiles = split_tiles(most);
        group.splits = splits_of(most, group.tiles);
        return group;
    }

    // Groups of the row that are alike but for the token.
    __device__ bool alike() const { return alone_ && count_ > 1; }

  private:
    // The first token of a causal row that sees more keys than the rule is for.
    __device__ int token_above(int rule) const {
        if (rule < first_rule_) return 0;
        const long long most = split_rule(rule).most_keys;
        if (shape_.keys <= most) return shape_.tokens;
        const long long token = most * p_.rows.dcp_world + p_.rows.dcp_rank -
                                all_keys(p_, row_, shape_) + shape_.tokens;
        return static_cast<int>(min(max(token, 0ll), static_cast<long long>(shape_.tokens)));
    }

    const AbsorbedParams& p_;
    const int row_;
    const RowShape& shape_;
    int count_ = 0;
    int first_rule_ = 0;
    int history_ = 0, reach_ = 0;
    bool alone_ = false;
};

// The smallest block is a slot's 16 packed rows, the next has 32.
inline constexpr int kLeastShift = 4;
inline constexpr int kSmallBlocks = 2;
__device__ inline int group_blocks(const Group& group, int block_shift) {
    return (group.end - group.first + (1 << block_shift) - 1) >> block_shift;
}
// Slots for partial results.
__device__ inline int group_slots(const Group& group) {
    if (group.splits == 1) return 0;
    return ceil_div(group.end - group.first, kStripRows) * group.splits;
}

// The line, in tiles: a split costs one more, and a tree's last one a tile for each path: about
// half as many as there are tokens.
__device__ inline int split_cost(const Group& group) { return group.tiles + 1; }
__device__ inline int block_cost(const AbsorbedParams& p, const Group& group) {
    const int paths = group.history < 0 ? 0 : max((1 << p.block_shift) / (2 * p.heads), 1);
    return group.splits * split_cost(group) + paths;
}
// Even: splits of a piece, and pieces of a block.
__device__ inline int piece_splits(const Partition& partition, const Group& group) {
    return max(partition.piece / split_cost(group), 1);
}
__device__ inline int block_pieces(const Partition& partition, const Group& group) {
    return ceil_div(group.splits, piece_splits(partition, group));
}
__device__ inline int block_length(const AbsorbedParams& p, const Partition& partition,
                                   const Group& group) {
    return partition.piece > 0 ? block_pieces(partition, group) : block_cost(p, group);
}

struct RowWork {
    int line = 0;
    int slots = 0;
    int blocks = 0;
    int splits[kSmallBlocks] = {};           // of all blocks, if they were small
    int most_splits = 0, cost_of_split = 1;  // of the block that costs most
};
__device__ inline RowWork row_work(const AbsorbedParams& p, const Partition& partition, int row) {
    const RowShape shape = row_shape(p, row);
    const RowGroups groups(p, row, shape);
    const int times = groups.alike() ? groups.count() : 1;
    RowWork work;
#pragma unroll 1
    for (int index = 0; index < groups.count(); index += times) {
        const Group group = groups.at(index);
        const int blocks = group_blocks(group, partition.block_shift);
        if (blocks == 0) continue;
        const bool large = group.history < 0 && group.tiles * kTileKeys >= kLongSplit;
        for (int i = 0; i < kSmallBlocks; ++i) {
            const int small = group_blocks(group, kLeastShift + i);
            work.splits[i] += large && small > blocks ? p.parts + 1 : times * small * group.splits;
        }
        work.line += times * blocks * block_length(p, partition, group);
        work.slots += times * group_slots(group);
        work.blocks += times * blocks;
        if (group.splits * split_cost(group) > work.most_splits * work.cost_of_split) {
            work.most_splits = group.splits;
            work.cost_of_split = split_cost(group);
        }
    }
    return work;
}

// What lies before a row: of the line, and of the slots.
struct Before {
    int line = 0;
    int slots = 0;
};
__device__ inline Before lane_work(const AbsorbedParams& p, const Partition& partition, int lane) {
    const int first = lane * rows_per_lane(p);
    const int end = min(first + rows_per_lane(p), p.rows.rows);
    Before sum;
#pragma unroll 1
    for (int row = first; row < end; ++row) {
        const RowWork work = row_work(p, partition, row);
        sum.line += work.line;
        sum.slots += work.slots;
    }
    return sum;
}

// What a call's rows add up to, the same in all lanes.
struct CallWork {
    long long line = 0, slots = 0;
    long long splits[kSmallBlocks] = {};
    int blocks = 0;
    int most_splits = 0, cost_of_split = 1;
};
__device__ inline CallWork call_work(const AbsorbedParams& p, const Partition& partition) {
    const int lane = threadIdx.x % 32;
    CallWork sum;
    RowWork most;
    const int end = min((lane + 1) * rows_per_lane(p), p.rows.rows);
#pragma unroll 1
    for (int row = lane * rows_per_lane(p); row < end; ++row) {
        const RowWork work = row_work(p, partition, row);
        sum.line += work.line;
        sum.slots += work.slots;
        sum.blocks += work.blocks;
        for (int i = 0; i < kSmallBlocks; ++i) sum.splits[i] += work.splits[i];
        if (work.most_splits * work.cost_of_split > most.most_splits * most.cost_of_split)
            most = work;
    }
    sum.line = warp_sum(sum.line);
    sum.slots = warp_sum(sum.slots);
    sum.blocks = warp_sum(sum.blocks);
    for (long long& splits : sum.splits) splits = warp_sum(splits);
    const int cost = most.most_splits * most.cost_of_split;
    const int largest = __reduce_max_sync(~0u, cost);
    const int owner = __ffs(static_cast<int>(__ballot_sync(~0u, cost == largest))) - 1;
    sum.most_splits = __shfl_sync(~0u, most.most_splits, owner);
    sum.cost_of_split = __shfl_sync(~0u, most.cost_of_split, owner);
    return sum;
}

// The whole warp. Small blocks if each of their splits has a part. Otherwise pieces of equal
// length, one to a part, if that costs at most 8 % over perfect balance: queries come once, and
// merges wait for no part that has other work.
__device__ inline Partition make_invariant_partition(const AbsorbedParams& p) {
    Partition partition;
    partition.block_shift = p.block_shift;
    const CallWork work = call_work(p, partition);
    // Capacities leave room for all rows that follow one another. Where they do not, nothing is
    // computed.
    constexpr long long kMost = 0x7fffffff;
    if (work.line > kMost || work.slots > kMost) return partition;
    partition.slots = static_cast<int>(work.slots);
    for (int i = 0; i < kSmallBlocks && kLeastShift + i < p.block_shift; ++i) {
        if (work.splits[i] > p.parts) continue;
        partition.block_shift = kLeastShift + i;
        partition.piece = 1;  // a split
        partition.total = static_cast<int>(work.splits[i]);
        return partition;
    }
    partition.total = static_cast<int>(work.line);
    partition.length = static_cast<int>(max((work.line + p.parts - 1) / p.parts, 1ll));
    if (work.blocks == 0 || work.blocks > p.parts) return partition;
    const long long piece = ceil_div(work.most_splits, p.parts / work.blocks) * work.cost_of_split;
    if (piece * 25 > partition.length * 27ll && piece != work.cost_of_split) return partition;
    Partition even = partition;
    even.piece = static_cast<int>(piece);
    even.length = 1;
    even.total = warp_sum(lane_work(p, even, threadIdx.x % 32).line);
    return even.total > p.parts ? partition : even;
}

// The item that all splits of block `block` of 2^block_shift packed rows are made from.
__device__ inline Item block_item(const AbsorbedParams& p, int row, const RowShape& shape,
                                  const Group& group, int block, int block_shift, int slot) {
    Item item = row_item(p, row, shape);
    const int first = group.first + (block << block_shift);
    place_columns(p, item, shape, first, min(group.end, first + (1 << block_shift)));
    item.splits = group.splits;
    item.gathered = group.alone;
    item.base = slot + (block << (block_shift - kLeastShift)) * group.splits;
    return item;
}
// Tiles that some token of a full or causal item sees.
__device__ inline int straight_tiles(const AbsorbedParams& p, const RowShape& shape,
                                     const Item& item) {
    const int token = token_of(p, item.row_first + item.columns - 1);
    return ceil_div(straight_keys(p, item.row, shape, token), kTileKeys);
}

// The whole warp. What the part begins with; `mine`: this lane's rows.
__device__ inline PartPlan plan_invariant_part(const AbsorbedParams& p, const Partition& partition,
                                               const Before& mine, int part) {
    PartPlan share;
    const int begin = min(part * partition.length, partition.total);
    const int end = min(begin + partition.length, partition.total);
    const int before = warp_prefix(mine.line) - mine.line;
    const int slots_before = warp_prefix(mine.slots) - mine.slots;
    const unsigned owner = __ballot_sync(~0u, before <= begin && begin < before + mine.line);
    if (owner == 0 || begin >= end) return share;  // nothing left for this part
    const int lane_of_row = __ffs(static_cast<int>(owner)) - 1;
    int start = __shfl_sync(~0u, before, lane_of_row);
    share.slot = __shfl_sync(~0u, slots_before, lane_of_row);
#pragma unroll 1
    for (share.row = lane_of_row * rows_per_lane(p);; ++share.row) {
        const RowWork work = row_work(p, partition, share.row);
        if (begin < start + work.line) break;
        start += work.line;
        share.slot += work.slots;
    }
    const RowShape shape = row_shape(p, share.row);
    const RowGroups groups(p, share.row, shape);
    Group group;
    int length = 1;
#pragma unroll 1
    for (;; ++share.group) {
        group = groups.at(share.group);
        length = block_length(p, partition, group);
        const int all = group_blocks(group, partition.block_shift) * length;
        if (begin < start + all) break;
        start += all;
        share.slot += group_slots(group);
    }
    share.block = (begin - start) / length;
    start += share.block * length;
    if (partition.piece > 0) {
        const long long pieces = length;
        share.split = static_cast<int>((begin - start) * group.splits / pieces);
        share.split_end = static_cast<int>((begin - start + 1) * group.splits / pieces);
    } else {
        share.left = end - start;
        share.split = ceil_div(begin - start, split_cost(group));
        share.split_end = min(ceil_div(share.left, split_cost(group)), group.splits);
    }
    share.item =
        block_item(p, share.row, shape, group, share.block, partition.block_shift, share.slot);
    // Where keys lie in one piece, the item says it all: no warp waits for memory twice.
    share.even = group.history < 0 && group.alone < 0;
    share.item.split_tiles = group.tiles;
    share.item.tile_begin = share.split * group.tiles;
    if (share.even) share.item.tile_end = straight_tiles(p, shape, share.item);
    return share;
}

}  // namespace espalier::mla::cuda
