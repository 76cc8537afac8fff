// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace espalier {

// What the current GPU has left for this process, in bytes; an error that says why where there is
// no GPU.
Expected<std::int64_t> free_cuda_memory();

}  // namespace espalier
