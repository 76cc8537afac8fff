// SPDX-License-Identifier: Apache-2.0
// The kernel for many tokens, one file per format: they take long to compile.
#pragma once

#include "linalg/cuda/many_plan.hpp"

namespace espalier::linalg::cuda {

void many_tokens_bf16(Stream stream, const Problem& p, const LaunchGrant& grant,
                      const ManyPlan& plan, const DeviceFacts& facts);
void many_tokens_e4m3(Stream stream, const Problem& p, const LaunchGrant& grant,
                      const ManyPlan& plan, const DeviceFacts& facts);
void many_tokens_int8(Stream stream, const Problem& p, const LaunchGrant& grant,
                      const ManyPlan& plan, const DeviceFacts& facts);
void many_tokens_int4(Stream stream, const Problem& p, const LaunchGrant& grant,
                      const ManyPlan& plan, const DeviceFacts& facts);
void many_tokens_e2m1(Stream stream, const Problem& p, const LaunchGrant& grant,
                      const ManyPlan& plan, const DeviceFacts& facts);

}  // namespace espalier::linalg::cuda
