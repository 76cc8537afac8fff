// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace espalier {

struct CudaMemory {
    std::int64_t free = 0;  // for this process
    std::int64_t total = 0;
};

// Of the current GPU, in bytes; an error that says why where there is none.
Expected<CudaMemory> cuda_memory();

}  // namespace espalier
