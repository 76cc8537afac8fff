// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/gates.cuh"
#include "linalg/cuda/gates.hpp"

namespace espalier::linalg {
namespace {

__global__ void count_kernel(bool mixed, unsigned long long* differing) {
    unsigned long long count = 0;
    const std::uint64_t threads = std::uint64_t{gridDim.x} * blockDim.x;
    for (std::uint64_t first = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
         first < std::uint64_t{1} << 30; first += threads) {
        float gate[4], up[4], quick[4];
        for (std::uint32_t i = 0; i < 4; ++i) {
            const std::uint32_t bits = static_cast<std::uint32_t>(first) * 4 + i;
            gate[i] = __uint_as_float(bits);
            up[i] = mixed ? __uint_as_float(bits * 2654435761u ^ bits >> 7) : 1.0f;
        }
        if (!cuda::gate_quickly(gate, up, quick)) cuda::gate_exactly(gate, up, quick);
        for (int i = 0; i < 4; ++i) {
            const float plain = cuda::gated(gate[i], up[i]);
            count += __bfloat16_as_ushort(__float2bfloat16_rn(quick[i])) !=
                     __bfloat16_as_ushort(__float2bfloat16_rn(plain));
        }
    }
    if (count > 0) atomicAdd(differing, count);
}

}  // namespace

void count_other_gates(Stream stream, bool mixed, unsigned long long* differing) {
    count_kernel<<<1056, 256, 0, static_cast<cudaStream_t>(stream)>>>(mixed, differing);
}

}  // namespace espalier::linalg
