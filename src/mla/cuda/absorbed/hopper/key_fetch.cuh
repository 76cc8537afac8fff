// SPDX-License-Identifier: Apache-2.0
// Brings tiles of keys to shared memory: by the copy engine, a box per page, or slot by slot where
// one token's keys are gathered (the invariant partition of trees and dense masks) and where keys
// begin at slot 1, so that a tile's rows end in the next page. One warp.
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/memory.cuh"
#include "mla/cuda/absorbed/hopper/absorbed_kernel.cuh"
#include "mla/cuda/absorbed/hopper/part_ahead.cuh"
#include "mla/cuda/absorbed/invariant_schedule.cuh"

namespace espalier::mla::cuda {

// kOneToken: rows have one token at most, whose keys are gathered or lie in one piece.
template <KvFormat kFormat, bool kOneToken>
class KeyFetcher {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ KeyFetcher(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), lane_(threadIdx.x % 32), page_shift_(p.page_shift) {}

    __device__ void begin(const Item& item) {
        const std::int32_t* table = p_.rows.block_table + item.table * p_.rows.block_stride;
        const int slots = slots_of(p_, item.gathered < 0 ? item.keys : row_keys_);
        const int page = item.tile_begin * kTileKeys >> page_shift_;
        // Items of one row follow one another: what is known need not be waited for again.
        const bool known = table == table_ && slots == slots_ && page >= page_base_ &&
                           page + kTailPages <= page_base_ + 32;
        table_ = table;
        slots_ = slots;
        if (!known) read_pages(page);
    }

    __device__ void begin(const PartAhead& ahead) {
        table_ = ahead.table();
        slots_ = ahead.slots();
        page_base_ = ahead.first_page();
        page_ = ahead.page();
    }

    __device__ void ask(const Item& item, int tile) {
        // Facts known before a place is free: a place that waits is bandwidth lost.
        const bool moved = p_.rows.first_slot != 0;
        const bool own = item.gathered >= 0 && !in_history(tile);
        const bool gather = moved || own;
        const int page = own ? 0 : page_of(tile * kTileKeys >> page_shift_);
        wait(&shared_.keys_free[stage_.index], stage_.phase ^ 1);
        if (gather)
            gather_tile(item, tile);
        else if (page_shift_ >= 6)
            fetch_tile(page, tile * kTileKeys & (p_.kv.page_tokens - 1));
        else
            fetch_small_pages(tile * kTileKeys);
        stage_.advance();
    }

    // The tokens of this tree row will be gathered: each sees the history and those slots of the
    // tail that its word names.
    __device__ void begin_tree(int row, const RowShape& shape) {
        row_keys_ = shape.keys;
        tail_ = tail_slots(p_, row, shape.tokens);
        history_ = kOneToken ? max(shape.keys - tail_, 0) : history_keys(p_, row, shape);
        all_ = kOneToken || p_.rows.dcp_world == 1 ? shape.keys : p_.rows.global_kv_len[row];
    }
    // Keys of a gathered token that need not be gathered and that the row's own tokens did not
    // write.
    __device__ int settled_history(int tokens) const { return min(history_, row_keys_ - tokens); }
    // The next item gathers its token. Returns how many keys it sees.
    __device__ int tree_token(const Item& item) {
        tail_word_ = local_word(item.first_token + item.gathered);
        return history_ + __popcll(tail_word_);
    }

