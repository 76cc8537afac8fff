// SPDX-License-Identifier: Apache-2.0
// Both attention entries and the choice of keys on the CPU, for calls that passed their checks, and
// the scratch they take.
#pragma once

#include <cstdint>

#include "base/cpu_device.hpp"
#include "mla/contract.hpp"
#include "mla/cpu/tile_kernels.hpp"

namespace espalier::mla::cpu {

void absorbed(OpContext& context, const TileKernels& kernels, const AbsorbedCall& call);
std::int64_t absorbed_scratch(const TileKernels& kernels, int workers);

void decompressed(OpContext& context, const TileKernels& kernels, const DecompressedCall& call);
std::int64_t decompressed_scratch(const TileKernels& kernels, const Capacities& most);

void select(OpContext& context, const TileKernels& kernels, const SelectCall& call);
std::int64_t select_scratch(const Capacities& most);

}  // namespace espalier::mla::cpu
