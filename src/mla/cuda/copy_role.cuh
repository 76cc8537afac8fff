// SPDX-License-Identifier: Apache-2.0
// The copying warp: walks through this thread block's share, announces items and asks for keys and
// queries (over FP8 caches, query_role.cuh brings the queries).
#pragma once

#include "mla/cuda/key_fetch.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat>
class Copier {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ Copier(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), lane_(threadIdx.x % 32), keys_(p, shared) {}

    // The whole warp.
    __device__ void run() {
        part_ = static_cast<int>(blockIdx.x) / p_.lanes;
        const PartPlan plan = p_.part_plans[part_];
        if (plan.piece > 0)
            take_piece(plan);
        else if (p_.invariant)
            walk_units(plan);
        else
            walk_line(plan);
        Item end{};
        end.last = 1;
        announce(end);
    }

  private:
    __device__ void take_piece(const PartPlan& plan) {
        if (plan.begin == plan.end) return;
        const RowShape shape{plan.first_token, plan.tokens, plan.keys,
                             static_cast<MaskKind>(plan.mask)};
        Item item = row_item(plan.row, shape);
        item.tile_begin = plan.tile_begin;
        item.tile_end = plan.tile_end;
        take_blocks(item, shape, plan.tiles, 0);
    }

    __device__ void walk_line(const PartPlan& plan) {
        int start = plan.start;
        for (int row = plan.row; start < plan.end; ++row) {
            const RowShape shape = row_shape(p_, row);
            const int cost = row_cost(p_, Partition{}, row, shape);
            if (cost == 0) continue;
            const int tiles = cost - p_.row_cost;
            const int first_tile = start + p_.row_cost;
            Item item = row_item(row, shape);
            item.tile_begin = max(plan.begin - first_tile, 0);
            item.tile_end = min(plan.end - first_tile, tiles);
            start += cost;
            if (item.tile_end > item.tile_begin)
                take_blocks(item, shape, tiles, first_tile > plan.begin ? 1 : 0);
        }
    }

    // The blocks of packed rows that fall to this thread block.
    __device__ void take_blocks(Item& item, const RowShape& shape, int tiles, int place) {
        const bool whole = item.tile_begin == 0 && item.tile_end == tiles;
        const int packed = shape.tokens * p_.heads;
        int block = 0;
        if (p_.lanes > 1) block = static_cast<int>(blockIdx.x) % p_.lanes;
        for (; block * T::kRows < packed; block += p_.lanes) {
            place_columns(item, shape, block * T::kRows, packed);
            item.slot = whole ? -1 : (part_ * p_.max_blocks + block) * 2 + place;
            fetch(item);
        }
    }

    __device__ void walk_units(const PartPlan& plan) {
        int start = plan.start;
        for (int row = plan.row; start < plan.end; ++row) {
            const RowShape shape = row_shape(p_, row);
            const int cost = row_cost(p_, Partition{}, row, shape);
            const RowSplits splits = row_splits(p_, row, shape);
            const int blocks = row_blocks(p_, shape);
            const int first = max(plan.begin - start, 0);
            const int end = min(plan.end - start, cost);
            for (int unit = first; unit < end; ++unit) {
                Item item = row_item(row, shape);
                item.slot = splits.shared + splits.per_token == 1 ? -1 : start + unit;
                if (unit < splits.shared * blocks)
                    shared_unit(item, shape, unit / blocks, unit % blocks);
                else
                    token_unit(item, shape, splits, unit - splits.shared * blocks);
                fetch(item);
            }
            start += cost;
        }
    }

    __device__ void shared_unit(Item& item, const RowShape& shape, int split, int block) {
        place_columns(item, shape, block * T::kRows, shape.tokens * p_.heads);
        item.tile_begin = split * kSplitTiles;
        item.tile_end = min(item.tile_begin + kSplitTiles, ceil_div(shape.keys, kTileKeys));
    }

