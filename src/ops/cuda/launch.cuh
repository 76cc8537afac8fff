// SPDX-License-Identifier: Apache-2.0
// Launches of src/ops/cuda: each kernel may be set up while the one before it in the stream still
// runs (programmatic dependent launch, about 1 µs less per kernel), and first of all waits for its
// end. A launch that the runtime refuses is a mistake of this program (a grid too large, no machine
// code for this GPU); errors of a kernel itself show at the device's next checked call, as
// everywhere in CUDA.
#pragma once

#include <cuda_runtime.h>

#include "base/check.hpp"
#include "base/device.hpp"

namespace espalier::ops::cuda {

// The kernel behind may be set up from now on.
__device__ inline void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;");
}
// All memory is as the kernel before left it. Before this, a kernel may read weights alone.
__device__ inline void wait_for_previous_kernel() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
// The first statement of a kernel that has nothing to do in between.
__device__ inline void begin_kernel() {
    let_next_kernel_start();
    wait_for_previous_kernel();
}

// Shared memory beyond what the kernel declares, in bytes.
struct SharedBytes {
    std::size_t count = 0;
};

// For a kernel that wants more than 48 KB of it, before every launch: the attributes belong to the
// current device. Products want all that a multiprocessor has; with another share this kernel could
// not start beside one.
template <typename... Parameters>
void allow_shared_memory(const char* what, void (*kernel)(Parameters...), SharedBytes shared) {
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              static_cast<int>(shared.count));
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    CHECK(status == cudaSuccess, "CUDA refused {} bytes for {}: {}", shared.count, what,
          cudaGetErrorString(status));
}

// Neighbouring blocks of a grid that run at the same time and reach each other's shared memory.
struct ClusterBlocks {
    unsigned count = 1;
};

template <typename... Parameters, typename... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, ClusterBlocks cluster,
            int threads, SharedBytes shared, Stream stream, const Arguments&... arguments) {
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {cluster.count, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared.count;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = cluster.count > 1 ? 2 : 1;
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
    CHECK(status == cudaSuccess, "CUDA refused {}: {}", what, cudaGetErrorString(status));
}

template <typename... Parameters, typename... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, int threads,
            SharedBytes shared, Stream stream, const Arguments&... arguments) {
    launch(what, kernel, grid, ClusterBlocks{}, threads, shared, stream, arguments...);
}

template <typename... Parameters, typename... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            const Arguments&... arguments) {
    launch(what, kernel, grid, threads, SharedBytes{}, stream, arguments...);
}

}  // namespace espalier::ops::cuda
