// SPDX-License-Identifier: Apache-2.0
// What the CUDA runtime says, as an Expected. Every error but exhausted memory is of kind `io`:
// most of them stick.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/error.hpp"

namespace espalier {

inline Expected<void> checked(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return {};
    return fail(ErrorKind::io, "{}: CUDA says {} ({})", what, cudaGetErrorName(status),
                cudaGetErrorString(status));
}

}  // namespace espalier
