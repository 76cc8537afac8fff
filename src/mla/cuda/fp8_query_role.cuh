// SPDX-License-Identifier: Apache-2.0
// Queries over FP8 caches: three warps bring each packed row to fp16, scaled by a power of two so
// that its largest element is just below 2^15 (exact for bf16, fp16 and e4m3 down to 2^-39 of it),
// with columns in the order in which the scores' warps unpack keys.
#pragma once

#include "mla/cuda/absorbed_kernel.cuh"

namespace espalier::mla::cuda {

inline constexpr int kQueryWarps = 3;

template <KvFormat kFormat, int kN>
class QueryWidener {
    using T = Traits<kFormat, kN>;
    using Shared = SharedLayout<kFormat, kN>;
    static constexpr int kPairs = 9;  // of columns per lane: 18 × 32 = 576

  public:
    __device__ QueryWidener(const AbsorbedParams& p, Shared& shared)
        : p_(p), shared_(shared), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32 - 1) {}

    __device__ void run() {
        while (true) {
            wait(&shared_.item_full[items_.index], items_.phase);
            const Item item = shared_.items[items_.index];
            __syncwarp();
            if (lane_ == 0) arrive(&shared_.item_free[items_.index]);
            items_.advance();
            if (item.last) return;
            if (item.tile_begin == item.tile_end) continue;
            wait(&shared_.query_free, phase_ ^ 1);
            for (int column = warp_; column < item.columns; column += kQueryWarps)
                widen(item.packed_first + column, column);
            fence_async_proxy();
            __syncwarp();
            if (lane_ == 0) arrive(&shared_.query_full);
            phase_ ^= 1;
        }
    }

  private:
    __device__ float2 load_pair(long long packed, int pair) {
        const long long index = packed * (kKey / 2) + pair;
        if (p_.q_dtype == DType::bf16)
            return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162*>(p_.q)[index]);
        if (p_.q_dtype == DType::f16)
            return __half22float2(reinterpret_cast<const __half2*>(p_.q)[index]);
        const std::uint32_t wide = widen_e4m3(reinterpret_cast<const std::uint16_t*>(p_.q)[index]);
        return __half22float2(reinterpret_cast<const __half2&>(wide));
    }

    __device__ void widen(long long packed, int column) {
        float2 pair[kPairs];
        float largest = 0.0f;
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            pair[i] = load_pair(packed, i * 32 + lane_);
            if (i < 8 || !T::kTokenScale)
                largest = fmaxf(largest, fmaxf(fabsf(pair[i].x), fabsf(pair[i].y)));
        }
        for (int step = 16; step > 0; step /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
        int exponent = 0;
        if (largest > 0.0f && largest < 3e38f) frexpf(largest, &exponent);
        // Two steps: the power itself may lie outside f32 when a row is subnormal.
        const int shift = min(15 - exponent, 120);
        const float scale = ldexpf(1.0f, shift);
        if (lane_ == 0) shared_.query_scale[column] = ldexpf(1.0f, -shift);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const __half2 value = __floats2half2_rn(pair[i].x * scale, pair[i].y * scale);
            store(column, i * 64 + 2 * lane_, reinterpret_cast<const std::uint32_t&>(value));
        }
        if constexpr (T::kTokenScale) {
            const __nv_bfloat162 high = __floats2bfloat162_rn(pair[8].x, pair[8].y);
            const float2 rounded = __bfloat1622float2(high);
            const __nv_bfloat162 low =
                __floats2bfloat162_rn(pair[8].x - rounded.x, pair[8].y - rounded.y);
            put(8, column, 2 * lane_, reinterpret_cast<const std::uint32_t&>(high));
            put(9, column, 2 * lane_, reinterpret_cast<const std::uint32_t&>(low));
        } else {
            const __half2 value = __floats2half2_rn(pair[8].x * scale, pair[8].y * scale);
            store(column, 512 + 2 * lane_, reinterpret_cast<const std::uint32_t&>(value));
        }
    }

    // Four consecutive bytes of a key are what one thread holds of a row: columns 2c, 2c+1 and
    // 2c+8, 2c+9 of the product's sixteen. The queries follow that order.
    __device__ void store(int row, int column, std::uint32_t pair) {
        const int within = column % 16;
        const int moved = within % 4 == 0 ? within / 2 : 8 + (within - 2) / 2;
        const int place = column - within + moved;
        put(place / 64, row, place % 64, pair);
    }
    __device__ void put(int block, int row, int column, std::uint32_t pair) {
        std::byte* to = shared_.query + block * T::kQueryBlock + row * 128 +
                        ((column / 8 ^ (row & 7)) << 4) + column % 8 * 2;
        *reinterpret_cast<std::uint32_t*>(to) = pair;
    }

    const AbsorbedParams& p_;
    Shared& shared_;
    const int lane_;
    const int warp_;
    Ring<2> items_;
    std::uint32_t phase_ = 0;
};

}  // namespace espalier::mla::cuda
