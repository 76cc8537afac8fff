// SPDX-License-Identifier: Apache-2.0
// Decompressed attention of fp16 queries: the grid comes from the host's capacities, blocks without
// work leave at once, and data that contradict the capacities are not followed.
#include <algorithm>
#include <limits>

#include "mla/cuda/entries.hpp"
#include "mla/cuda/launch.hpp"
#include "mla/cuda/order.hpp"
#include "mla/cuda/prompt/decompressed_fp16.cuh"

namespace espalier::mla::cuda {
namespace {

// Rows of the output that no key can give: a mask that is not causal.
__device__ void fill_nan(const DecompressedParams& params, int head, std::int64_t first_token,
                         int count) {
    for (int i = static_cast<int>(threadIdx.x); i < count * kValue; i += blockDim.x) {
        const std::int64_t packed = (first_token + i / kValue) * params.heads + head;
        const std::int64_t index = packed * kValue + i % kValue;
        if (params.out_dtype == DType::f32)
            reinterpret_cast<unsigned*>(params.out)[index] = 0x7fc00000u;
        else  // a quiet NaN of bf16 and of fp16
            reinterpret_cast<unsigned short*>(params.out)[index] = 0x7fc0u;
        if (params.lse != nullptr && i % kValue == 0) params.lse[packed] = NAN;
    }
}

// Blocks of one tile of tokens: heads side by side, since they read the same latents; later tokens,
// which see more keys, first.
template <typename Config>
__global__ void __launch_bounds__(Config::kThreads, 1)
    decompressed_kernel(const __grid_constant__ DecompressedParams params) {
    extern __shared__ __align__(128) std::byte shared[];
    const int head = static_cast<int>(blockIdx.x % params.heads);
    const int tile_and_row = static_cast<int>(blockIdx.x / params.heads);
    const int tile = params.query_tiles - 1 - tile_and_row % params.query_tiles;
    const int row = tile_and_row / params.query_tiles;

    const RaggedRows& rows = params.rows;
    const std::int64_t begin = rows.q_indptr[row];
    const std::int64_t q_len = std::int64_t{rows.q_indptr[row + 1]} - begin;
    const std::int64_t first = std::int64_t{tile} * Config::kQueries;
    if (begin < 0 || q_len > rows.max_q_len || begin + q_len > rows.token_end || first >= q_len)
        return;
    const std::int64_t left = q_len - first;
    const int count = left < Config::kQueries ? static_cast<int>(left) : Config::kQueries;
    if (rows.mask[row] != MaskKind::causal) return fill_nan(params, head, begin + first, count);
    std::int32_t keys = rows.kv_len[row];
    if (keys < 0 || keys > rows.max_kv_len || table_of(rows, row) < 0) keys = 0;
    keys = max(keys - rows.first_slot, 0);
    DecompressedBlock<Config> block(params, shared);
    const std::int64_t limit = keys - (q_len - 1) + first;  // its magnitude is below 2^31
    block.run(row, head, begin + first, count, static_cast<std::int32_t>(limit), keys);
}

// Tokens from q_indptr[rows] to token_end: out 0, lse -inf. Both regions are contiguous.
__global__ void padding_kernel(const __grid_constant__ DecompressedParams params, int out_bytes) {
    const std::int64_t end = params.rows.token_end;
    std::int64_t begin = params.rows.q_indptr[params.rows.rows];
    if (begin < 0) begin = 0;
    const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
    const std::int64_t mine = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const std::int64_t token_units = params.heads * kValue * out_bytes / 16;
    auto* out = reinterpret_cast<uint4*>(params.out);
    for (std::int64_t i = begin * token_units + mine; i < end * token_units; i += step)
        out[i] = uint4{};
    if (params.lse == nullptr) return;
    for (std::int64_t i = begin * params.heads + mine; i < end * params.heads; i += step)
        params.lse[i] = -INFINITY;
}

template <typename Config>
Expected<void> launch(cudaStream_t stream, DecompressedParams params) {
    const std::int64_t query_tiles =
        (std::int64_t{params.rows.max_q_len} + Config::kQueries - 1) / Config::kQueries;
    const std::int64_t blocks = query_tiles * params.rows.rows * params.heads;
    if (blocks == 0) return {};
    if (blocks > std::numeric_limits<std::int32_t>::max())
        return fail(ErrorKind::unsupported,
                    "decompressed attention of {} rows with max_q_len {} and {} heads: {} blocks",
                    params.rows.rows, params.rows.max_q_len, params.heads, blocks);
    params.query_tiles = static_cast<std::int32_t>(query_tiles);
    ESPALIER_RETURN_IF_ERROR(checked(
        cudaFuncSetAttribute(decompressed_kernel<Config>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes),
        "the shared memory of decompressed attention"));
    decompressed_kernel<Config>
        <<<static_cast<unsigned>(blocks), Config::kThreads, Config::kSharedBytes, stream>>>(params);
    return launched("decompressed attention");
}

}  // namespace

Expected<void> decompressed_fp16(OpContext& context, const DecompressedCall& call) {
    const cudaStream_t stream = stream_of(context);
    if (call.rows.token_end == 0) return {};
    context.order.launch(decompressed_needs(call, {}));
    const DecompressedParams params{.rows = call.rows,
                                    .kv = call.kv,
                                    .q = call.q,
                                    .up_rows = call.up_key.data,
                                    .out = call.out,
                                    .lse = call.lse,
                                    .scale = call.scale,
                                    .heads = call.heads,
                                    .query_tiles = 0,
                                    .out_dtype = call.out_dtype};
    constexpr int kPaddingThreads = 256;
    const auto padding_blocks =
        static_cast<unsigned>(std::min<std::int64_t>(call.rows.token_end, 128));
    padding_kernel<<<padding_blocks, kPaddingThreads, 0, stream>>>(
        params, static_cast<int>(bytes_of(call.out_dtype)));
    ESPALIER_RETURN_IF_ERROR(launched("the padding of decompressed attention"));
    switch (call.kv.format) {
        case KvFormat::fp16:
            return launch<DecompressedConfig<KvFormat::fp16>>(stream, params);
        case KvFormat::fp8_tensor:
            return launch<DecompressedConfig<KvFormat::fp8_tensor>>(stream, params);
        case KvFormat::fp8_token:
            return launch<DecompressedConfig<KvFormat::fp8_token>>(stream, params);
        case KvFormat::bf16:
        case KvFormat::f32:
            break;
    }
    return fail(ErrorKind::unsupported, "decompressed attention of {} queries over a {} cache",
                name_of(call.q_dtype), name_of(call.kv.format));
}

}  // namespace espalier::mla::cuda
