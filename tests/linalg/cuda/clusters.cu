// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/launch.hpp"
#include "linalg/cuda/clusters.hpp"
#include "linalg/cuda/hopper/many_tokens.cuh"

namespace espalier::linalg::cuda {

int clusters_of_split_product(int blocks) {
    using C = ManyConfig<WeightCode::bf16, 32, 1, true>;
    const LaunchShape shape{.grid = grid_of(blocks),
                            .threads = C::kThreads,
                            .shared_bytes = C::shared_bytes(0),
                            .limit = SharedLimit::whole,
                            .cluster = blocks};
    return resident_clusters(many_tokens_kernel<C>, shape).value_or(0);
}

}  // namespace espalier::linalg::cuda
