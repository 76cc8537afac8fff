// SPDX-License-Identifier: Apache-2.0
// The best a kernel can do that keeps probabilities in the cache's 16-bit format: f32 arithmetic, P
// and the output rounded once. The measure of signal over noise.
#pragma once

#include "conformance/run.hpp"

namespace espalier::conformance {

// `rows` are those the batch was made of, without padding or context parallel.
Result ideal_absorbed(ThreadPool& pool, const Batch& batch, const std::vector<Row>& rows,
                      DType out_dtype, float scale = kUsualScale);

}  // namespace espalier::conformance
