// SPDX-License-Identifier: Apache-2.0
// Maps for the copy engine.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.hpp"

namespace espalier::mla::cuda {

struct Axis {
    std::int64_t extent;
    std::int64_t stride;  // bytes; the first axis is dense
    std::int64_t box;
};

// Fills `map` with the tensor at `data`, whose axes come innermost first.
Expected<void> encode(CUtensorMap& map, CUtensorMapDataType type, const std::byte* data,
                      std::span<const Axis> axes, CUtensorMapSwizzle swizzle);

}  // namespace espalier::mla::cuda
