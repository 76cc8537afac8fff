// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/device.hpp"

namespace espalier::ops {

// out[i] = gumbel_of(first + i · step), of the device.
void noise_on_gpu(Stream stream, std::uint32_t first, std::uint32_t step, std::int64_t count,
                  double* out);

}  // namespace espalier::ops
