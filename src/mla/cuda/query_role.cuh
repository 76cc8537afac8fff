// SPDX-License-Identifier: Apache-2.0
// Queries over FP8 caches: three warps beside the copying one bring each packed row to fp16, scaled
// by a power of two so that its largest element is just below 2^15: exact for bf16, fp16 and e4m3
// down to 2^-39 of it.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

inline constexpr int kQueryWarps = 3;

template <KvFormat kFormat>
class QueryWidener {
    using Shared = SharedLayout<kFormat>;

  public:
    __device__ QueryWidener(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), warp_(threadIdx.x / 32 - 1), lane_(threadIdx.x % 32) {}

    __device__ void run() {
        Ring<2> items;
        std::uint32_t phase = 0;
        while (true) {
            wait(&shared_.item_full[items.index], items.phase);
            const Item& item = shared_.items[items.index];
            if (uniform(item.last) != 0) return;
            if (uniform(item.tile_end - item.tile_begin) > 0) {
                wait(&shared_.query_free, phase ^ 1);
                phase ^= 1;
#pragma unroll 1
                for (int row = warp_; row < item.columns; row += kQueryWarps)
                    widen_row(item.packed_first + row, row);
                fence_async_proxy();
                __syncwarp();
                if (lane_ == 0) arrive(&shared_.query_full);
            }
            __syncwarp();
            if (lane_ == 0) arrive(&shared_.item_free[items.index]);
            items.advance();
        }
    }

  private:
    __device__ float2 load_pair(long long packed, int pair) const {
        const long long index = packed * (kKey / 2) + pair;
        if (p_.q_dtype == DType::bf16)
            return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(p_.q)[index]);
        if (p_.q_dtype == DType::f16)
            return __half22float2(reinterpret_cast<const __half2*>(p_.q)[index]);
        const std::uint32_t wide = widen_e4m3(reinterpret_cast<const std::uint16_t*>(p_.q)[index]);
        return __half22float2(reinterpret_cast<const __half2&>(wide));
    }

    __device__ void widen_row(long long packed, int row) {
        float2 pair[9];
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < 9; ++i) {
            pair[i] = load_pair(packed, i * 32 + lane_);
            largest = fmaxf(largest, fmaxf(fabsf(pair[i].x), fabsf(pair[i].y)));
        }
#pragma unroll 1
        for (int step = 16; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        const int shift = shift_below_2_15(largest);
        const float scale = power_of_two(shift);
        if (lane_ == 0) shared_.query_scale[row] = power_of_two(-shift);
#pragma unroll
        for (int i = 0; i < 9; ++i)
            *reinterpret_cast<std::uint32_t*>(shared_.query + i * kBlockBytes + row * 128 +
                                              ((lane_ / 4 ^ (row & 7)) << 4) + lane_ % 4 * 4) =
                pack<Element::f16>(pair[i].x * scale, pair[i].y * scale);
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int warp_, lane_;
};

}  // namespace espalier::mla::cuda
