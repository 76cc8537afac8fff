// SPDX-License-Identifier: Apache-2.0
#include <atomic>

#include "base/cuda/occupancy.hpp"
#include "linalg/cuda/hopper/many_tokens_launch.cuh"

namespace espalier::linalg::cuda {

void many_tokens_bf16(cudaStream_t stream, const Problem& p, const ManyPlan& plan) {
    launch_many<WeightCode::bf16>(stream, p, plan);
}

// Every format's blocks take a multiprocessor each.
int many_clusters(int split) {
    using C = ManyConfig<WeightCode::bf16, 32, 1, true>;
    static std::atomic<int> known[17] = {};  // of all devices: they are of one kind
    std::atomic<int>& clusters = known[split];
    if (clusters == 0) {
        const LaunchShape shape{.grid = grid_of(split),
                                .threads = C::kThreads,
                                .shared_bytes = C::shared_bytes(0),
                                .limit = SharedLimit::whole,
                                .cluster = split};
        clusters = resident_clusters(many_tokens_kernel<C>, shape);
    }
    return clusters;
}

}  // namespace espalier::linalg::cuda
