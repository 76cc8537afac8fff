// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens.hpp"

#include "base/check.hpp"

namespace espalier::linalg::cuda {

void few_tokens(Stream stream, const Problem& p, const LaunchGrant& grant,
                const DeviceFacts& facts) {
    const FewPlan plan = few_plan(p, facts);
    switch (p.code) {
        case WeightCode::bf16:
            return few_tokens_bf16(stream, p, grant, plan, facts);
        case WeightCode::e4m3:
            return few_tokens_e4m3(stream, p, grant, plan, facts);
        case WeightCode::int8:
            return few_tokens_int8(stream, p, grant, plan, facts);
        case WeightCode::int4:
            return few_tokens_int4(stream, p, grant, plan, facts);
        case WeightCode::e2m1:
            return few_tokens_e2m1(stream, p, grant, plan, facts);
        default:
            CHECK(false, "tensor cores multiply no {}", name_of(p.code));
    }
}

}  // namespace espalier::linalg::cuda
