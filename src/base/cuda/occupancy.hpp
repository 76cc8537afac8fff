// SPDX-License-Identifier: Apache-2.0
// Blocks and clusters of a launch that the current device runs at once.
#pragma once

#include "base/cuda/launch.hpp"

namespace espalier {

// Blocks of that shape that a multiprocessor runs at once.
template <typename... Parameters>
int resident_blocks(void (*kernel)(Parameters...), const LaunchShape& shape) {
    int blocks = 0;
    cudaError_t status = set_limit(kernel, shape);
    if (status == cudaSuccess)
        status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, shape.threads,
                                                               shape.shared_bytes);
    CHECK(status == cudaSuccess && blocks > 0, "a kernel of {} threads and {} bytes: {}",
          shape.threads, shape.shared_bytes, cudaGetErrorString(status));
    return blocks;
}

// Clusters of that shape that the device runs at once.
template <typename... Parameters>
int resident_clusters(void (*kernel)(Parameters...), const LaunchShape& shape) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = shape.grid;
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    cudaError_t status = set_limit(kernel, shape);
    if (status == cudaSuccess) status = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    CHECK(status == cudaSuccess && clusters > 0,
          "clusters of {} blocks of {} threads, {} bytes: {}", shape.cluster, shape.threads,
          shape.shared_bytes, cudaGetErrorString(status));
    return clusters;
}

}  // namespace espalier
