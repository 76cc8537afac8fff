// SPDX-License-Identifier: Apache-2.0
// reduce_add_norm and combine_add_norm of a prompt's rows, with the same bits. False: nothing was
// launched, because rows are few or not of the width that this is for.
#pragma once

#include "ops/layer_program.hpp"

namespace espalier::ops::cuda {

bool prompt_reduce_add_norm(Stream stream, const Matrix& partial, const Matrix& residual,
                            const RowNorm& norm);
bool prompt_combine_add_norm(Stream stream, const Matrix& expert_out, std::int32_t top_k,
                             const ExpertPlan& plan, const Matrix& shared, const Matrix& residual,
                             const RowNorm& norm);

}  // namespace espalier::ops::cuda
