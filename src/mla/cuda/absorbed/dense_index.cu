// SPDX-License-Identifier: Apache-2.0
// For the invariant partition of dense rows: the slots at which each token's splits begin, and how
// many keys it sees in all.
#include "mla/cuda/absorbed/schedule.cuh"

namespace espalier::mla::cuda {
namespace {

constexpr int kTokensPerBlock = 4;

// The whole warp: each(rank, key) for every visible key. Returns how many there are.
template <typename Each>
__device__ int walk(const AbsorbedParams& p, int row, const RowShape& shape, int token, Each each) {
    const int lane = threadIdx.x % 32;
    int seen = 0;
    for (int first = 0; first < shape.keys; first += 32) {
        const int key = first + lane;
        const bool visible = key < shape.keys && dense_visible(p, row, shape.keys, token, key);
        const unsigned votes = __ballot_sync(~0u, visible);
        if (visible) each(seen + __popc(votes & ((1u << lane) - 1)), key);
        seen += __popc(votes);
    }
    return seen;
}

__global__ void __launch_bounds__(kTokensPerBlock * 32)
    dense_index_kernel(const __grid_constant__ AbsorbedParams p) {
    const int row = static_cast<int>(blockIdx.x);
    const int lane = threadIdx.x % 32;
    const RowShape shape = row_shape(p, row);
    if (shape.mask != MaskKind::dense) return;
    for (int token = threadIdx.x / 32; token < shape.tokens; token += kTokensPerBlock) {
        std::int32_t* start = p.dense_start + static_cast<long long>(shape.first_token + token) *
                                                  (p.dense_splits + 1);
        const int seen = walk(p, row, shape, token, [](int, int) {});
        const int length = split_keys(seen);
        walk(p, row, shape, token, [&](int rank, int key) {
            if (rank % length == 0) start[rank / length] = key;
        });
        if (lane == 0) start[p.dense_splits] = seen;
    }
}

}  // namespace

cudaError_t launch_dense_index(const AbsorbedParams& p, cudaStream_t stream) {
    if (p.rows.rows == 0) return cudaSuccess;
    dense_index_kernel<<<p.rows.rows, kTokensPerBlock * 32, 0, stream>>>(p);
    return cudaGetLastError();
}

}  // namespace espalier::mla::cuda
