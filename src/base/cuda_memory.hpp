// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace espalier {

struct CudaMemory {
    std::int64_t free = 0;  // for this process
    std::int64_t total = 0;
};

// The current GPU's memory in bytes; without a GPU, an error that says why.
Expected<CudaMemory> cuda_memory();

}  // namespace espalier
