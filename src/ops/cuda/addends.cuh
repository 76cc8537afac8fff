// SPDX-License-Identifier: Apache-2.0
// What is added to a row before its norm.
#pragma once

#include <cstdint>

#include "base/matrix.hpp"
#include "ops/layer_program.hpp"

namespace espalier::ops::cuda {

// Either may be absent.
struct Addends {
    Matrix partial;
    Matrix expert_out;
    ExpertPlan plan;
    std::int32_t top_k = 0;
    Matrix shared;
    bool plan_ahead = false;  // it may be read before the wait
};

inline constexpr int kTogether = 8;  // experts whose outputs are on their way at once

// A token's experts, for all threads. Behind the last there are none.
struct Choices {
    float weight[kMaxTopK + kTogether];
    std::int32_t pair[kMaxTopK + kTogether];
};

__device__ inline void load_choices(const Addends& add, std::int64_t t, Choices& choices) {
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < add.top_k + kTogether;
         i += static_cast<std::int32_t>(blockDim.x)) {
        // From the L2: the L1 may hold an older plan where nothing was waited for.
        choices.weight[i] = i < add.top_k ? __ldcg(add.plan.weight + t * add.top_k + i) : 0.0f;
        choices.pair[i] = i < add.top_k ? __ldcg(add.plan.pair_of + t * add.top_k + i) : -1;
    }
    __syncthreads();
}

}  // namespace espalier::ops::cuda
