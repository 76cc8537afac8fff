// SPDX-License-Identifier: Apache-2.0
// draft_children for the CPU: ops/draft_children.hpp in two passes over the logits.
#pragma once

#include "base/cpu_device.hpp"
#include "base/matrix.hpp"
#include "ops/draft_children.hpp"
#include "ops/kernels.hpp"

namespace espalier::ops {

// logits: [G, Vd] f32; children: [G, width].
void draft_children(const KernelTable& kernels, OpContext& context, const Matrix& logits,
                    const SamplingBatch& batch, const DraftVocabulary& vocabulary,
                    const DraftRule& rule, DraftChild* children);

}  // namespace espalier::ops
