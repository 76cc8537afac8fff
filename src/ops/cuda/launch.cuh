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

// The first statement of every kernel: the kernel behind may be set up from now on, and all memory
// is as the kernel before left it.
__device__ inline void begin_kernel() {
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

template <typename... Parameters, typename... Arguments>
void launch(const char* what, void (*kernel)(Parameters...), dim3 grid, int threads, Stream stream,
            const Arguments&... arguments) {
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
    CHECK(status == cudaSuccess, "CUDA refused {}: {}", what, cudaGetErrorString(status));
}

}  // namespace espalier::ops::cuda
