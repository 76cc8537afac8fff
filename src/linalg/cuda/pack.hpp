// SPDX-License-Identifier: Apache-2.0
// The kernels of packing: from a matrix in rows and its scales to the order of fragments.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "linalg/cuda/fragments.hpp"

namespace espalier::linalg::cuda {

// One matrix whose rows lie without gaps.
struct RowMatrix {
    const std::byte* rows = nullptr;
    const std::byte* scales = nullptr;  // by output and group: as packed; of e2m1 as stored, e4m3
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t groups = 0;  // of inputs that share a scale
    WeightFormat format = {};
    bool gated = false;
    // Facts that follow from the format, for the device: lay_out_fragments sets them.
    int half_bytes = 0;
    int code_bytes = 0;
    int groups_of_half = 0;
};

// Faults that packing may meet on the device, or'd into a flag.
enum Fault : int { kNanCode = 1, kBadScale = 2 };

void lay_out_fragments(cudaStream_t stream, RowMatrix from, std::byte* to, int* faults);

// Scales of one source, stored [n, stride], as RowMatrix has them: column
// (first + group · step) / length of those of every output.
struct StoredScales {
    const std::byte* scales = nullptr;
    ScaleType type = ScaleType::none;
    std::int64_t n = 0;
    std::int64_t stride = 0;
    std::int64_t first = 0;   // input
    std::int64_t step = 0;    // inputs of a group as packed
    std::int64_t length = 0;  // and as stored
    float factor = 1.0f;      // the whole matrix's scale
};
void lay_out_scales(cudaStream_t stream, const StoredScales& from, ScaleType packed,
                    std::int64_t groups, std::byte* to, int* faults);

// Flips bits of `count` bytes.
void flip_bits(cudaStream_t stream, std::byte* bytes, std::int64_t count, std::uint8_t mask);

// --- launching ----------------------------------------------------------------------------------
inline constexpr int kPackThreads = 256;

inline unsigned blocks_for(std::int64_t items) {
    return static_cast<unsigned>(std::min<std::int64_t>(divide_up(items, kPackThreads), 1 << 20));
}

#if defined(__CUDACC__)
__device__ inline std::int64_t first_item() {
    return static_cast<std::int64_t>(blockIdx.x) * kPackThreads + threadIdx.x;
}
__device__ inline std::int64_t item_stride() {
    return static_cast<std::int64_t>(gridDim.x) * kPackThreads;
}
#endif

}  // namespace espalier::linalg::cuda
