// SPDX-License-Identifier: Apache-2.0
// The copying warps: one walks through the share, announces items and fetches keys; for FP8 caches
// three more widen the queries.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat, int kN>
class Copier {
    using T = Traits<kFormat, kN>;
    using Shared = SharedLayout<kFormat, kN>;

  public:
    __device__ Copier(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), lane_(threadIdx.x % 32), page_shift_(p.page_shift) {}

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
        for (; block * kN < packed; block += p_.lanes) {
            place_columns(item, shape, block * kN, packed);
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
        place_columns(item, shape, block * kN, shape.tokens * p_.heads);
        item.tile_begin = split * kSplitTiles;
        item.tile_end = min(item.tile_begin + kSplitTiles, ceil_div(shape.keys, kTileKeys));
    }

    // A split of one token's own keys, in order; past its last key there are no tiles.
    __device__ void token_unit(Item& item, const RowShape& shape, const RowSplits& splits,
                               int unit) {
        const int head_blocks = ceil_div(p_.heads, kN);
        const int token = unit / (splits.per_token * head_blocks);
        const int split = splits.shared + unit / head_blocks % splits.per_token;
        place_columns(item, shape, token * p_.heads + unit % head_blocks * kN,
                      (token + 1) * p_.heads);
        item.gathered = token;
        item.keys = visible_keys(item, shape);
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
        item.columns = min(end - first, kN);
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
        page_base_ = -1;
        const int tile_begin = item.tile_begin;
        const int tile_end = item.tile_end;
        const int row_keys = item.keys;
        const bool gathered = item.gathered >= 0;
        const std::int32_t* table = p_.rows.block_table + item.row * p_.rows.block_stride;
#pragma unroll 1
        for (int tile = tile_begin; tile < tile_end; ++tile) {
            // What can be known before a place is free: a place that waits is bandwidth lost.
            const bool gather = gathered && !in_history(tile);
            const int page = gather ? 0 : page_of(table, row_keys, tile * kTileKeys >> page_shift_);
            wait(&shared_.keys_free[keys_.index], keys_.phase ^ 1);
            if (gather)
                gather_tile(item, tile);
            else if (page_shift_ >= 6)
                fetch_tile(page, tile * kTileKeys & (p_.kv.page_tokens - 1));
            else
                fetch_small_pages(table, row_keys, tile * kTileKeys);
            keys_.advance();
            if (tile == tile_begin) fetch_query(item);
        }
    }

    __device__ void fetch_query(const Item& item) {
        if constexpr (!T::kFp8) {
            wait(&shared_.query_free, query_phase_ ^ 1);
            if (lane_ == 0) {
                // Only as many rows as the call has: what lies below them is nobody's output.
                arrive_expecting(&shared_.query_full, 9 * p_.query_rows * 128);
#pragma unroll 1
                for (int block = 0; block < 9; ++block)
                    copy_tensor_3d(shared_.query + block * T::kQueryBlock, &p_.query_map,
                                   &shared_.query_full, 0, item.packed_first, block, kEvictLast);
            }
            query_phase_ ^= 1;
        }
    }

    // --- keys by the copy engine ----------------------------------------------------------------
    // Page ids are read 32 at a time, one per lane. Entries past the last key may hold anything.
    __device__ int page_of(const std::int32_t* table, int keys, int index) {
        if (page_base_ < 0 || index >= page_base_ + 32) {
            page_base_ = index;
            const int mine = index + lane_;
            page_ = mine <= (keys - 1) >> page_shift_ ? table[mine] : 0;
        }
        return __shfl_sync(~0u, page_, index - page_base_);
    }

    static constexpr int kRowBytes = T::kTokenScale ? 644 : T::kFp8 ? 576 : 1152;
    static constexpr int kRopeRow = T::kTokenScale ? 128 : 64;  // in shared memory

    // A whole tile from one page of at least 64 slots; a page id outside the pool reads zeros.
    __device__ void fetch_tile(int page, int row) {
        if (lane_ != 0) return;
        std::byte* slot = shared_.keys[keys_.index];
        Barrier* full = shared_.keys_full[keys_.index];
        if constexpr (T::kFp8) {
            arrive_expecting(full, kTileKeys * kRowBytes);
            copy_tensor_4d(slot, &p_.key_map, full, 0, row, 0, page, kEvictFirst);
            copy_tensor_3d(slot + T::kRopeOffset, &p_.rope_map, full, 0, row, page, kEvictFirst);
            if constexpr (T::kTokenScale) copy_scales(slot, full, page, row, kTileKeys);
        } else {
#pragma unroll
            for (int piece = 0; piece < 3; ++piece) {
                arrive_expecting(&full[piece], kTileKeys * kRowBytes / 3);
                copy_tensor_4d(slot + piece * 3 * T::kBlockBytes, &p_.key_map, &full[piece], 0, row,
                               piece * 3, page, kEvictFirst);
            }
        }
    }

