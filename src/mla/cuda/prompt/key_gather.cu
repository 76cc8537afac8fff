// SPDX-License-Identifier: Apache-2.0
// Brings the cached latents of a group of rows from their pages into one dense array, e4m3 widened
// to bf16 (exact), zeros behind a row's last key. A page id outside the pool reads as zeros.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "base/cuda/mma.cuh"
#include "mla/cuda/prompt/decompressed_params.hpp"

namespace espalier::mla::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlockKeys = 32;
constexpr int kLatentChunks = static_cast<int>(kLatent) / 8;  // of eight columns
constexpr int kChunks = static_cast<int>(kKey) / 8;

// Addresses of a key's latent, rope and scale; null where there is no such page.
struct SlotPlace {
    const std::byte* latent = nullptr;
    const std::byte* rope = nullptr;
    const float* scale = nullptr;
};

template <KvFormat kFormat>
__device__ SlotPlace place_of(const GatherParams& p, const std::int32_t* pages, std::int32_t key) {
    const KvPages& kv = p.kv;
    const std::int32_t slot = p.group.rows.first_slot + key;
    const std::int32_t entry = slot / kv.page_tokens;
    if (entry >= p.group.rows.block_stride) return {};
    const std::int64_t page_id = pages[entry];
    if (page_id < 0 || page_id >= kv.page_count) return {};
    const std::byte* page = kv.data + page_id * kv.page_stride;
    const std::int64_t tokens = kv.page_tokens;
    const std::int64_t place = slot % kv.page_tokens;
    if constexpr (kFormat == KvFormat::fp8_token)
        return {page + place * kLatent, page + tokens * kLatent + place * kRope * 2,
                reinterpret_cast<const float*>(page + tokens * (kLatent + kRope * 2)) + place};
    constexpr std::int64_t kElement = kFormat == KvFormat::fp8_tensor ? 1 : 2;
    const std::byte* row = page + place * kKey * kElement;
    return {row, row + kLatent * kElement, nullptr};
}

// Two e4m3 as bf16: every e4m3 number is one.
__device__ std::uint32_t widen_pair(std::uint32_t codes) {
    const std::uint32_t halves = widen_e4m3(codes);
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(halves));
    const __nv_bfloat162 wide = __floats2bfloat162_rn(pair.x, pair.y);
    return reinterpret_cast<const std::uint32_t&>(wide);
}

// Eight columns from `chunk` on.
template <bool kCodes>
__device__ uint4 load_chunk(const std::byte* from, int chunk) {
    if constexpr (!kCodes) return reinterpret_cast<const uint4*>(from)[chunk];
    const uint2 codes = reinterpret_cast<const uint2*>(from)[chunk];
    return make_uint4(widen_pair(codes.x), widen_pair(codes.x >> 16), widen_pair(codes.y),
                      widen_pair(codes.y >> 16));
}

// Tokens from q_indptr[rows] to token_end: out 0, lse -inf. Both regions are contiguous.
__device__ void clear_padding(const GatherParams& p) {
    const RaggedRows& rows = p.group.rows;
    std::int64_t begin = rows.q_indptr[rows.rows];
    if (begin < 0) begin = 0;
    const std::int64_t blocks = std::int64_t{gridDim.x} * gridDim.y;
    const std::int64_t block = std::int64_t{blockIdx.y} * gridDim.x + blockIdx.x;
    const std::int64_t mine = block * kThreads + threadIdx.x;
    const std::int64_t units = p.out_token_bytes / 16;
    auto* out = reinterpret_cast<uint4*>(p.out);
    for (std::int64_t i = begin * units + mine; i < rows.token_end * units; i += blocks * kThreads)
        out[i] = uint4{};
    if (p.lse == nullptr) return;
    for (std::int64_t i = begin * p.heads + mine; i < rows.token_end * p.heads;
         i += blocks * kThreads)
        p.lse[i] = -INFINITY;
}

template <KvFormat kFormat>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ GatherParams p) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (blockIdx.x == 0 && blockIdx.y == 0)
        for (int i = static_cast<int>(threadIdx.x); i < p.counter_count; i += kThreads)
            p.counters[i] = 0;
    if (p.clear_padding) clear_padding(p);
    if (blockIdx.y >= p.group.count) return;
    const std::int32_t index = p.group.first + static_cast<std::int32_t>(blockIdx.y);
    const PromptRow row = prompt_row(p.group.rows, index);
    const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * kBlockKeys;
    if (row.keys == 0 || first >= padded_keys(row.keys, p.group.tile)) return;
    const std::int32_t* pages =
        p.group.rows.block_table + table_of(p.group.rows, index) * p.group.rows.block_stride;
    const std::int64_t to = std::int64_t{blockIdx.y} * p.group.key_stride + first;
    auto* latent = reinterpret_cast<uint4*>(p.latent) + to * kLatentChunks;
    auto* rope = reinterpret_cast<uint4*>(p.rope) + to * (kChunks - kLatentChunks);
    constexpr bool kLatentCodes = kFormat == KvFormat::fp8_token || kFormat == KvFormat::fp8_tensor;
    constexpr bool kRopeCodes = kFormat == KvFormat::fp8_tensor;
    for (int i = static_cast<int>(threadIdx.x); i < kBlockKeys * kChunks; i += kThreads) {
        const int key = i / kChunks;
        const int chunk = i % kChunks;
        const SlotPlace from =
            first + key < row.keys ? place_of<kFormat>(p, pages, first + key) : SlotPlace{};
        const bool there = from.latent != nullptr;
        if (chunk < kLatentChunks)
            latent[key * kLatentChunks + chunk] =
                there ? load_chunk<kLatentCodes>(from.latent, chunk) : uint4{};
        else
            rope[key * (kChunks - kLatentChunks) + chunk - kLatentChunks] =
                there ? load_chunk<kRopeCodes>(from.rope, chunk - kLatentChunks) : uint4{};
        if (kFormat == KvFormat::fp8_token && chunk == 0)
            p.scale[to + key] = there ? *from.scale : 0.0f;
    }
}

}  // namespace

cudaError_t launch_gather(const GatherParams& p, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned>(p.group.key_stride / kBlockKeys),
                      static_cast<unsigned>(p.group.count > 0 ? p.group.count : 1));
    const LaunchShape shape{.grid = blocks, .threads = kThreads, .limit = SharedLimit::raised};
    switch (p.kv.format) {
        case KvFormat::bf16:
            return try_launch(gather_kernel<KvFormat::bf16>, shape, stream, p);
        case KvFormat::fp8_tensor:
            return try_launch(gather_kernel<KvFormat::fp8_tensor>, shape, stream, p);
        case KvFormat::fp8_token:
            return try_launch(gather_kernel<KvFormat::fp8_token>, shape, stream, p);
        case KvFormat::fp16:
        case KvFormat::f32:
            break;
    }
    return cudaErrorNotSupported;  // refused by the checks
}

}  // namespace espalier::mla::cuda
