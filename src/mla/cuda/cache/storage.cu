// SPDX-License-Identifier: Apache-2.0
// Append and compact on CUDA: the bytes of storage.cpp (quantise.hpp is the one text of the
// rounding), in parallel. Slots outside the pool are skipped.
#include <algorithm>

#include "base/cuda/kernel_order.cuh"
#include "base/cuda/launch.hpp"
#include "mla/cuda/entries.hpp"
#include "mla/cuda/launch.hpp"
#include "mla/cuda/order.hpp"
#include "mla/quantise.hpp"

namespace espalier::mla::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffffu;

// Addresses of the slot's latent, rope and (fp8_token) scale.
struct SlotPlaces {
    std::byte* latent;
    std::byte* rope;
    float* scale;
};

template <KvFormat kFormat>
__device__ SlotPlaces places_of(const KvPages& kv, std::int64_t slot) {
    const std::int64_t tokens = kv.page_tokens;
    std::byte* page = kv.data + slot / tokens * kv.page_stride;
    const std::int64_t place = slot % tokens;
    if constexpr (kFormat == KvFormat::fp8_token) {
        return {page + place * kLatent, page + tokens * kLatent + place * kRope * 2,
                reinterpret_cast<float*>(page + tokens * (kLatent + kRope * 2)) + place};
    } else {
        constexpr std::int64_t kElement = kFormat == KvFormat::fp8_tensor ? 1 : 2;
        std::byte* row = page + place * kKey * kElement;
        return {row, row + kLatent * kElement, nullptr};
    }
}

__device__ bool in_pool(const KvPages& kv, std::int64_t slot) {
    return slot >= 0 && slot < kv.page_count * kv.page_tokens;
}

// Columns 2·pair and 2·pair + 1 in one store. Returns whether one was flushed.
template <typename T>
__device__ bool store_pair(std::byte* columns, int pair, Quantised<T> low, Quantised<T> high) {
    using Word = std::conditional_t<sizeof(T) == 1, std::uint16_t, std::uint32_t>;
    const auto word = static_cast<Word>(
        low.stored.bits | static_cast<std::uint32_t>(high.stored.bits) << (8 * sizeof(T)));
    reinterpret_cast<Word*>(columns)[pair] = word;
    return low.flushed || high.flushed;
}

template <typename T>
__device__ bool store_rounded(std::byte* columns, int pair, float2 values) {
    return store_pair(columns, pair, quantise<T>(values.x), quantise<T>(values.y));
}

__device__ bool store_scaled(std::byte* columns, int pair, float2 values, float scale) {
    return store_pair(columns, pair, quantise_e4m3(values.x, scale),
                      quantise_e4m3(values.y, scale));
}

constexpr int kLatentPairs = static_cast<int>(kLatent) / 2 / 32;  // of a lane: 8
static_assert(kRope == 64, "a lane has one pair of rope columns");

// One warp writes one token: lane l holds the pairs l, l + 32, … of its columns.
template <KvFormat kFormat>
__device__ bool write_token(const KvPages& kv, const float* from, const float* rope_from,
                            std::int64_t slot, int lane) {
    float2 latent[kLatentPairs];
#pragma unroll
    for (int i = 0; i < kLatentPairs; ++i) {
        const int pair = i * 32 + lane;
        latent[i] = make_float2(from[2 * pair], from[2 * pair + 1]);
    }
    const float2 rope = make_float2(rope_from[2 * lane], rope_from[2 * lane + 1]);

    const SlotPlaces to = places_of<kFormat>(kv, slot);
    bool flushed = false;
    if constexpr (kFormat == KvFormat::bf16 || kFormat == KvFormat::fp16) {
        using T = std::conditional_t<kFormat == KvFormat::bf16, Bf16, Fp16>;
#pragma unroll
        for (int i = 0; i < kLatentPairs; ++i)
            flushed |= store_rounded<T>(to.latent, i * 32 + lane, latent[i]);
        flushed |= store_rounded<T>(to.rope, lane, rope);
    } else {
        float scale = kv.scale;
        if constexpr (kFormat == KvFormat::fp8_token) {
            float largest = 0.0f;
#pragma unroll
            for (int i = 0; i < kLatentPairs; ++i)
                largest = fmaxf(
                    largest, fmaxf(finite_magnitude(latent[i].x), finite_magnitude(latent[i].y)));
            for (int distance = 16; distance > 0; distance /= 2)
                largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
            scale = token_scale(largest);
            if (lane == 0) *to.scale = scale;
        }
#pragma unroll
        for (int i = 0; i < kLatentPairs; ++i)
            flushed |= store_scaled(to.latent, i * 32 + lane, latent[i], scale);
        if constexpr (kFormat == KvFormat::fp8_token)
            flushed |= store_rounded<Bf16>(to.rope, lane, rope);
        else
            flushed |= store_scaled(to.rope, lane, rope, scale);
    }
    return __any_sync(kAllLanes, flushed);
}