    // The tokens of a block, one or two to a lane, none of which has been gathered yet.
    __device__ void begin_paths(const Item& item) {
        first_ = token_of(p_, item.row_first);
        const int count = token_of(p_, item.row_first + item.columns - 1) + 1 - first_;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int mine = half * 32 + lane_;
            word_[half] = mine < count ? local_word(item.first_token + first_ + mine) : 0;
            left_[half] = __ballot_sync(~0u, mine < count);
        }
    }
    // The next item gathers the keys of the last token that is left, and serves all tokens that see
    // the first of these and nothing else: its ancestors. True: no token is left.
    __device__ bool next_path(Item& item) {
        const bool upper = left_[1] != 0;
        const int lane = 31 - __clz(static_cast<int>(upper ? left_[1] : left_[0]));
        tail_word_ = __shfl_sync(~0u, upper ? word_[1] : word_[0], lane);
        item.gathered = first_ + (upper ? 32 : 0) + lane;
        item.keys = history_ + __popcll(tail_word_);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::uint64_t word = word_[half];
            const std::uint64_t reach = word == 0 ? 0 : ~std::uint64_t{0} >> __clzll(word);
            const bool serves = (left_[half] >> lane_ & 1) != 0 && (tail_word_ & reach) == word;
            seen_[half] = serves ? history_ + __popcll(word) : 0;
            left_[half] &= ~__ballot_sync(~0u, serves);
        }
        return (left_[0] | left_[1]) == 0;
    }
    // Number of keys of this item that each token of the block sees.
    __device__ void tell_seen(std::int32_t (&seen)[T::kRows]) const {
        seen[lane_] = seen_[0];
        if (T::kRows > 32) seen[(lane_ + 32) % T::kRows] = seen_[1];
    }

    // The same for a dense row, whose tokens see whatever their bytes say.
    __device__ int dense_token(const Item& item, const RowShape& shape) {
        row_keys_ = shape.keys;
        history_ = 0;
        if (p_.dense_start == nullptr) return 0;
        return p_.dense_start[static_cast<long long>(item.first_token + item.gathered) *
                                  (p_.dense_splits + 1) +
                              p_.dense_splits];
    }

  private:
    // The slots of the tail that a token sees, from the history's end on.
    __device__ std::uint64_t local_word(int token) const {
        const std::uint64_t word = tail_word(p_, token, tail_);
        const int slots = static_cast<int>(min(row_keys_ - history_, static_cast<int>(kMaxTail)));
        if (kOneToken || p_.rows.dcp_world == 1) {
            const long long skip = history_ - (all_ - tail_);
            if (skip >= kMaxTail || slots <= 0) return 0;
            return word >> skip & ~std::uint64_t{0} >> (kMaxTail - slots);
        }
        return word_of_rank(word, slots);
    }
    __device__ std::uint64_t word_of_rank(std::uint64_t word, int slots) const {
        const long long world = p_.rows.dcp_world;
        const long long skip = history_ * world + p_.rows.dcp_rank - (all_ - tail_);
        std::uint64_t local = 0;
#pragma unroll 1
        for (int slot = 0; slot < slots; ++slot) {
            const long long bit = skip + slot * world;
            if (bit >= 0 && bit < kMaxTail) local |= (word >> bit & 1) << slot;
        }
        return local;
    }

    // --- keys by the copy engine ----------------------------------------------------------------
    // Page ids are read 32 at a time, one per lane. Entries past the last key may hold anything.
    __device__ int page_of(int index) {
        if (index >= page_base_ + 32) read_pages(index);
        return __shfl_sync(~0u, page_, index - page_base_);
    }
    __device__ void read_pages(int index) {
        page_base_ = index;
        const int mine = index + lane_;
        const int last = (slots_ - 1) >> page_shift_;
        page_ = mine <= last ? table_[mine] : 0;
        if (lane_ == 31 && mine < last) prefetch_line(table_ + mine + 1);
    }

    static constexpr int kRowBytes = T::kTokenScale ? 644 : T::kFp8 ? 576 : 1152;

    __device__ Barrier* arrival() { return &shared_.keys_full[stage_.index]; }
    // The warp's arrival, complete when this many bytes have come.
    __device__ void expect(int bytes) {
        if (lane_ == 0)
            arrive_expecting(arrival(), static_cast<std::uint32_t>(bytes));
        else if (lane_ < kArrivalsOfWarp)
            arrive(arrival());
    }

    // A whole tile from one page of at least 64 slots; a page id outside the pool reads zeros.
    __device__ void fetch_tile(int page, int row) {
        expect(kTileKeys * kRowBytes);
        if (lane_ != 0) return;
        std::byte* tile = shared_.keys[stage_.index];
        copy_tensor_4d(tile, &p_.key_map, arrival(), 0, row, 0, page, kEvictFirst);
        if constexpr (T::kFp8) fetch_rope(page, row, 0, kTileKeys);
    }

    // Rope columns and scales of an FP8 page, to `rows` rows of the tile from `first` on.
    __device__ void fetch_rope(int page, int row, int first, int rows) {
        constexpr int kRopeRow = T::kTokenScale ? 128 : 64;
        copy_tensor_3d(shared_.keys[stage_.index] + T::kRopePlace + first * kRopeRow, &p_.rope_map,
                       arrival(), 0, row, page, kEvictFirst);
        if constexpr (T::kTokenScale) {
            // The copy engine keeps page ids inside a map; here we must.
            const int inside = page >= 0 && page < p_.kv.page_count ? page : 0;
            copy_bytes(&shared_.key_scale[stage_.index][first],
                       p_.kv.data + inside * p_.kv.page_stride + 640 * p_.kv.page_tokens + row * 4,
                       rows * 4, arrival());
        }
    }

    // A tile from two or four pages, block by block; pages past the last key are left out.
    __device__ void fetch_small_pages(int first) {
        const int rows = p_.kv.page_tokens;
        const int pages = min(kTileKeys >> page_shift_, ((slots_ - 1 - first) >> page_shift_) + 1);
        expect(pages * rows * kRowBytes);
        __syncwarp();
#pragma unroll 1
        for (int i = 0; i < pages; ++i) {
            const int page = page_of((first >> page_shift_) + i);
            std::byte* to = shared_.keys[stage_.index] + i * rows * 128;
            constexpr int kBlocks = T::kFp8 ? 4 : 9;
            if (lane_ < kBlocks)
                copy_tensor_4d(to + lane_ * kBlockBytes, &p_.key_map, arrival(), 0, 0, lane_, page,
                               kEvictFirst);
            if (T::kFp8 && lane_ == 4) fetch_rope(page, 0, i * rows, rows);
        }
    }

    // --- keys slot by slot
    __device__ bool in_history(int tile) const { return (tile + 1) * kTileKeys <= history_; }

    // Slots of the keys with logical index first + lane and first + 32 + lane, counted from
    // first_slot; -1 past the end.
    __device__ void tree_slots(const Item& item, int first, int (&slots)[2]) {
        const int straight = item.gathered < 0 ? item.keys : history_;
        for (int half = 0; half < 2; ++half) {
            const int index = first + half * 32 + lane_;
            slots[half] = index < straight ? index : -1;
            if (index < straight || index >= item.keys) continue;
            std::uint64_t left = tail_word_;
#pragma unroll 1
            for (int skip = index - history_; skip > 0; --skip) left &= left - 1;
            slots[half] = history_ + __ffsll(static_cast<long long>(left)) - 1;
        }
    }

    __device__ void dense_slots(const Item& item, int tile, int (&slots)[2]) {
        const long long token = item.first_token + item.gathered;
        if (tile == item.tile_begin)
            cursor_ = p_.dense_start[token * (p_.dense_splits + 1) + tile / split_tiles(item.keys)];
        slots[0] = slots[1] = -1;
#pragma unroll 1
        for (int found = 0; found < kTileKeys && cursor_ < row_keys_;) {
            const int key = cursor_ + lane_;
            const bool seen =
                key < row_keys_ && dense_visible(p_, item.row, row_keys_, item.gathered, key);
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
        if (!kOneToken && item.gathered >= 0 && p_.rows.mask[item.row] == MaskKind::dense)
            dense_slots(item, tile, slots);
        else
            tree_slots(item, tile * kTileKeys, slots);
        long long pages[2];
        for (int half = 0; half < 2; ++half) {
            if (slots[half] >= 0) slots[half] += p_.rows.first_slot;
            const int index = slots[half] >> page_shift_;
            int page = __shfl_sync(~0u, page_, (index - page_base_) & 31);
            if (slots[half] < 0)
                page = -1;
            else if (index < page_base_ || index >= page_base_ + 32)
                page = table_[index];
            const bool inside = page >= 0 && page < p_.kv.page_count;
            pages[half] = inside ? page * p_.kv.page_stride : -1;
        }
        const int rows = min(item.keys - tile * kTileKeys, kTileKeys);
#pragma unroll 1
        for (int first = 0; first < rows; first += kRowsAtOnce) {
            const int row = first + lane_ / kLanesOfRow;
            const long long page = __shfl_sync(~0u, first < 32 ? pages[0] : pages[1], row % 32);
            const int slot = __shfl_sync(~0u, first < 32 ? slots[0] : slots[1], row % 32);
            if (page >= 0)
                copy_row(row, p_.kv.data + page, slot & (p_.kv.page_tokens - 1));
            else if (slot >= 0)
                clear_row(row);
        }
        // The warps that multiply these rows order them before their products.
        hold_for_async_copies(arrival());
        arrive_as_warp(arrival());
    }

    // Eight lanes bring a row, 16 bytes each at a time; four rows at once.
    static constexpr int kLanesOfRow = 8;
    static constexpr int kRowsAtOnce = 32 / kLanesOfRow;
    static constexpr int kWideBlocks = T::kFp8 ? 4 : 9;  // of 128 bytes

    // Address of this lane's 16 bytes of a row in the first block.
    __device__ std::byte* place(int row) const {
        return shared_.keys[stage_.index] + row * 128 + ((lane_ % kLanesOfRow ^ (row & 7)) << 4);
    }

    // A slot of a page outside the pool reads zeros here too.
    __device__ void clear_row(int row) {
        std::byte* to = place(row);
#pragma unroll
        for (int block = 0; block < kWideBlocks; ++block)
            *reinterpret_cast<int4*>(to + block * kBlockBytes) = int4{};
        if constexpr (T::kTokenScale) {
            *reinterpret_cast<int4*>(to + T::kRopePlace) = int4{};
            if (lane_ % kLanesOfRow == 0) shared_.key_scale[stage_.index][row] = 1.0f;
        } else if constexpr (T::kFp8) {
            if (lane_ % kLanesOfRow < 4) *reinterpret_cast<int4*>(rope_codes(row)) = int4{};
        }
    }

    // One slot of a page into row `row` of the tile.
    __device__ void copy_row(int row, const std::byte* page, int slot) {
        constexpr int kLatentRow = T::kTokenScale ? 512 : T::kFp8 ? 576 : 1152;
        const int chunk = lane_ % kLanesOfRow;
        const std::byte* from = page + slot * kLatentRow + chunk * 16;
        std::byte* to = place(row);
#pragma unroll
        for (int block = 0; block < kWideBlocks; ++block)
            copy_16_async(to + block * kBlockBytes, from + block * 128);
        if constexpr (T::kTokenScale) {
            const int tokens = p_.kv.page_tokens;
            copy_16_async(to + T::kRopePlace, page + 512 * tokens + slot * 128 + chunk * 16);
            if (chunk == 0)
                copy_4_async(&shared_.key_scale[stage_.index][row], page + 640 * tokens + slot * 4);
        } else if constexpr (T::kFp8) {
            if (chunk < 4) copy_16_async(rope_codes(row), from + 512);
        }
    }
    __device__ std::byte* rope_codes(int row) const {
        return shared_.keys[stage_.index] + T::kRopePlace + row * 64 +
               ((lane_ % kLanesOfRow ^ (row >> 1 & 3)) << 4);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_, page_shift_;
    Ring<T::kStages> stage_;
    const std::int32_t* table_ = nullptr;
    int slots_ = 0;  // of the row that these pages belong to
    // Pages that 64 slots of history and a tail of 64, moved by one, may touch.
    static constexpr int kTailPages = 9;
    int page_base_ = -64;
    int page_ = 0;
    // Set for rows whose tokens are gathered.
    int row_keys_ = 0;
    int history_ = 0;
    int tail_ = 0;
    long long all_ = 0;            // keys over all ranks
    std::uint64_t tail_word_ = 0;  // of the token that is gathered, from the history's end
    // A block's tokens: the first; two words per lane; which are left, and what they see.
    int first_ = 0;
    std::uint64_t word_[2] = {};
    unsigned left_[2] = {};
    int seen_[2] = {};
    int cursor_ = 0;  // next slot of a dense token
};

}  // namespace espalier::mla::cuda
