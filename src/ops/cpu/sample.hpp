// SPDX-License-Identifier: Apache-2.0
// sample_nodes for the CPU: the draw of ops/sampling.hpp in a few passes over the logits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu_device.hpp"
#include "base/matrix.hpp"
#include "ops/kernels.hpp"
#include "ops/sampling.hpp"

namespace espalier::ops {

// logits: [G, V] f32; nodes, draws: [G].
void sample_nodes(const KernelTable& kernels, OpContext& context, const Matrix& logits,
                  const NodeSampling* nodes, Draw* draws);

std::size_t sampling_scratch_bytes(std::int64_t vocabulary, int workers);

}  // namespace espalier::ops
