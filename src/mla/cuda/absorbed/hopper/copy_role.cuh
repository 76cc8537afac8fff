// SPDX-License-Identifier: Apache-2.0
// The copying warp: walks through this thread block's share, announces items and asks for keys and
// queries (over FP8 caches those that score bring the queries).
#pragma once

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "mla/cuda/absorbed/hopper/key_fetch.cuh"

namespace espalier::mla::cuda {

__device__ inline int part_of(const AbsorbedParams& p) {
    return static_cast<int>(blockIdx.x) / p.lanes;
}

// Brings the plan and the first page ids to the L1 before a warp waits for them.
__device__ inline void look_ahead(const AbsorbedParams& p) {
    const Item& item = p.part_plans[part_of(p)].item;
    const int page =
        (item.tile_begin * kTileKeys >> p.page_shift) + static_cast<int>(threadIdx.x) % 32;
    if (page > (item.keys - 1) >> p.page_shift) return;
    [[maybe_unused]] std::int32_t id;
    asm volatile("ld.global.b32 %0, [%1];"
                 : "=r"(id)
                 : "l"(p.rows.block_table + item.table * p.rows.block_stride + page));
}

// Hands items on, with their keys and queries. Only the invariant partition has items that share
// queries.
template <KvFormat kFormat, bool kInvariant, bool kOneToken = false>
class ItemFeeder {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ ItemFeeder(const AbsorbedParams& p, Shared& shared)
        : p_(p),
          shared_(shared),
          lane_(threadIdx.x % 32),
          keys_(p, shared),
          early_(kInvariant && p.early_keys) {}

    __device__ KeyFetcher<kFormat, kOneToken>& keys() { return keys_; }
    __device__ Item* deferred() { return shared_.deferred; }

    // An item without tiles.
    __device__ void tell(const Item& item) {
        write_down(item);
        announce();
    }
    __device__ void end() {
        Item& place = free_place();
        if (lane_ == 0) place.last = 1;
        announce();
    }
    // Source of the next item.
    __device__ void place(const Item& item) {
        keys_.begin(item);
        write_down(item);
    }
    __device__ void place(const PartAhead& ahead) {
        keys_.begin(ahead);
        ahead.write_item(free_place());
        __syncwarp();
    }

    // The other roles learn of an item when its first keys are asked for. The queries are asked
    // for while the page ids are on their way, unless the last item's are still in use: a place for
    // keys is free earlier.
    __device__ void fetch() {
        const Item& item = shared_.items[items_.index];  // registers are few here
        const int tile_begin = item.tile_begin;
        const int tile_end = item.tile_end;
        if (tile_begin == tile_end || (kInvariant && (item.flags & kMerges) != 0))
            return announce();
        // Tile at which the wait for the previous kernel is over, and where the item is announced.
        const int wait_at = kInvariant && early_ ? settled_tiles(item) : tile_begin;
        const int tell_at = max(wait_at, tile_begin + 1);
        bool asked = T::kFp8 || (kInvariant && (item.flags & kNewQuery) == 0);
#pragma unroll 1
        for (int tile = tile_begin;; ++tile) {
            if (kInvariant && early_ && tile == wait_at) {
                wait_for_previous_kernel();
                early_ = false;
            }
            if (tile == tell_at) announce();
            if (!asked && tile >= wait_at &&
                (tile >= tell_at || phase_done(&shared_.query_free, query_phase_ ^ 1))) {
                fetch_query(item);
                asked = true;
            }
            if (tile == tile_end) break;
            keys_.ask(item, tile);
        }
    }

  private:
    // Up to which tile the first item's keys may be asked for before the previous kernel has ended:
    // those that no token of this call wrote, as many as there are places.
    __device__ int settled_tiles(const Item& item) const {
        if (!kOneToken && p_.rows.dcp_world > 1) return item.tile_begin;
        const int settled =
            item.gathered < 0 ? item.keys - item.tokens : keys_.settled_history(item.tokens);
        return max(min(min(item.tile_end, item.tile_begin + T::kStages), settled / kTileKeys),
                   item.tile_begin);
    }

    __device__ Item& free_place() {
        wait(&shared_.item_free[items_.index], items_.phase ^ 1);
        return shared_.items[items_.index];
    }
    __device__ void write_down(const Item& item) {
        Item& place = free_place();
        if (lane_ == 0) place = item;
        if (kInvariant && !kOneToken && item.mask == kOwnKeys)
            keys_.tell_seen(shared_.seen[items_.index]);
        __syncwarp();
    }
    __device__ void announce() {
        arrive_as_warp(&shared_.item_full[items_.index]);
        items_.advance();
    }

