// SPDX-License-Identifier: Apache-2.0
// Absorbed attention on Hopper. The words of the call are checked already; device arrays are never
// read here.
#pragma once

#include "mla/contract.hpp"

namespace espalier::mla::cuda {

// Fills call.plan: who computes what, for every call of a step with the same rows and flags.
Expected<void> absorbed_plan(OpContext& context, const AbsorbedCall& call,
                             const DeviceFacts& facts);
std::size_t absorbed_plan_bytes(const Capacities& most, const DeviceFacts& facts);

Expected<void> absorbed(OpContext& context, const AbsorbedCall& call, const DeviceFacts& facts);
std::size_t absorbed_scratch(const Capacities& most, const DeviceFacts& facts);

}  // namespace espalier::mla::cuda
