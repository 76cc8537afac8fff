// SPDX-License-Identifier: Apache-2.0
// Brings keys, queries and outputs to and from the shape the tile kernels take: groups of 16 keys
// (in place where the cache already has the kernels' elements and all 16 may be read, copied and
// zero-filled otherwise), queries in lanes, finished rows in the caller's dtype.
#pragma once

#include <cstdint>

#include "mla/contract.hpp"
#include "mla/cpu/key_order.hpp"
#include "mla/cpu/tile_kernels.hpp"

namespace espalier::mla::cpu {

std::int64_t element_bytes(const TileKernels& kernels);

// A row's cache as groups of 16 keys of 576 elements.
class KeySource {
  public:
    KeySource(const TileKernels& kernels, const KvPages& kv, const RowView& row)
        : kernels_(kernels), kv_(kv), pages_(row.pages) {}

    // Slots [first, first + count), count ≤ 16, first a multiple of 16; `copy` holds 16 keys.
    const std::byte* straight(std::int64_t first, std::int64_t count, std::byte* copy) const;
    // Any slots, count ≤ 16.
    const std::byte* gathered(const std::int32_t* slots, std::int64_t count, std::byte* copy) const;

  private:
    const std::byte* address(std::int64_t slot) const;
    void copy_key(std::int64_t slot, std::byte* to) const;
    void clear_keys(std::int64_t from, std::byte* copy) const;

    const TileKernels& kernels_;
    const KvPages& kv_;
    const std::int32_t* pages_;
};

// One packed row's `columns` into lane `lane` of a query block; q points at its first element.
void pack_query(const TileKernels& kernels, const std::byte* q, DType dtype, std::int64_t columns,
                int lane, std::byte* block);
void clear_query(const TileKernels& kernels, std::int64_t columns, int lane, std::byte* block);

void reset_state(const LaneState& state, std::int64_t columns);

// Where finished rows go; `packed` is token · heads + head.
struct OutputRows {
    std::byte* out = nullptr;
    DType dtype = DType::bf16;
    float* lse = nullptr;
    std::int64_t columns = 0;

    // Divides by the softmax sum; a lane that saw nothing gives zeros and -inf.
    void finish(const TileKernels& kernels, const LaneState& state, int lane,
                std::int64_t packed) const;
    void nothing(std::int64_t packed) const;
};

}  // namespace espalier::mla::cpu
