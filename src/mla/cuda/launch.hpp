// SPDX-License-Identifier: Apache-2.0
// Launches as values: what the runtime says about a launch becomes an Expected. Errors of the
// kernel itself show at the caller's next synchronisation, as everywhere in CUDA.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/cuda_error.hpp"
#include "base/op_context.hpp"

namespace espalier::mla::cuda {

// After a <<<…>>>.
inline Expected<void> launched(std::string_view what) { return checked(cudaGetLastError(), what); }

inline cudaStream_t stream_of(const OpContext& context) {
    return static_cast<cudaStream_t>(context.stream);
}

}  // namespace espalier::mla::cuda
