// SPDX-License-Identifier: Apache-2.0
// Launches of kernels on the current device. A kernel may be set up while the one in front of it in
// the stream still runs (programmatic dependent launch, about 1 µs less per kernel), where the
// stream's device lets it; it waits for that one itself (kernel_order.cuh). Errors of a kernel
// itself show at the device's next checked call, as everywhere in CUDA.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "base/cuda/device_facts.hpp"
#include "base/cuda_error.hpp"
#include "base/device.hpp"

namespace espalier {

// A kernel's limit of shared memory is an attribute of kernel and device: it is set at every
// launch, because a process may have several devices.
enum class SharedLimit : std::uint8_t {
    by_default,  // 48 KB
    raised,      // to the launch's bytes
    whole,       // likewise, and the multiprocessor's whole cache is shared memory: with another
                 // share no kernel starts beside a product, which wants all
};

struct LaunchShape {
    dim3 grid{1};
    int threads = 0;
    std::size_t shared_bytes = 0;  // beyond what the kernel declares
    SharedLimit limit = SharedLimit::by_default;
    int cluster = 1;  // neighbouring blocks that run at the same time and reach each other's memory
    bool cooperative = false;  // all blocks run at the same time
};

inline dim3 grid_of(std::int64_t blocks) { return dim3(static_cast<unsigned>(blocks)); }

template <typename... Parameters>
cudaError_t set_limit(void (*kernel)(Parameters...), const LaunchShape& shape) {
    if (shape.limit == SharedLimit::by_default) return cudaSuccess;
    const cudaError_t status = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    if (status != cudaSuccess || shape.limit == SharedLimit::raised) return status;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
}

template <typename... Parameters, typename... Arguments>
cudaError_t try_launch(void (*kernel)(Parameters...), const LaunchShape& shape, Stream stream,
                       const Arguments&... arguments) {
    if (const cudaError_t status = set_limit(kernel, shape); status != cudaSuccess) return status;
    cudaLaunchAttribute attributes[3]{};
    unsigned count = 0;
    if (facts_of(stream).starts_early()) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (shape.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    }
    if (shape.cooperative) {
        attributes[count].id = cudaLaunchAttributeCooperative;
        attributes[count++].val.cooperative = 1;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = shape.grid;
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

// A launch that the runtime refuses is a mistake of this program: a grid too large, no machine code
// for this GPU.
template <typename... Parameters, typename... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), const LaunchShape& shape,
            Stream stream, const Arguments&... arguments) {
    const cudaError_t status = try_launch(kernel, shape, stream, arguments...);
    CHECK(status == cudaSuccess, "CUDA refused {} of {} × {} blocks of {} threads, {} bytes: {}",
          what, shape.grid.x, shape.grid.y, shape.threads, shape.shared_bytes,
          cudaGetErrorString(status));
}
template <typename... Parameters, typename... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            const Arguments&... arguments) {
    launch(what, kernel, LaunchShape{.grid = grid, .threads = threads}, stream, arguments...);
}

// Blocks of that shape that a multiprocessor of the current device runs at once.
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

// Clusters of that shape that the current device runs at once.
template <typename... Parameters>
Expected<int> resident_clusters(void (*kernel)(Parameters...), const LaunchShape& shape) {
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
    ESPALIER_RETURN_IF_ERROR(checked(status, "clusters of blocks"));
    return clusters;
}

}  // namespace espalier
