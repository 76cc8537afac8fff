// SPDX-License-Identifier: Apache-2.0
// Products over arranged x: what host and kernels share of one launch, and the sizes of its tiles
// and stages.
#pragma once

#include "base/cuda/launch.hpp"
#include "linalg/cuda/hopper/arranged.hpp"

namespace espalier::linalg::cuda {

// Where the product behind a gated one has its x arranged: the gated one puts it there itself.
struct ArrangedY {
    std::byte* data = nullptr;  // behind the header; null: y is a matrix
    int* next = nullptr;        // the header
    int tile_tokens = 0;
    int stages = 0;  // of 64 inputs
};

struct ArrangedParams {
    Problem problem;
    Segments segments;
    const std::byte* arranged = nullptr;
    int* next = nullptr;   // tile that nobody has begun
    int row_blocks = 0;    // of both products, where there is a second
    int first_blocks = 0;  // of the first
    int tile_tokens = 0;
    int token_tiles = 0;  // of experts: at most
    int stages = 0;       // of 64 inputs
    int slots = 0;        // stages that shared memory holds at once
    int stage_bytes = 0;
    ArrangedY y = {};  // gated products alone
};

inline constexpr int kArrangedOutputs = 128;
inline constexpr int kArrangedThreads = 384;
inline constexpr std::size_t kArrangedMemoryBytes = 17 * 1024;  // barriers, and for gated products
inline constexpr std::size_t kMostSharedBytes = 227 * 1024;     // that a block can have
inline constexpr int kMostArrangedStages = 16;

// A stage has 64 inputs; of codes 128, which have a scale in common.
constexpr int stage_halves(WeightCode code) { return code == WeightCode::bf16 ? 1 : 2; }

// half_bytes: of 16 outputs and 64 inputs of codes. bf16: a constant, because every tile's first
// stages are multiplied as if it had all tokens.
constexpr int arranged_stage_bytes(WeightCode code, int tile_tokens, int half_bytes) {
    if (code == WeightCode::bf16)
        return kArrangedTokens * 128 + kArrangedOutputs / 16 * code_bytes(code);
    const int bytes = stage_halves(code) * (tile_tokens * 128 + kArrangedOutputs / 16 * half_bytes);
    return (bytes + 1023) / 1024 * 1024;
}
// bf16: five, beside which lists of tiles have room.
constexpr int arranged_slots(WeightCode code, int tile_tokens, int half_bytes,
                             std::size_t listed_bytes = 0) {
    if (code == WeightCode::bf16) return 5;
    const std::size_t room = kMostSharedBytes - kArrangedMemoryBytes - listed_bytes;
    const int bytes = arranged_stage_bytes(code, tile_tokens, half_bytes);
    return std::min(kMostArrangedStages, static_cast<int>(room / static_cast<std::size_t>(bytes)));
}

// The kernel that was compiled for the code.
void multiply_arranged_bf16(cudaStream_t stream, const ArrangedParams& params,
                            const LaunchShape& shape);
void multiply_arranged_e4m3(cudaStream_t stream, const ArrangedParams& params,
                            const LaunchShape& shape);
void multiply_arranged_int8(cudaStream_t stream, const ArrangedParams& params,
                            const LaunchShape& shape);
void multiply_arranged_int4(cudaStream_t stream, const ArrangedParams& params,
                            const LaunchShape& shape);
void multiply_arranged_e2m1(cudaStream_t stream, const ArrangedParams& params,
                            const LaunchShape& shape);

}  // namespace espalier::linalg::cuda