    // Only as many rows as the call has, block by block of 64 columns: products read further, but
    // what comes of it is written to no output.
    __device__ void fetch_query(const Item& item) {
        wait(&shared_.query_free, query_phase_ ^ 1);
        query_phase_ ^= 1;
        if (lane_ != 0) return;
        arrive_expecting(&shared_.query_full, 9 * p_.query_rows * 128);
        copy_tensor_3d(shared_.query, &p_.query_map, &shared_.query_full, 0, item.packed_first, 0,
                       kEvictLast);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_;
    KeyFetcher<kFormat, kOneToken> keys_;
    bool early_;  // the previous kernel may not have ended
    Ring<2> items_;
    std::uint32_t query_phase_ = 0;
};

// The flexible partition's.
template <KvFormat kFormat>
class Copier {
    using T = Traits<kFormat>;
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ Copier(const AbsorbedParams& p, Shared& shared) : p_(p), feeder_(p, shared) {}

    // The whole warp. There is one place from which an item is fetched: inlined at three, this
    // warp's code alone was 134 KB.
    __device__ void run() {
        const int part = part_of(p_);
        const PartPlan& plan = p_.part_plans[part];  // read where it is needed: registers are few
        int start = plan.begin < plan.end ? plan.start : plan.end;
#pragma unroll 1
        for (int row = plan.row; start < plan.end; ++row) {
            Share share;
            const bool ready = plan.even && p_.max_blocks == 1;  // nothing left to find out
            if (ready) {
                share.end = 1;
                start = plan.end;
            } else if (plan.even) {
                take_piece(share, plan.item);
                start = plan.end;
            } else {
                share.shape = row_shape(p_, row);
                start += take_tiles(share, plan, start, part);
            }
#pragma unroll 1
            for (; share.unit < share.end; share.unit += share.step) {
                const Item item = ready ? plan.item : item_of(share, row);
                if (item.tile_begin >= item.tile_end) continue;
                feeder_.place(item);
                feeder_.fetch();
            }
        }
        feeder_.end();
    }

  private:
    // This thread block's share of one row: blocks of packed rows by a run of tiles.
    struct Share {
        RowShape shape;
        int unit = 0, end = 0, step = 1;
        int tile_begin = 0, tile_end = 0;  // flexible
        int slot = -1, slot_step = 0;      // of unit 0; -1: the output itself
    };

    __device__ void take_blocks(Share& share, bool whole, int slot) {
        if (p_.lanes > 1) share.unit = static_cast<int>(blockIdx.x) % p_.lanes;
        share.end = row_blocks(p_, share.shape);
        share.step = p_.lanes;
        if (whole) return;
        share.slot = slot;
        share.slot_step = 2;
    }

    __device__ void take_piece(Share& share, const Item& item) {
        share.shape = {item.first_token, item.tokens, item.keys, static_cast<MaskKind>(item.mask)};
        share.tile_begin = item.tile_begin;
        share.tile_end = item.tile_end;
        take_blocks(share, item.slot < 0, item.slot);
    }

    // Returns how far along the line the row reaches.
    __device__ int take_tiles(Share& share, const PartPlan& plan, int start, int part) {
        const int cost = row_cost(p_, Partition{}, share.shape);
        const int tiles = cost - p_.row_cost;
        const int first_tile = start + p_.row_cost;
        share.tile_begin = max(plan.begin - first_tile, 0);
        share.tile_end = min(plan.end - first_tile, tiles);
        if (share.tile_end > share.tile_begin)
            take_blocks(share, share.tile_begin == 0 && share.tile_end == tiles,
                        part * p_.max_blocks * 2 + (first_tile > plan.begin ? 1 : 0));
        return cost;
    }

    __device__ Item item_of(const Share& share, int row) {
        const RowShape& shape = share.shape;
        Item item = row_item(p_, row, shape);
        item.slot = share.slot + share.unit * share.slot_step;
        const int first = share.unit * T::kRows;
        place_columns(p_, item, shape, first, min(shape.tokens * p_.heads, first + T::kRows));
        item.tile_begin = share.tile_begin;
        item.tile_end = share.tile_end;
        return item;
    }

    const AbsorbedParams& p_;
    ItemFeeder<kFormat, false> feeder_;
};

}  // namespace espalier::mla::cuda
