// SPDX-License-Identifier: Apache-2.0
// f32 and f16 weights (plain.cu, plain_tiles.cuh): what both kernels read.
#pragma once

#include <cuda_fp16.h>

#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

struct PlainParams {
    Problem problem;
    bool holds_next = false;  // LaunchGrant's
    int row_blocks = 0;
};

struct Four {
    float value[4];
};

template <WeightCode kCode>
__device__ __forceinline__ Four load_weights(const std::byte* row, int input) {
    if constexpr (kCode == WeightCode::f32) {
        const float4 w = __ldg(reinterpret_cast<const float4*>(row) + input / 4);
        return {w.x, w.y, w.z, w.w};
    } else {
        const uint2 w = __ldg(reinterpret_cast<const uint2*>(row) + input / 4);
        const float2 low = __half22float2(*reinterpret_cast<const __half2*>(&w.x));
        const float2 high = __half22float2(*reinterpret_cast<const __half2*>(&w.y));
        return {low.x, low.y, high.x, high.y};
    }
}

}  // namespace espalier::linalg::cuda
