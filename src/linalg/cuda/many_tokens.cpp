// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/many_tokens.hpp"

#include "base/check.hpp"

namespace espalier::linalg::cuda {
namespace {

template <WeightCode kCode>
void launch_code(Stream stream, const Problem& p, const LaunchGrant& grant, const ManyPlan& plan,
                 const DeviceFacts& facts) {
    if (facts.family() == GpuFamily::hopper)
        launch_many<GpuFamily::hopper, kCode>(stream, p, grant, plan, facts);
    else
        launch_many<GpuFamily::portable, kCode>(stream, p, grant, plan, facts);
}

}  // namespace

void many_tokens(Stream stream, const Problem& p, const LaunchGrant& grant, const ManyPlan& plan,
                 const DeviceFacts& facts) {
    switch (p.code) {
        case WeightCode::bf16:
            return launch_code<WeightCode::bf16>(stream, p, grant, plan, facts);
        case WeightCode::e4m3:
            return launch_code<WeightCode::e4m3>(stream, p, grant, plan, facts);
        case WeightCode::int8:
            return launch_code<WeightCode::int8>(stream, p, grant, plan, facts);
        case WeightCode::int4:
            return launch_code<WeightCode::int4>(stream, p, grant, plan, facts);
        case WeightCode::e2m1:
            return launch_code<WeightCode::e2m1>(stream, p, grant, plan, facts);
        default:
            CHECK(false, "tensor cores multiply no {}", name_of(p.code));
    }
}

}  // namespace espalier::linalg::cuda
