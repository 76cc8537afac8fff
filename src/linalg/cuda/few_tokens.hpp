// SPDX-License-Identifier: Apache-2.0
// The kernels for few tokens, one file per format: they take long to compile.
#pragma once

#include "linalg/cuda/few_plan.hpp"

namespace espalier::linalg::cuda {

void few_tokens_bf16(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                     const DeviceFacts& facts);
void few_tokens_e4m3(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                     const DeviceFacts& facts);
void few_tokens_int8(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                     const DeviceFacts& facts);
void few_tokens_int4(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                     const DeviceFacts& facts);
void few_tokens_e2m1(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                     const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
