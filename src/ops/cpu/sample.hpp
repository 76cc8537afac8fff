// SPDX-License-Identifier: Apache-2.0
// sample_nodes for the CPU: the draw of ops/sampling.hpp in a few passes over the logits.
#pragma once

#include "base/cpu_device.hpp"
#include "base/matrix.hpp"
#include "ops/kernels.hpp"
#include "ops/sampling_batch.hpp"

namespace espalier::ops {

// logits: [G, V] f32.
void sample_nodes(const KernelTable& kernels, OpContext& context, const Matrix& logits,
                  const SamplingBatch& batch);

}  // namespace espalier::ops
