// SPDX-License-Identifier: Apache-2.0
// The kernel for many tokens, one file per format: they take long to compile.
#pragma once

#include "linalg/cuda/problem.hpp"

namespace espalier::linalg::cuda {

void many_tokens_bf16(cudaStream_t stream, const Problem& p, const ManyPlan& plan);
void many_tokens_e4m3(cudaStream_t stream, const Problem& p, const ManyPlan& plan);
void many_tokens_int8(cudaStream_t stream, const Problem& p, const ManyPlan& plan);
void many_tokens_int4(cudaStream_t stream, const Problem& p, const ManyPlan& plan);
void many_tokens_e2m1(cudaStream_t stream, const Problem& p, const ManyPlan& plan);

}  // namespace espalier::linalg::cuda