    // A split of one token's own keys, in order; past its last key there are no tiles.
    __device__ void token_unit(Item& item, const RowShape& shape, const RowSplits& splits,
                               int unit) {
        const int head_blocks = blocks_for(p_, p_.heads);
        const int token = unit / (splits.per_token * head_blocks);
        const int split = splits.shared + unit / head_blocks % splits.per_token;
        place_columns(item, shape, token * p_.heads + unit % head_blocks * T::kRows,
                      (token + 1) * p_.heads);
        item.gathered = token;
        item.keys = keys_.gather_token(item, shape);
        item.free_keys = item.keys;
        item.mask = static_cast<int>(MaskKind::full);
        item.tile_begin = split * kSplitTiles;
        item.tile_end = max(item.tile_begin,
                            min(item.tile_begin + kSplitTiles, ceil_div(item.keys, kTileKeys)));
    }

    __device__ Item row_item(int row, const RowShape& shape) {
        Item item{};
        item.row = row;
        item.first_token = shape.first_token;
        item.tokens = shape.tokens;
        item.keys = shape.keys;
        item.mask = static_cast<int>(shape.mask);
        item.gathered = -1;
        return item;
    }

    __device__ void place_columns(Item& item, const RowShape& shape, int first, int end) {
        item.row_first = first;
        item.packed_first = shape.first_token * p_.heads + first;
        item.columns = min(end - first, T::kRows);
        item.free_keys = free_keys(item, shape);
    }

    // How many leading keys every column of the item sees.
    __device__ int free_keys(const Item& item, const RowShape& shape) {
        switch (shape.mask) {
            case MaskKind::full:
                return shape.keys;
            case MaskKind::causal: {
                const int token = token_of(p_, item.row_first);
                if (p_.rows.dcp_world == 1) return max(shape.keys - (shape.tokens - 1) + token, 0);
                const long long world = p_.rows.dcp_world;
                const long long bound = static_cast<long long>(p_.rows.global_kv_len[item.row]) -
                                        (shape.tokens - 1) + token;
                const long long local = (bound - p_.rows.dcp_rank + world - 1) / world;
                return static_cast<int>(min(max(local, 0ll), static_cast<long long>(shape.keys)));
            }
            case MaskKind::tree:
                return history_keys(p_, item.row, shape);
            case MaskKind::dense:
                return 0;
        }
        return 0;
    }

    // --- one item -----------------------------------------------------------------------------
    // Returns the shared copy, which only this warp overwrites: registers are few here.
    __device__ const Item& announce(const Item& item) {
        Item& place = shared_.items[items_.index];
        wait(&shared_.item_free[items_.index], items_.phase ^ 1);
        if (lane_ == 0) {
            place = item;
            arrive(&shared_.item_full[items_.index]);
        }
        __syncwarp();
        items_.advance();
        return place;
    }

    // The first tile's keys before the queries: a place for them is free earlier.
    __device__ void fetch(const Item& draft) {
        const Item& item = announce(draft);
        const int tile_begin = item.tile_begin;
        const int tile_end = item.tile_end;
        if (tile_begin == tile_end) return;
        keys_.begin(item);
        keys_.ask(item, tile_begin);
        if constexpr (!T::kFp8) fetch_query(item);
#pragma unroll 1
        for (int tile = tile_begin + 1; tile < tile_end; ++tile) keys_.ask(item, tile);
    }

    __device__ void fetch_query(const Item& item) {
        wait(&shared_.query_free, query_phase_ ^ 1);
        query_phase_ ^= 1;
        if (lane_ != 0) return;
        // Only as many rows as the call has: what lies below them is nobody's output.
        arrive_expecting(&shared_.query_full, 9 * p_.query_rows * 128);
#pragma unroll 1
        for (int block = 0; block < 9; ++block)
            copy_tensor_3d(shared_.query + block * T::kQueryBlock, &p_.query_map,
                           &shared_.query_full, 0, item.packed_first, block, kEvictLast);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_;
    KeyFetcher<kFormat> keys_;
    int part_ = 0;
    Ring<2> items_;
    std::uint32_t query_phase_ = 0;
};

}  // namespace espalier::mla::cuda