constexpr int kAppendWarps = 4;

template <KvFormat kFormat>
__global__ void __launch_bounds__(kAppendWarps * 32) append_kernel(const AppendCall call) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    const int lane = static_cast<int>(threadIdx.x % 32);
    const std::int64_t step = std::int64_t{gridDim.x} * kAppendWarps;
    for (std::int64_t token = std::int64_t{blockIdx.x} * kAppendWarps + threadIdx.x / 32;
         token < call.tokens; token += step) {
        const std::int64_t slot = call.slot[token];  // the same for the whole warp
        const bool flushed = in_pool(call.kv, slot) &&
                             write_token<kFormat>(call.kv, call.latent + token * call.latent_stride,
                                                  call.rope + token * call.rope_stride, slot, lane);
        if (flushed && lane == 0 && call.nonfinite != nullptr) call.nonfinite[token] = 1;
    }
}

// A block for a token. The norm's sum has the order of the backend's (ops/cuda/rows.cu): thread i
// has columns i and i + 256, then lanes and warps go through trees. No step is fused.
constexpr int kRawThreads = 256;
static_assert(kLatent == 2 * kRawThreads);

__device__ float block_sum(float value, float* by_warp) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, step));
    if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = by_warp[threadIdx.x % (kRawThreads / 32)];
#pragma unroll
    for (int step = kRawThreads / 64; step > 0; step /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(kAllLanes, value, step));
    return value;
}

// Factor of the columns of a row. squares: this thread's.
__device__ float norm_factor(float squares, std::int64_t cols, float epsilon, float* by_warp) {
    const float mean = __fdiv_rn(block_sum(squares, by_warp), static_cast<float>(cols));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, epsilon)));
}

// The row beside a token's key. A thread keeps its first columns and reads others twice.
__device__ void norm_beside(const BesideNorm& norm, std::int64_t token, float* by_warp) {
    constexpr int kHeld = 8;
    const auto cols = static_cast<int>(norm.x.cols);
    const auto first = static_cast<int>(threadIdx.x);
    const float* from = reinterpret_cast<const float*>(norm.x.data) + token * norm.x.stride;
    auto* to = reinterpret_cast<Bf16*>(norm.out.data) + token * norm.out.stride;
    float weight[kHeld] = {}, held[kHeld] = {};
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
        if (const int d = first + i * kRawThreads; d < cols) weight[i] = __ldg(norm.weight + d);
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
        if (const int d = first + i * kRawThreads; d < cols) held[i] = from[d];
    float squares = 0.0f;
#pragma unroll
    for (float one : held) squares = __fadd_rn(squares, __fmul_rn(one, one));
#pragma unroll 1
    for (int d = first + kHeld * kRawThreads; d < cols; d += kRawThreads)
        squares = __fadd_rn(squares, __fmul_rn(from[d], from[d]));
    const float factor = norm_factor(squares, cols, norm.epsilon, by_warp);
    const auto put = [&](int d, float value, float scale) {
        to[d] = to_bf16(__fmul_rn(__fmul_rn(value, factor), scale));
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
        if (const int d = first + i * kRawThreads; d < cols) put(d, held[i], weight[i]);
#pragma unroll 1
    for (int d = first + kHeld * kRawThreads; d < cols; d += kRawThreads)
        put(d, from[d], __ldg(norm.weight + d));
}

// RawKeys, and what the order lets the launch do.
struct RawParams {
    const float* kv_a;
    std::int64_t kv_a_stride;
    const float* norm_weight;
    float epsilon;
    const float* cos_sin;
    std::int64_t cos_sin_stride;
    bool holds_next;
    BesideNorm beside;
};

// Blocks behind those of the tokens' keys have the rows beside them.
template <KvFormat kFormat>
__global__ void __launch_bounds__(kRawThreads)
    append_raw_kernel(const AppendCall call, const RawParams keys) {
    __shared__ float latent[kLatent], rope[kRope], by_warp[kRawThreads / 32];
    const std::int64_t token = blockIdx.x;
    if (token >= call.tokens) {
        let_next_kernel_start();
        return norm_beside(keys.beside, token - call.tokens, by_warp);
    }
    const int i = static_cast<int>(threadIdx.x);
    const float weight[2] = {__ldg(keys.norm_weight + i),
                             __ldg(keys.norm_weight + i + kRawThreads)};
    if (!keys.holds_next) let_next_kernel_start();
    wait_for_previous_kernel();
    if (keys.holds_next) let_next_kernel_start();
    const float* from = keys.kv_a + token * keys.kv_a_stride;
    const float column[2] = {from[i], from[i + kRawThreads]};
    const std::int64_t slot = call.slot[token];
    if (i < kRope) {
        const float* angle = keys.cos_sin + token * keys.cos_sin_stride + i / 2 * 2;
        const float a = from[kLatent + i / 2 * 2], b = from[kLatent + i / 2 * 2 + 1];
        const float cosine = angle[0], sine = angle[1];
        rope[i] = i % 2 == 0 ? __fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine))
                             : __fadd_rn(__fmul_rn(a, sine), __fmul_rn(b, cosine));
    }
    const float squares =
        __fadd_rn(__fmul_rn(column[0], column[0]), __fmul_rn(column[1], column[1]));
    const float factor = norm_factor(squares, kLatent, keys.epsilon, by_warp);
    latent[i] = __fmul_rn(__fmul_rn(column[0], factor), weight[0]);
    latent[i + kRawThreads] = __fmul_rn(__fmul_rn(column[1], factor), weight[1]);
    __syncthreads();
    if (i >= 32 || !in_pool(call.kv, slot)) return;
    const bool flushed = write_token<kFormat>(call.kv, latent, rope, slot, i);
    if (flushed && i == 0 && call.nonfinite != nullptr) call.nonfinite[token] = 1;
}

