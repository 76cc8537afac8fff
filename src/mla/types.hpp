// SPDX-License-Identifier: Apache-2.0
// The contract's plain data: cache formats, pages, masks, ragged rows. Device code includes this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/limits.hpp"
#include "base/numeric.hpp"

namespace espalier::mla {

inline constexpr std::int64_t kLatent = 512;           // compressed key = value columns
inline constexpr std::int64_t kRope = 64;              // rotary key columns
inline constexpr std::int64_t kKey = kLatent + kRope;  // 576 columns of a cached slot
inline constexpr std::int64_t kNope = 128;   // decompressed key columns per head, without rope
inline constexpr std::int64_t kValue = 128;  // decompressed value columns per head
inline constexpr std::int64_t kQuery = kNope + kRope;  // 192
inline constexpr std::int64_t kMaxTail = kMaxNodes;    // slots that a mask word speaks of

enum class KvFormat : std::uint8_t { f32, bf16, fp16, fp8_tensor, fp8_token };
std::string_view name_of(KvFormat format);

// Bytes from one page to the next: [page_tokens][576] elements; fp8_token has planes (latent, rope,
// scales).
std::int64_t page_stride_bytes(KvFormat format, std::int64_t page_tokens);

// One layer's pages. Slot s of the pool lies in page s / page_tokens.
struct KvPages {
    std::byte* data = nullptr;
    KvFormat format = KvFormat::bf16;
    std::int32_t page_tokens = 64;  // 16, 32, 64 or 128
    std::int64_t page_stride = 0;   // bytes
    std::int64_t page_count = 0;
    float scale = 1.0f;  // fp8_tensor
};

enum class MaskKind : std::uint8_t { full, causal, tree, dense };

// The ragged rows of one call. All arrays of a call lie in the memory of the device that computes;
// host integers are capacities, so that a captured graph may be replayed with other lengths. Row b
// owns query tokens q_indptr[b] … q_indptr[b+1]-1 of the token arrays; tokens from q_indptr[rows]
// to token_end are padding: their out is 0 and their lse -inf. Tokens before q_indptr[0] belong to
// another call and are left alone. kv_len includes the row's own tokens.
struct RaggedRows {
    std::int32_t rows = 0;                      // B
    std::int64_t token_end = 0;                 // total_q_cap
    const std::int32_t* q_indptr = nullptr;     // [B+1]
    const std::int32_t* kv_len = nullptr;       // [B]
    const std::int32_t* block_table = nullptr;  // [B, block_stride]
    std::int64_t block_stride = 0;
    const MaskKind* mask = nullptr;          // [B]
    const std::int32_t* tail_len = nullptr;  // [B]; null: q_len
    const std::uint64_t* words = nullptr;    // [token_end], tree rows
    const std::uint8_t* custom_mask =
        nullptr;  // dense rows: [q_len × kv_len] at custom_mask_offset[b]
    const std::int64_t* custom_mask_offset = nullptr;
    std::int64_t custom_mask_len = 0;
    std::int32_t max_q_len = 0;  // capacities for workspace
    std::int32_t max_kv_len = 0;
    std::int32_t dcp_world = 1;  // context parallel: local slot c is global slot c·W + r
    std::int32_t dcp_rank = 0;
    const std::int32_t* global_kv_len = nullptr;  // [B]; null unless dcp_world > 1
};

}  // namespace espalier::mla
