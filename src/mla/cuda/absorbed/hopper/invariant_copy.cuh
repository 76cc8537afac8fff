// SPDX-License-Identifier: Apache-2.0
// The copying warp's walk through its part of the invariant partition: the splits of one block of
// packed rows after another, and after each block its merge, or, where other thread blocks have
// splits of it too, at the very end.
//
// A tree's tokens share the tiles of their history. What follows differs among them, so a split
// that reaches beyond is several items: the history for all, then the tiles of each path from the
// root to a leaf, gathered slot by slot in logical order, of which a token of the path sees those
// up to itself and others nothing. Sums go on from item to item: these are the bits of a row that
// has the token's path for keys. A block of one token has its path for keys and is no such tree.
#pragma once

#include "mla/cuda/absorbed/hopper/copy_role.cuh"
#include "mla/cuda/absorbed/hopper/invariant_merge.cuh"

namespace espalier::mla::cuda {

// kOneToken: rows have one token at most, and none of them a dense mask.
template <KvFormat kFormat, bool kOneToken>
class InvariantCopier {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ InvariantCopier(const AbsorbedParams& p, Shared& shared, const PartAhead& ahead)
        : p_(p), plan_(p.part_plans[blockIdx.x]), ahead_(ahead), feeder_(p, shared) {}

    // The whole warp. There is one place from which an item is fetched: its code is long.
    __device__ void run() {
        bool planned = ahead_.field<PlanWord::flags>() != 0;
        if (!planned) begin();
        Item item;
#pragma unroll 1
        while (true) {
            if (planned)
                feeder_.place(ahead_);
            else if (next(item))
                feeder_.place(item);
            else
                break;
            feeder_.fetch();
            if (planned) go_on();
            planned = false;
        }
        __syncwarp();  // all lanes look at what the first has put off
#pragma unroll 1
        for (int i = 0; i < deferred_; ++i) feeder_.tell(feeder_.deferred()[i]);
        feeder_.end();
    }

  private:
    // --- blocks ---------------------------------------------------------------------------------
    __device__ void begin() {
        row_ = plan_.row;
        group_index_ = plan_.group;
        block_ = plan_.block;
        slot_ = plan_.slot;
        left_ = plan_.left;
        split_ = plan_.split;
        split_end_ = plan_.split_end;
        if (split_ >= split_end_) return;
        item_ = plan_.item;
        if (plan_.even != 0) {
            tiles_ = item_.split_tiles;
            reach_ = item_.tile_end;
            enter_block();
        } else {
            find_group();
            prepare_block();
        }
    }
    // Behind the item that the plan has told, the part's only one: its merge is left.
    __device__ void go_on() {
        item_ = plan_.item;
        tiles_ = item_.split_tiles;
        begun_ = plan_.split;
        split_ = split_end_ = plan_.split_end;
    }
    __device__ void find_group() {
        const RowShape shape = row_shape(p_, row_);
        if constexpr (kOneToken)
            group_ = one_token_group(p_, row_, shape);
        else
            group_ = RowGroups(p_, row_, shape).at(group_index_);
    }

    // Finds the next block of which this part has splits. (Of small blocks it has one alone.)
    __device__ bool next_block() {
        if (left_ <= 0) return false;
        find_group();
        left_ -= block_cost(p_, group_);
        if (left_ <= 0) return false;
        if (++block_ == group_blocks(group_, p_.block_shift)) {
            block_ = 0;
            slot_ += group_slots(group_);
            if (!next_group()) return false;
        }
        const RowShape shape = row_shape(p_, row_);
        split_ = 0;
        split_end_ = min(ceil_div(left_, split_cost(group_)), group_.splits);
        item_ = block_item(p_, row_, shape, group_, block_, p_.block_shift, slot_);
        prepare_block();
        return true;
    }
    __device__ bool next_group() {
        if constexpr (kOneToken) {
            do {
                if (++row_ == p_.rows.rows) return false;
                find_group();
            } while (group_.end == 0);
            return true;
        } else {
            while (true) {
                const RowShape shape = row_shape(p_, row_);
                const RowGroups groups(p_, row_, shape);
#pragma unroll 1
                while (++group_index_ < groups.count()) {
                    group_ = groups.at(group_index_);
                    if (group_.end > group_.first) return true;
                }
                if (++row_ == p_.rows.rows) return false;
                group_index_ = -1;
            }
        }
    }
    // Finds what the plan does not say of a block.
    __device__ void prepare_block() {
        const RowShape shape = row_shape(p_, row_);
        tiles_ = group_.tiles;
        if (shape.mask == MaskKind::tree) feeder_.keys().begin_tree(row_, shape);
        tree_ = !kOneToken && group_.history >= 0;
        if (kOneToken) {
            item_.gathered = shape.mask == MaskKind::tree ? 0 : -1;
        } else if (tree_ && token_of(p_, item_.row_first) == last_token()) {
            item_.gathered = last_token();
            tree_ = false;
        }
        if (item_.gathered >= 0) {
            item_.keys = kOneToken || shape.mask == MaskKind::tree
                             ? feeder_.keys().tree_token(item_)
                             : feeder_.keys().dense_token(item_, shape);
            item_.free_keys = item_.keys;
            item_.mask = static_cast<int>(MaskKind::full);
            tiles_ = split_tiles(item_.keys);
            reach_ = ceil_div(item_.keys, kTileKeys);
        } else if (!tree_) {
            reach_ = kOneToken ? ceil_div(shape.keys, kTileKeys) : straight_tiles(p_, shape, item_);
        }
        enter_block();
    }
    __device__ int last_token() const { return token_of(p_, item_.row_first + item_.columns - 1); }
    __device__ void enter_block() {
        begun_ = split_;
        paths_ = Paths::none;
        query_there_ = false;
        if (!has_room(p_, item_)) split_ = begun_ = split_end_;
    }

