// SPDX-License-Identifier: Apache-2.0
// Kernels of kernels.hpp that stand in a layer, each with what it touches: declared to the
// context's order, then launched. What else the backend launches the order knows nothing of.
#pragma once

#include "base/op_context.hpp"
#include "ops/cuda/kernels.hpp"

namespace espalier::ops::cuda {

Ranges ranges_of(const ExpertPlan& plan, std::int64_t choices, std::int32_t experts);

void queue_rms_norm(OpContext& context, const Matrix& x, const RowNorm& norm);
void queue_reduce_add_norm(OpContext& context, const Matrix& partial, const Matrix& residual,
                           const RowNorm& norm);
void queue_combine_add_norm(OpContext& context, const ExpertRows& experts, const Matrix& shared,
                            const Matrix& residual, const RowNorm& norm);
void queue_split_queries(OpContext& context, const Matrix& q, std::int32_t heads,
                         std::int64_t width, const Matrix& cos_sin, const Matrix& q_act,
                         const Matrix& rope_to, std::int64_t rope_step);
void queue_swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out);
void queue_route(OpContext& context, const RouterCall& router, std::uint32_t* arrived);
// False: nothing was queued.
bool queue_norm_route(OpContext& context, const Matrix& partial, const Matrix& residual,
                      const RowNorm& norm, const RouterCall& router, std::uint32_t* arrived);
bool queue_router_route(OpContext& context, const Matrix& x, const RouterCall& router,
                        std::uint32_t* arrived);

}  // namespace espalier::ops::cuda
