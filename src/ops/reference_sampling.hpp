// SPDX-License-Identifier: Apache-2.0
// One draw by the definition in ops/sampling.hpp, plainly.
#pragma once

#include <cstdint>

#include "ops/sampling.hpp"

namespace espalier::ops {

// logits: [vocabulary].
Draw reference_draw(const float* logits, std::int64_t vocabulary, const NodeSampling& node);

}  // namespace espalier::ops