// Compact. Every move must read what the moves before it left. A block owns 32 bytes of every slot
// (or the scales) and walks all moves in order, 128 at a time: read all, wait, write all. Along one
// row that is the order of the contract, since no source of a row is a destination of an earlier
// move. Should a call hold such a pair all the same, or one destination twice, the 128 go one by
// one: bits as the contract's loop gives them, whatever the moves are.
constexpr int kMovesPerRound = 128;
constexpr int kUnitBytes = 16;
constexpr int kUnitsPerBlock = 2;
constexpr int kCompactThreads = kMovesPerRound * kUnitsPerBlock;

// One block's part of every slot: up to 32 bytes of one part, or a word of it.
struct Slice {
    SlotPart part;
    std::int64_t offset;  // in the slot's part
    std::int64_t bytes;
    bool words;  // one 4-byte word instead of 16-byte units
};

// Parts of whole units go by units, others by words (check_cuda_slots).
__host__ __device__ constexpr std::int64_t slice_bytes(const SlotPart& part) {
    return part.bytes % kUnitBytes == 0 ? kUnitBytes * kUnitsPerBlock : 4;
}

__host__ __device__ constexpr std::int64_t slices_of(const SlotPart& part) {
    return (part.bytes + slice_bytes(part) - 1) / slice_bytes(part);
}

__device__ Slice slice_of(const KvPages& kv, std::int64_t index) {
    const SlotParts parts = slot_parts(kv.format, kv.dims, kv.page_tokens);
    int i = 0;
    for (; i + 1 < kMostSlotParts && index >= slices_of(parts.part[i]); ++i)
        index -= slices_of(parts.part[i]);
    const SlotPart part = parts.part[i];
    const std::int64_t offset = index * slice_bytes(part);
    return {part, offset, min(slice_bytes(part), part.bytes - offset), slice_bytes(part) == 4};
}

__device__ std::byte* at(const KvPages& kv, const Slice& slice, std::int64_t slot) {
    return kv.data + slot / kv.page_tokens * kv.page_stride + slice.part.first + slice.offset +
           slot % kv.page_tokens * slice.part.bytes;
}

__device__ uint4 load_unit(const std::byte* from, bool words) {
    if (words) return make_uint4(*reinterpret_cast<const unsigned*>(from), 0, 0, 0);
    return *reinterpret_cast<const uint4*>(from);
}

__device__ void store_unit(std::byte* to, bool words, uint4 unit) {
    if (words)
        *reinterpret_cast<unsigned*>(to) = unit.x;
    else
        *reinterpret_cast<uint4*>(to) = unit;
}