    __device__ void copy_scales(std::byte* slot, Barrier* full, int page, int row, int rows) {
        // The copy engine keeps page ids inside a map; here we must.
        const int inside = page >= 0 && page < p_.kv.page_count ? page : 0;
        copy_bytes(slot + T::kScaleOffset,
                   p_.kv.data + inside * p_.kv.page_stride + 640 * p_.kv.page_tokens + row * 4,
                   rows * 4, full);
    }

    // A tile from two or four pages, block by block; pages past the last key are left out.
    __device__ void fetch_small_pages(const std::int32_t* table, int keys, int first) {
        const int rows = p_.kv.page_tokens;
        const int pages = min(kTileKeys >> page_shift_, ((keys - 1 - first) >> page_shift_) + 1);
        std::byte* slot = shared_.keys[keys_.index];
        Barrier* full = shared_.keys_full[keys_.index];
        if (lane_ == 0)
            for (int piece = 0; piece < T::kPieces; ++piece)
                arrive_expecting(&full[piece], pages * rows * kRowBytes / T::kPieces);
        __syncwarp();
        for (int i = 0; i < pages; ++i) {
            const int page = page_of(table, keys, (first >> page_shift_) + i);
            std::byte* to = slot + i * rows * 128;
            constexpr int kBlocks = T::kFp8 ? 4 : 9;
            if (lane_ < kBlocks)
                copy_tensor_4d(to + lane_ * T::kBlockBytes, &p_.key_map,
                               &full[T::kFp8 ? 0 : lane_ / 3], 0, 0, lane_, page, kEvictFirst);
            if (T::kFp8 && lane_ == 4)
                copy_tensor_3d(slot + T::kRopeOffset + i * rows * kRopeRow, &p_.rope_map, full, 0,
                               0, page, kEvictFirst);
            if (T::kTokenScale && lane_ == 5) copy_scales(slot + i * rows * 4, full, page, 0, rows);
        }
    }

    // --- keys of one token, gathered (invariant)
    // -------------------------------------------------- A tree token sees the history and those
    // slots of the tail that its word names; a dense token whatever its bytes say. Finds how many
    // that are.
    __device__ int visible_keys(const Item& item, const RowShape& shape) {
        const int token = item.first_token + item.gathered;
        if (shape.mask == MaskKind::dense) {
            history_ = 0;
            return p_.dense_start[static_cast<long long>(token) * (p_.dense_splits + 1) +
                                  p_.dense_splits];
        }
        history_ = history_keys(p_, item.row, shape);
        const int tail = p_.rows.tail_len == nullptr ? shape.tokens : p_.rows.tail_len[item.row];
        const long long world = p_.rows.dcp_world;
        const long long all = world == 1 ? shape.keys : p_.rows.global_kv_len[item.row];
        const std::uint64_t word = p_.rows.words == nullptr ? 0 : p_.rows.words[token];
        tail_word_ = 0;
        for (int half = 0; half < 2; ++half) {
            const int key = history_ + half * 32 + lane_;
            const long long bit = key * world + p_.rows.dcp_rank - (all - tail);
            const bool seen =
                key < shape.keys && bit >= 0 && bit < kMaxTail && ((word >> bit) & 1) != 0;
            tail_word_ |= static_cast<std::uint64_t>(__ballot_sync(~0u, seen)) << (32 * half);
        }
        return history_ + __popcll(tail_word_);
    }

    __device__ bool in_history(int tile) const { return (tile + 1) * kTileKeys <= history_; }

    // Slots of the keys with logical index first + lane and first + 32 + lane; -1 past the end.
    __device__ void tree_slots(const Item& item, int first, int (&slots)[2]) {
        for (int half = 0; half < 2; ++half) {
            const int index = first + half * 32 + lane_;
            slots[half] = index < history_ ? index : -1;
            if (index < history_ || index >= item.keys) continue;
            std::uint64_t left = tail_word_;
            for (int skip = index - history_; skip > 0; --skip) left &= left - 1;
            slots[half] = history_ + __ffsll(static_cast<long long>(left)) - 1;
        }
    }

