// SPDX-License-Identifier: Apache-2.0
// What the launches of the CUDA entries touch, and when: as the kernels do. No CUDA in it, so that
// every build tests it.
#pragma once

#include "mla/contract.hpp"
#include "mla/raw_append.hpp"

namespace espalier::mla::cuda {

// Memory that one launch of an absorbed call uses besides what the call names.
struct AbsorbedPlaces {
    MemoryRange plan{};      // what the plan's kernel has written for it
    MemoryRange counters{};  // the rest of the plan: counts and marks
    MemoryRange partial{};   // partial results
    MemoryRange dense{};     // the index of dense masks
};

bool has_dense_mask(const RaggedRows& rows);

LaunchNeeds plan_needs(const AbsorbedCall& call, const MemoryRange& plan);
LaunchNeeds dense_index_needs(const AbsorbedCall& call, const MemoryRange& index);
LaunchNeeds absorbed_needs(const AbsorbedCall& call, const AbsorbedPlaces& places);
LaunchNeeds decompressed_needs(const DecompressedCall& call, const MemoryRange& scratch);
LaunchNeeds append_needs(const AppendCall& call);
LaunchNeeds append_raw_needs(const AppendCall& call, const RawKeys& keys);
LaunchNeeds compact_needs(const CompactCall& call);

}  // namespace espalier::mla::cuda
