// SPDX-License-Identifier: Apache-2.0
// Decompressed attention of bf16 queries: what its three kernels are told. A call goes through its
// rows and heads in groups that fit the scratch: key_gather brings the latents of a group of rows
// from their pages, up_project makes keys and values of a group of heads of them, prompt_attention
// attends.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "mla/types.hpp"

namespace espalier::mla::cuda {

// Keys that up_project takes at once. Scratch beyond a row's last key is zeros up to a whole tile
// of attention and of this.
inline constexpr int kProjectKeys = 128;

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
    return (value + unit - 1) / unit * unit;
}
constexpr std::int64_t padded_keys(std::int64_t keys, int tile) {
    return round_up(round_up(keys, tile), kProjectKeys);
}

// Rows first … first + count - 1 of the call; the keys of each have key_stride places in scratch.
struct RowGroup {
    RaggedRows rows;
    std::int32_t first = 0;
    std::int32_t count = 0;
    std::int32_t key_stride = 0;
    std::int32_t tile = 0;  // of attention
};

// One row, its keys counted from first_slot, as far as it does not contradict the call's
// capacities. One that does has no tokens, or sees nothing.
struct PromptRow {
    std::int32_t begin = 0;  // its first token
    std::int32_t q_len = 0;
    std::int32_t keys = 0;
    bool causal = false;
};

#ifdef __CUDACC__
__device__ inline PromptRow prompt_row(const RaggedRows& rows, std::int32_t index) {
    PromptRow row;
    row.begin = rows.q_indptr[index];
    const std::int64_t q_len = std::int64_t{rows.q_indptr[index + 1]} - row.begin;
    const std::int32_t keys = rows.kv_len[index];
    row.causal = rows.mask[index] == MaskKind::causal;
    if (row.begin < 0 || q_len <= 0 || q_len > rows.max_q_len || row.begin + q_len > rows.token_end)
        return row;
    row.q_len = static_cast<std::int32_t>(q_len);
    if (row.causal && keys > 0 && keys <= rows.max_kv_len && table_of(rows, index) >= 0)
        row.keys = keys - rows.first_slot;
    return row;
}
#endif

struct GatherParams {
    RowGroup group;
    KvPages kv;
    // [count · key_stride, 512], [·, 64] bf16, e4m3 widened but not scaled; [·] f32 (fp8_token)
    std::byte* latent = nullptr;
    std::byte* rope = nullptr;
    float* scale = nullptr;
    std::int32_t* counters = nullptr;  // cleared for the group's launches of attention
    std::int32_t counter_count = 0;
    // The call's padding is cleared with its first group.
    bool clear_padding = false;
    std::byte* out = nullptr;
    std::int64_t out_token_bytes = 0;
    float* lse = nullptr;
    std::int32_t heads = 0;
};

struct ProjectParams {
    CUtensorMap latent_map;     // [count · key_stride, 512], boxes of 128 keys × 64
    CUtensorMap weight_map;     // [heads · outputs, 512], boxes of 256 × 64
    CUtensorMap projected_map;  // [head, key, outputs], boxes of 64 keys × 64
    RowGroup group;
    const float* scale = nullptr;  // of each key's latent; null: all have `unit`
    float unit = 1.0f;
    std::int32_t first_block = 0;  // blocks of 64 outputs, over all heads of the call
    std::int32_t block_count = 0;  // of this group of heads
    std::int32_t head_blocks = 0;  // of one head
};

struct AttendParams {
    CUtensorMap query_map;  // [token, head, columns], boxes of an item's tokens × 64
    CUtensorMap key_map;    // [head, key, outputs], boxes of a tile × 64: key columns, then value
    CUtensorMap rope_map;   // [key, 64], boxes of a tile × 64
    RowGroup group;
    std::byte* out = nullptr;
    float* lse = nullptr;
    std::int32_t* counter = nullptr;  // items taken so far, besides each block's first
    float score_scale = 0.0f;         // to powers of two
    float rope_scale = 1.0f;          // of the rope columns; not 1: fp8_tensor
    bool scaled_rope = false;
    std::int32_t heads = 0;
    std::int32_t first_head = 0;
    std::int32_t head_count = 0;
    std::int32_t query_tiles = 0;  // of a row, at most
    std::int32_t items = 0;
    DType out_dtype = DType::bf16;
};

// Tokens of an item of attention, and keys of a tile: what shared memory has room for twice.
inline constexpr int kPromptQueries = 128;
constexpr int prompt_tile(const HeadDims& dims) { return dims == kWideHead ? 80 : 128; }

// Heads whose items are worked on at the same time: the tiles of one head read the same keys, and
// the L2 holds those of eight (4 MB each at 8,192 keys).
inline constexpr std::int32_t kSectionHeads = 8;

cudaError_t launch_gather(const GatherParams& p, cudaStream_t stream);
cudaError_t launch_projection(const ProjectParams& p, int multiprocessors, cudaStream_t stream);
cudaError_t launch_prompt_attention(const AttendParams& p, const HeadDims& dims,
                                    int multiprocessors, cudaStream_t stream);

}  // namespace espalier::mla::cuda
