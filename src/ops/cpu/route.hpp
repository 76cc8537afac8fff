// SPDX-License-Identifier: Apache-2.0
// One token's experts, and the plan that sorts all (token, choice) pairs by expert.
#pragma once

#include <cstdint>

#include "ops/kernels.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {

// logits, bias (or null): [experts]. Fills expert [top_k] ascending and weight [top_k].
void route_token(const KernelTable& kernels, const float* logits, const float* bias,
                 const RouterRule& rule, std::int32_t* expert, float* weight);

// Fills indptr, source_token and pair_of from plan.expert (−1: no pair).
void sort_pairs(const RouterRule& rule, std::int64_t tokens, const ExpertPlan& plan);

}  // namespace espalier::ops
