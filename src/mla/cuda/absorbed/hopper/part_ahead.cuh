// SPDX-License-Identifier: Apache-2.0
// What the copying warp of the invariant partition knows of its part before all else.
#pragma once

#include "mla/cuda/absorbed/hopper/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

// Words of an item that all lanes ask for.
enum class PlanWord { table = 1, keys = 7, tile_begin = 8, flags = 15 };

// Slots that a row's keys reach.
__device__ inline int slots_of(const AbsorbedParams& p, int keys) {
    return keys == 0 ? 0 : keys + p.rows.first_slot;
}

// A part's plan, a word to a lane, and the ids of its first pages: all that the copying warp must
// know before it asks for keys. Both are in the L1 by then (look_ahead).
class PartAhead {
  public:
    __device__ explicit PartAhead(const AbsorbedParams& p) {
        const int lane = threadIdx.x % 32;
        word_ = reinterpret_cast<const std::int32_t*>(&p.part_plans[blockIdx.x])[lane];
        table_ = p.rows.block_table + field<PlanWord::table>() * p.rows.block_stride;
        slots_ = slots_of(p, field<PlanWord::keys>());
        first_page_ = field<PlanWord::tile_begin>() * kTileKeys >> p.page_shift;
        const int mine = first_page_ + lane;
        page_ = mine <= (slots_ - 1) >> p.page_shift ? table_[mine] : 0;
    }
    // Word of the item's plan.
    template <PlanWord kWord>
    __device__ int field() const {
        return __shfl_sync(~0u, word_, kItemWord + static_cast<int>(kWord));
    }
    __device__ void write_item(Item& to) const {
        const int mine = static_cast<int>(threadIdx.x) % 32 - kItemWord;
        if (mine >= 0 && mine < kItemWords) reinterpret_cast<std::int32_t*>(&to)[mine] = word_;
    }
    __device__ const std::int32_t* table() const { return table_; }
    __device__ int slots() const { return slots_; }
    __device__ int first_page() const { return first_page_; }
    __device__ int page() const { return page_; }

    static constexpr int kItemWords = sizeof(Item) / 4;

  private:
    static constexpr int kItemWord = offsetof(PartPlan, item) / 4;
    static_assert(offsetof(Item, table) == 4 && offsetof(Item, keys) == 7 * 4 &&
                  offsetof(Item, tile_begin) == 8 * 4 && offsetof(Item, flags) == 15 * 4);
    const std::int32_t* table_ = nullptr;
    int word_ = 0, slots_ = 0, first_page_ = 0, page_ = 0;
};

}  // namespace espalier::mla::cuda
