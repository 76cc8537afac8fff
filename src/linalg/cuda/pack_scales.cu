// SPDX-License-Identifier: Apache-2.0
#include <cuda_fp16.h>

#include "linalg/cuda/pack.hpp"

namespace espalier::linalg::cuda {
namespace {

__device__ float number_at(const std::byte* data, ScaleType type, std::int64_t index) {
    if (type == ScaleType::f32) return reinterpret_cast<const float*>(data)[index];
    if (type == ScaleType::f16) return __half2float(reinterpret_cast<const __half*>(data)[index]);
    return __uint_as_float(std::uint32_t{reinterpret_cast<const std::uint16_t*>(data)[index]}
                           << 16);
}

__global__ void scales_kernel(StoredScales from, ScaleType packed, std::int64_t groups,
                              std::byte* to, int* faults) {
    bool bad = false;
    for (std::int64_t i = first_item(); i < from.n * groups; i += item_stride()) {
        const std::int64_t column = (from.first + i % groups * from.step) / from.length;
        const std::int64_t at = i / groups * from.stride + column;
        if (from.type == ScaleType::e4m3) {  // stays so
            to[i] = from.scales[at];
            bad |= std::to_integer<int>(to[i] & std::byte{0x7f}) == 0x7f;
            continue;
        }
        const float scale = number_at(from.scales, from.type, at) * from.factor;
        bad |= !isfinite(scale);
        if (packed == ScaleType::bf16)
            reinterpret_cast<std::uint16_t*>(to)[i] =
                static_cast<std::uint16_t>(__float_as_uint(scale) >> 16);
        else
            reinterpret_cast<float*>(to)[i] = scale;
    }
    if (bad) atomicOr(faults, kBadScale);
}

__global__ void flip_kernel(std::byte* bytes, std::int64_t count, std::byte mask) {
    for (std::int64_t i = first_item(); i < count; i += item_stride()) bytes[i] ^= mask;
}

}  // namespace

void lay_out_scales(cudaStream_t stream, const StoredScales& from, ScaleType packed,
                    std::int64_t groups, std::byte* to, int* faults) {
    scales_kernel<<<blocks_for(from.n * groups), kPackThreads, 0, stream>>>(from, packed, groups,
                                                                            to, faults);
}

void flip_bits(cudaStream_t stream, std::byte* bytes, std::int64_t count, std::uint8_t mask) {
    flip_kernel<<<blocks_for(count), kPackThreads, 0, stream>>>(bytes, count, std::byte{mask});
}

}  // namespace espalier::linalg::cuda
