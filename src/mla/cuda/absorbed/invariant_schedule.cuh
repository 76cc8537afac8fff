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

#include "mla/cuda/absorbed/schedule.cuh"

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

// Number of keys that token i of a full or causal row sees.
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

// The one group of a row of at most one token, where no rank has keys of its own and no row a dense
// mask: what RowGroups would say, in a tenth of the code. The token of a tree row sees all slots
// before its tail, and the tail reaches to the last.
__device__ inline Group one_token_group(const AbsorbedParams& p, int row, const RowShape& shape) {
    Group group;
    group.end = shape.tokens * p.heads;
    if (shape.keys == 0 || shape.tokens == 0 || shape.mask == MaskKind::dense) return group;
    group.tiles = split_tiles(shape.keys);
    group.splits = splits_of(shape.keys, group.tiles);
    if (shape.mask != MaskKind::tree) return group;
    const int history = max(shape.keys - tail_slots(p, row, shape.tokens), 0);
    if (split_rule_of(history) == split_rule_of(shape.keys)) {
        group.history = history;
    } else {
        group.alone = 0;
        group.splits = max(static_cast<int>(most_splits(shape.keys)), 1);
    }
    return group;
}

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

// --- items of a block, of whose splits a part has `begun` … `end` - 1 ---------------------------
__device__ inline int strips_of(const Item& block) { return ceil_div(block.columns, kStripRows); }
// Rows that the workspace has no room for are left out.
__device__ inline bool has_room(const AbsorbedParams& p, const Item& block) {
    return block.splits == 1 || block.base + strips_of(block) * block.splits <= p.slots;
}
// `second`: the part has put off another block's merge.
__device__ inline int merge_flags(const AbsorbedParams& p, const Item& block, int begun, int end,
                                  bool second) {
    if (begun == 0 && end == block.splits) return kLocal;
    const bool marked = block.base + strips_of(block) * block.splits <= p.marked_slots;
    return (second ? kSecond : 0) | (marked ? kMarked : 0);
}
// Splits `first` … `end` - 1, of `tiles` tiles each, one after another; some token of the block
// sees `reach` tiles.
__device__ inline void take_splits(Item& item, int first, int end, int tiles, int reach) {
    item.run = end - first;
    item.split_tiles = tiles;
    item.tile_begin = first * tiles;
    item.tile_end = max(min(end * tiles, reach), item.tile_begin);
    item.flags = kStarts | kEnds;
}
// First slot for the results of an item whose last split is `end` - 1.
__device__ inline int first_slot(const Item& item, int end) {
    return item.splits == 1 ? -1 : item.base + (end - item.run) * strips_of(item);
}
// The part with the last split also counts what is missing to kAllArrived.
__device__ inline int arrivals_of(const Item& block, int begun, int end) {
    return end - begun + (end == block.splits ? static_cast<int>(kAllArrived) - block.splits : 0);
}
// The part's share of the chunks. (The output warps have no time for divisions.)
__device__ inline Item merge_item(const Item& block, int begun, int end, int tiles, int flags,
                                  bool codes) {
    Item item = block;
    item.flags = kMerges | flags;
    const auto chunks = static_cast<unsigned>(strips_of(block) * kStripChunks);
    item.tile_begin = static_cast<int>(chunks * begun / block.splits);  // up to 64 × 2^25
    item.tile_end = static_cast<int>(chunks * end / block.splits);
    item.split_tiles = !codes && tiles * kTileKeys >= kLongSplit ? 2 : 1;
    item.run = ceil_div(item.splits, item.split_tiles * kQuad);
    return item;
}

// A part that has splits of one block alone, whose keys lie in one piece, need not find out what
// to begin with: the plan has the item whole.
__device__ inline void finish_item(const AbsorbedParams& p, PartPlan& share) {
    Item& item = share.item;
    if (!has_room(p, item)) {
        share.split = share.split_end;
        return;
    }
    take_splits(item, share.split, share.split_end, item.split_tiles, item.tile_end);
    item.flags |= merge_flags(p, item, share.split, share.split_end, false);
    if (item.tile_begin < item.tile_end) item.flags |= kNewQuery | kFreesQuery;
    item.slot = first_slot(item, share.split_end);
    if (item.splits > 1) item.arrivals = arrivals_of(item, share.split, share.split_end);
}

}  // namespace espalier::mla::cuda
