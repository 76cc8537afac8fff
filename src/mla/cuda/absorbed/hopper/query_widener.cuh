// SPDX-License-Identifier: Apache-2.0
// Queries over FP8 caches: the scoring warps bring each packed row to fp16, scaled by a power of
// two so that its largest element is just below 2^15: exact for bf16, fp16 and e4m3 down to 2^-39
// of it. They need the queries first and have nothing else to do then; with three warps beside the
// copying one a call of 32 packed rows took 3 µs more.
#pragma once

#include <cuda_fp16.h>

#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/mma.cuh"
#include "mla/cuda/absorbed/hopper/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

template <KvFormat kFormat>
class QueryWidener {
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ QueryWidener(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), lane_(threadIdx.x % 32) {}

    // The share of warp `warp` of `warps`: two rows at a time.
    __device__ void run(const Item& item, int warp, int warps) {
#pragma unroll 1
        for (int row = warp; row < item.columns; row += 2 * warps) {
            Raw first, second;
            const bool two = row + warps < item.columns;
            load(item.packed_first + row, first);
            if (two) load(item.packed_first + row + warps, second);
            store(first, row);
            if (two) store(second, row + warps);
        }
        fence_async_proxy();
    }

  private:
    // Nine pairs of columns per lane, as they are stored: all loads are on their way before the
    // first is looked at.
    using Raw = std::uint32_t[9];

    __device__ void load(long long packed, Raw& raw) const {
        const long long first = packed * (kKey / 2) + lane_;
        if (p_.q_dtype == DType::e4m3) {
#pragma unroll
            for (int i = 0; i < 9; ++i)
                raw[i] = reinterpret_cast<const std::uint16_t*>(p_.q)[first + i * 32];
        } else {
#pragma unroll
            for (int i = 0; i < 9; ++i)
                raw[i] = reinterpret_cast<const std::uint32_t*>(p_.q)[first + i * 32];
        }
    }
    __device__ float2 decoded(std::uint32_t raw) const {
        if (p_.q_dtype == DType::bf16)
            return {__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u)};
        if (p_.q_dtype == DType::e4m3) raw = widen_e4m3(raw);
        return __half22float2(reinterpret_cast<const __half2&>(raw));
    }

    // Lane i has columns 2i and 2i + 1 of each block of 64. They go where the scores' left operand
    // has them (fp8_score_role.cuh): column 16p + 4s + 2h + j at 16s + 8h + 2p + j.
    __device__ void store(const Raw& raw, int row) {
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < 9; ++i) {
            const float2 pair = decoded(raw[i]);
            largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        const int shift = shift_below_2_15(largest);
        const float scale = power_of_two(shift);
        if (lane_ == 0) shared_.query_scale[row] = power_of_two(-shift);
        const int chunk = lane_ % 8;  // 2s + h
        std::byte* to = shared_.query + row * 128 + ((chunk ^ (row & 7)) << 4) + lane_ / 8 * 4;
#pragma unroll
        for (int i = 0; i < 9; ++i) {
            const float2 pair = decoded(raw[i]);
            *reinterpret_cast<std::uint32_t*>(to + i * Traits<kFormat>::kQueryBlock) =
                pack<Element::f16>(pair.x * scale, pair.y * scale);
        }
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_;
};

}  // namespace espalier::mla::cuda