    __device__ void dense_slots(const Item& item, int tile, int (&slots)[2]) {
        const long long token = item.first_token + item.gathered;
        if (tile % kSplitTiles == 0)
            cursor_ = p_.dense_start[token * (p_.dense_splits + 1) + tile / kSplitTiles];
        const int row_keys = min(max(p_.rows.kv_len[item.row], 0), p_.rows.max_kv_len);
        slots[0] = slots[1] = -1;
        for (int found = 0; found < kTileKeys && cursor_ < row_keys;) {
            const int key = cursor_ + lane_;
            const bool seen =
                key < row_keys && dense_visible(p_, item.row, row_keys, item.gathered, key);
            const unsigned votes = __ballot_sync(~0u, seen);
            const int taken = min(__popc(votes), kTileKeys - found);
            for (int half = 0; half < 2; ++half) {
                const int rank = half * 32 + lane_ - found;  // among this step's keys
                if (rank < 0 || rank >= taken) continue;
                slots[half] = cursor_ + static_cast<int>(__fns(votes, 0, rank + 1));
            }
            cursor_ += taken < __popc(votes) ? static_cast<int>(__fns(votes, 0, taken)) + 1 : 32;
            found += taken;
        }
    }

    __device__ void gather_tile(const Item& item, int tile) {
        int slots[2];
        if (p_.rows.mask[item.row] == MaskKind::dense)
            dense_slots(item, tile, slots);
        else
            tree_slots(item, tile * kTileKeys, slots);
        long long pages[2];
        for (int half = 0; half < 2; ++half) {
            const int page = slots[half] < 0 ? -1
                                             : p_.rows.block_table[item.row * p_.rows.block_stride +
                                                                   slots[half] / p_.kv.page_tokens];
            const bool inside = page >= 0 && page < p_.kv.page_count;
            pages[half] = inside ? page * p_.kv.page_stride : -1;
        }
        std::byte* to = shared_.keys[keys_.index];
        for (int row = 0; row < kTileKeys; ++row) {
            const long long page = __shfl_sync(~0u, pages[row / 32], row % 32);
            const int slot = __shfl_sync(~0u, slots[row / 32], row % 32);
            if (page >= 0) copy_row(to, row, p_.kv.data + page, slot % p_.kv.page_tokens);
        }
        wait_for_async_copies();
        fence_async_proxy();
        __syncwarp();
        if (lane_ == 0)
            for (int piece = 0; piece < T::kPieces; ++piece)
                arrive(&shared_.keys_full[keys_.index][piece]);
    }

    // One slot of a page into row `row` of the tile, 16 bytes per lane at a time.
    __device__ void copy_row(std::byte* to, int row, const std::byte* page, int slot) {
        constexpr int kLatentRow = T::kTokenScale ? 512 : T::kFp8 ? 576 : 1152;
        constexpr int kChunks = T::kFp8 ? 32 : 72;
        const std::byte* from = page + slot * kLatentRow;
        for (int chunk = lane_; chunk < kChunks; chunk += 32)
            copy_16_async(
                to + chunk / 8 * T::kBlockBytes + row * 128 + ((chunk % 8 ^ (row & 7)) << 4),
                from + chunk * 16);
        std::byte* rope = to + T::kRopeOffset;
        if constexpr (T::kTokenScale) {
            const int tokens = p_.kv.page_tokens;
            if (lane_ < 8)
                copy_16_async(rope + row * 128 + ((lane_ ^ (row & 7)) << 4),
                              page + 512 * tokens + slot * 128 + lane_ * 16);
            if (lane_ == 8)
                copy_4_async(to + T::kScaleOffset + row * 4, page + 640 * tokens + slot * 4);
        } else if constexpr (T::kFp8) {
            if (lane_ < 4)
                copy_16_async(rope + row * 64 + ((lane_ ^ (row >> 1 & 3)) << 4),
                              from + 512 + lane_ * 16);
        }
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_;
    const int page_shift_;
    int part_ = 0;
    Ring<2> items_;
    Ring<T::kStages> keys_;
    std::uint32_t query_phase_ = 0;
    int page_base_ = -1;
    int page_ = 0;
    int history_ = 0;  // of the gathered token
    std::uint64_t tail_word_ = 0;
    int cursor_ = 0;  // next slot of a dense token
};

}  // namespace espalier::mla::cuda
