// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/few_tokens.hpp"

#include "base/check.hpp"

namespace espalier::linalg::cuda {
namespace {

template <WeightCode kCode>
void launch_code(Stream stream, const Problem& p, const LaunchGrant& grant,
                 const DeviceFacts& facts) {
    const FewPlan plan = few_plan(p, facts);
    if (facts.family() == GpuFamily::hopper)
        launch_few<GpuFamily::hopper, kCode>(stream, p, grant, plan, facts);
    else
        launch_few<GpuFamily::portable, kCode>(stream, p, grant, plan, facts);
}

}  // namespace

void few_tokens(Stream stream, const Problem& p, const LaunchGrant& grant,
                const DeviceFacts& facts) {
    switch (p.code) {
        case WeightCode::bf16:
            return launch_code<WeightCode::bf16>(stream, p, grant, facts);
        case WeightCode::e4m3:
            return launch_code<WeightCode::e4m3>(stream, p, grant, facts);
        case WeightCode::int8:
            return launch_code<WeightCode::int8>(stream, p, grant, facts);
        case WeightCode::int4:
            return launch_code<WeightCode::int4>(stream, p, grant, facts);
        case WeightCode::e2m1:
            return launch_code<WeightCode::e2m1>(stream, p, grant, facts);
        default:
            CHECK(false, "tensor cores multiply no {}", name_of(p.code));
    }
}

}  // namespace espalier::linalg::cuda
