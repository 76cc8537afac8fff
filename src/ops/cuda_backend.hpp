// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/error.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {

// Hopper, for weights in bf16, FP8 blocks and f32. The same logits draw the CPU's tokens; every
// other result of a token has the same bits whatever batch it is in. For operations on that
// device's own stream; the device outlives it. An error where the build has no CUDA backend.
Expected<std::unique_ptr<Backend>> make_cuda_backend(Device& device);

}  // namespace espalier::ops
