// SPDX-License-Identifier: Apache-2.0
// Brings keys, queries and outputs to and from the shape the tile kernels take: groups of 16 keys
// (in place where the cache already has the kernels' elements and all 16 may be read, copied and
// zero-filled otherwise), queries in lanes, finished rows in the caller's dtype.
#pragma once

#include <cstdint>

#include "mla/contract.hpp"
#include "mla/cpu/key_order.hpp"
#include "mla/cpu/tile_kernels.hpp"
#include "mla/storage.hpp"

namespace espalier::mla::cpu {

std::int64_t element_bytes(const TileKernels& kernels);

// Use of a (query, cache) pair by the kernels. bf16 kernels multiply e4m3 codes and apply scales
// afterwards, exactly once: one scale for all to the scores and the finished rows, a token's own to
// its scores and probabilities. f32 kernels get keys that are scaled already.
struct Elements {
    bool in_place = false;      // the cache's 16 keys are the kernels' 16 keys
    bool codes = false;         // e4m3, for bf16 kernels to widen
    bool token_scales = false;  // keys come with scales of their own
    float key_scale = 1.0f;     // of all keys
    int query_terms = 1;        // f16 queries are the sum of two bf16 ones
};
Elements elements_of(const TileKernels& kernels, KvFormat format, float kv_scale, DType query);

// Scores over keys of row_pairs pairs, of which [first, first + pairs) are multiplied by the key's
// own scale (none: pairs = 0).
ScorePlan plan_scores(int row_pairs, int first, int pairs, int query_terms);

// A row's cache as groups of 16 keys, rows of all their columns.
class KeySource {
  public:
    KeySource(const TileKernels& kernels, const Elements& elements, const KvPages& kv,
              const RowView& row)
        : kernels_(kernels),
          elements_(elements),
          kv_(kv),
          pages_(row.pages),
          first_slot_(row.first_slot) {}

    // Straight logical keys [first, first + count), count ≤ 16, first a multiple of 16; `copy`
    // holds 16 keys and `scales` the 16 scales of keys that have them.
    const std::byte* straight(std::int64_t first, std::int64_t count, std::byte* copy,
                              float* scales) const;
    // Any slots, count ≤ 16.
    const std::byte* gathered(const std::int32_t* slots, std::int64_t count, std::byte* copy,
                              float* scales) const;
    // Lines to fetch (KeyTile::ahead) before 16 straight keys are needed. Scales, one line, are
    // fetched here.
    void lines(std::int64_t first, const std::byte*& keys, const std::byte*& rope) const;
    int line_step() const;
    // True if 16 straight keys lie in one page: always, if the row begins at slot 0.
    bool in_one_page(std::int64_t first) const { return in_page(first) >= kGroupKeys; }
    // 16 straight keys of one page for the kernels to widen into `to`, and their scales.
    Widening widening(std::int64_t first, std::byte* to, float* scales) const;

  private:
    std::int64_t slot_of(std::int64_t slot) const {
        return pool_slot(pages_, kv_.page_tokens, slot);
    }
    std::int64_t straight_slot(std::int64_t key) const { return slot_of(first_slot_ + key); }
    // Straight keys from this one on that are left in its page.
    std::int64_t in_page(std::int64_t key) const {
        return kv_.page_tokens - (first_slot_ + key) % kv_.page_tokens;
    }
    // Slots [slot, slot + count) of the pool, all in one page.
    void copy_keys(std::int64_t slot, std::int64_t count, std::byte* to, float* scales) const;
    void copy_token_keys(std::int64_t slot, std::int64_t count, std::byte* to, float* scales) const;
    void clear_keys(std::int64_t from, std::byte* copy, float* scales) const;

    const TileKernels& kernels_;
    const Elements& elements_;
    const KvPages& kv_;
    const std::int32_t* pages_;
    std::int64_t first_slot_;
};

// 16 packed rows as a query block: `lanes` rows of `columns`, q points at the first element of lane
// 0's row, row_stride elements apart; the other lanes are zeros.
void pack_queries(const TileKernels& kernels, const std::byte* q, DType dtype, std::int64_t columns,
                  std::int64_t row_stride, int lanes, std::byte* block);
// f32, or two terms of bf16.
constexpr std::int64_t query_block_bytes(std::int64_t columns) { return columns * kLanes * 4; }

void reset_state(const LaneState& state, std::int64_t columns);

// Destination of finished rows; `packed` is token · heads + head.
struct OutputRows {
    std::byte* out = nullptr;
    DType dtype = DType::bf16;
    float* lse = nullptr;
    std::int64_t columns = 0;
    float scale = 1.0f;  // of all values

    // Divides by the softmax sum; a lane that saw nothing gives zeros and -inf.
    void finish(const TileKernels& kernels, const LaneState& state, int lane,
                std::int64_t packed) const;
    void nothing(std::int64_t packed) const;
};

}  // namespace espalier::mla::cpu