__global__ void __launch_bounds__(kCompactThreads) compact_kernel(const CompactCall call) {
    __shared__ std::int64_t destinations[kMovesPerRound];
    const Slice slice = slice_of(call.kv, blockIdx.x);
    const int mine = static_cast<int>(threadIdx.x) / kUnitsPerBlock;  // move of the round
    const int unit = static_cast<int>(threadIdx.x) % kUnitsPerBlock * kUnitBytes;
    const bool has_unit = unit < slice.bytes;
    for (std::int64_t first = 0; first < call.moves; first += kMovesPerRound) {
        const std::int64_t i = first + mine;
        const std::int64_t source = i < call.moves ? call.source[i] : -1;
        const std::int64_t destination = i < call.moves ? call.destination[i] : -1;
        const bool moves = in_pool(call.kv, source) && in_pool(call.kv, destination);
        if (unit == 0) destinations[mine] = moves ? destination : -1;
        __syncthreads();  // also: the round before has written
        bool meets = false;
        for (int earlier = 0; moves && earlier < mine; ++earlier)
            meets |= destinations[earlier] == source || destinations[earlier] == destination;
        const bool one_by_one = __syncthreads_or(meets);
        const bool works = moves && has_unit;
        if (one_by_one) {
            for (int turn = 0; turn < kMovesPerRound; ++turn) {
                if (works && mine == turn)
                    store_unit(at(call.kv, slice, destination) + unit, slice.words,
                               load_unit(at(call.kv, slice, source) + unit, slice.words));
                __syncthreads();
            }
            continue;
        }
        uint4 held{};
        if (works) held = load_unit(at(call.kv, slice, source) + unit, slice.words);
        __syncthreads();
        if (works) store_unit(at(call.kv, slice, destination) + unit, slice.words, held);
    }
}

// launch(std::integral_constant<KvFormat, …>) for the pages' format.
template <typename Launch>
Expected<void> launch_for(KvFormat format, const Launch& launch) {
    switch (format) {
        case KvFormat::bf16:
            return checked(launch(std::integral_constant<KvFormat, KvFormat::bf16>{}), "append");
        case KvFormat::fp16:
            return checked(launch(std::integral_constant<KvFormat, KvFormat::fp16>{}), "append");
        case KvFormat::fp8_tensor:
            return checked(launch(std::integral_constant<KvFormat, KvFormat::fp8_tensor>{}),
                           "append");
        case KvFormat::fp8_token:
            return checked(launch(std::integral_constant<KvFormat, KvFormat::fp8_token>{}),
                           "append");
        case KvFormat::f32:
            break;
    }
    return fail(ErrorKind::unsupported, "append to an f32 cache on CUDA");
}

}  // namespace

Expected<void> append(OpContext& context, const AppendCall& call) {
    if (call.tokens == 0) return {};
    constexpr std::int64_t kMostBlocks = 1 << 20;  // the kernel strides
    context.order.launch(append_needs(call));
    const std::int64_t blocks =
        std::min((call.tokens + kAppendWarps - 1) / kAppendWarps, kMostBlocks);
    return launch_for(call.kv.format, [&](auto format) {
        return try_launch(append_kernel<format()>,
                          {.grid = grid_of(blocks), .threads = kAppendWarps * 32},
                          stream_of(context), call);
    });
}

Expected<void> append_raw(OpContext& context, const AppendCall& call, const RawKeys& keys) {
    if (call.tokens == 0) return {};
    const std::int64_t blocks = call.tokens * (keys.beside.x.data != nullptr ? 2 : 1);
    const LaunchGrant grant = context.order.launch(append_raw_needs(call, keys));
    const RawParams params{keys.kv_a,    keys.kv_a_stride,    keys.norm_weight, keys.epsilon,
                           keys.cos_sin, keys.cos_sin_stride, grant.holds_next, keys.beside};
    return launch_for(call.kv.format, [&](auto format) {
        return try_launch(append_raw_kernel<format()>,
                          {.grid = grid_of(blocks), .threads = kRawThreads}, stream_of(context),
                          call, params);
    });
}

Expected<void> compact(OpContext& context, const CompactCall& call) {
    if (call.moves == 0) return {};
    context.order.launch(compact_needs(call));
    std::int64_t slices = 0;
    for (const SlotPart& part : slot_parts(call.kv.format, call.kv.dims, call.kv.page_tokens).part)
        slices += slices_of(part);
    compact_kernel<<<static_cast<unsigned>(slices), kCompactThreads, 0, stream_of(context)>>>(call);
    return launched("compact");
}

}  // namespace espalier::mla::cuda