    // --- items ----------------------------------------------------------------------------------
    __device__ bool next(Item& item) {
        while (true) {
            if (split_ < split_end_) {
                item = item_;
                if (!kOneToken && tree_ && (split_ + 1) * tiles_ * kTileKeys > group_.history)
                    next_of_tree(item);
                else
                    whole_splits(item);
                set_flags(item);
                return true;
            }
            if (begun_ < split_end_ && item_.splits > 1 && merge(item)) return true;
            if (!next_block()) return false;
        }
    }

    // All that are left, or those of a tree's history: this warp's way from item to item is long.
    __device__ void whole_splits(Item& item) {
        int end = split_end_;
        int reach = reach_;
        if (!kOneToken && tree_) {
            end = min(group_.history / (tiles_ * kTileKeys), end);
            reach = end * tiles_;
        }
        take_splits(item, split_, end, tiles_, reach);
        split_ = end;
    }

    // The shared tiles, then those of each path. Over FP8 codes tiles are scored in pairs, which
    // must be the same ones for every tree.
    __device__ void next_of_tree(Item& item) {
        const int first = split_ * tiles_;
        const int history = min(max(group_.history / kTileKeys - first, 0), tiles_);
        const int own = first + (T::kFp8 ? history & ~1 : history);
        if (paths_ == Paths::none) {
            item.tile_begin = first;
            item.tile_end = own;
            item.flags = kStarts;
            paths_ = Paths::ahead;
            return;
        }
        // Words are read while the shared tiles are on their way.
        if (paths_ == Paths::ahead) feeder_.keys().begin_paths(item);
        paths_ = Paths::begun;
        const bool last = feeder_.keys().next_path(item);
        item.free_keys = 0;
        item.mask = kOwnKeys;
        item.tile_begin = own;
        item.tile_end = max(min(first + tiles_, ceil_div(item.keys, kTileKeys)), own);
        if (!last) return;
        item.flags = kEnds;
        paths_ = Paths::none;
        ++split_;
    }

    // Flags of the item whose splits, if they end here, were those before split_.
    __device__ void set_flags(Item& item) {
        item.flags |= flags();
        if (item.tile_begin < item.tile_end && !query_there_) {
            item.flags |= kNewQuery;
            query_there_ = true;
        }
        if ((item.flags & kEnds) != 0) {
            item.slot = first_slot(item, split_);
            if (split_ == split_end_) {
                if (item.splits > 1) item.arrivals = arrivals_of(item, begun_, split_end_);
                if (query_there_) item.flags |= kFreesQuery;
            }
        }
    }
    __device__ int flags() const {
        return merge_flags(p_, item_, begun_, split_end_, deferred_ > 0);
    }

    // True: at once; otherwise it is put off.
    __device__ bool merge(Item& item) {
        item = merge_item(item_, begun_, split_end_, tiles_, flags(), T::kFp8);
        begun_ = split_end_;
        if ((item.flags & kLocal) != 0) return true;
        if (threadIdx.x % 32 == 0) feeder_.deferred()[deferred_] = item;
        ++deferred_;
        return false;
    }

    const AbsorbedParams& p_;
    const PartPlan& plan_;
    const PartAhead ahead_;
    ItemFeeder<kFormat, true, kOneToken> feeder_;
    int row_ = 0, group_index_ = 0, block_ = 0;
    int slot_ = 0;               // first of the group
    int left_ = 0;               // of the part's share of the line, from the block's beginning
    Group group_;                // of the block, where the plan does not tell
    Item item_{};                // all items of the block are made from it
    bool tree_ = false;          // several tokens of a tree, served path by path
    int tiles_ = 1, reach_ = 0;  // of a split; that some token of the block sees
    int split_ = 0, split_end_ = 0, begun_ = 0;
    enum class Paths { none, ahead, begun } paths_ = Paths::none;  // of a tree's split
    bool query_there_ = false;
    int deferred_ = 0;
};

}  // namespace espalier::mla::cuda
