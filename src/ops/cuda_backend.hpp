// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/error.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {

// Hopper, for weights in bf16, FP8 blocks and f32. The same logits draw the CPU's tokens; every
// other result of a token has the same bits whatever batch it is in. An error where the build has
// no CUDA backend.
Expected<std::unique_ptr<Backend>> make_cuda_backend();

}  // namespace espalier::ops
