// SPDX-License-Identifier: Apache-2.0
// Launches of src/ops/cuda. A launch that the runtime refuses is a mistake of this program (a grid
// too large, no machine code for this GPU); errors of a kernel itself show at the device's next
// checked call, as everywhere in CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.hpp"
#include "base/device.hpp"

namespace espalier::ops::cuda {

inline cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream); }

// After a <<<…>>>.
inline void launched(const char* what) {
    const cudaError_t status = cudaGetLastError();
    CHECK(status == cudaSuccess, "CUDA refused {}: {}", what, cudaGetErrorString(status));
}

}  // namespace espalier::ops::cuda
