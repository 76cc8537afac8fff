// SPDX-License-Identifier: Apache-2.0
// How one slot lies in a page, in every format: reading it back, writing it, moving it. Slots are
// numbered through the pool (slot s lies in page s / page_tokens); all offsets are 64-bit.
#pragma once

#include <cstdint>

#include "mla/contract.hpp"

namespace espalier::mla {

// Slot `slot` of a row, through its block table.
constexpr std::int64_t pool_slot(const std::int32_t* pages, std::int32_t page_tokens,
                                 std::int64_t slot) {
    return static_cast<std::int64_t>(pages[slot / page_tokens]) * page_tokens + slot % page_tokens;
}

// First byte of a part of a slot.
inline std::byte* part_bytes(const KvPages& kv, const SlotPart& part, std::int64_t slot) {
    return kv.data + slot / kv.page_tokens * kv.page_stride + part.first +
           slot % kv.page_tokens * part.bytes;
}

// First byte of a slot's columns; formats whose slots lie in one part (all but fp8_token).
inline std::byte* slot_bytes(const KvPages& kv, std::int64_t slot) {
    return part_bytes(kv, slot_parts(kv.format, kv.dims, kv.page_tokens).part[0], slot);
}

// The three planes of an fp8_token page, at one slot.
struct TokenPlanes {
    std::byte* latent;  // e4m3 [latent]
    std::byte* rope;    // bf16 [rope]
    std::byte* scale;   // f32
};
TokenPlanes token_planes(const KvPages& kv, std::int64_t slot);

// The kv.dims.key() columns of a slot, dequantised exactly.
void read_slot(const KvPages& kv, std::int64_t slot, double* columns);

// Quantises one token into a slot. What the format would hold as NaN or infinity (a non-finite
// input, or one beyond the range of bf16 or fp16) is stored as 0; returns whether that happened.
bool write_slot(const KvPages& kv, std::int64_t slot, const float* latent, const float* rope);

// Both slots of the same pages.
void move_slot(const KvPages& kv, std::int64_t source, std::int64_t destination);

}  // namespace espalier::mla
