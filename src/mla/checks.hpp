// SPDX-License-Identifier: Apache-2.0
// The arguments of a call, checked before any byte is computed: the oracle and the CPU kernels
// share them, so what one refuses the other refuses too. The …_arguments half looks at host
// integers and addresses only, so CUDA shares it; the arrays of a call lie in the device's memory,
// and only the CPU looks into them (block-table entries included).
#pragma once

#include <span>

#include "mla/contract.hpp"

namespace espalier::mla {

// Alignment that CUDA needs of pages, page stride, q and out: they are read 16 bytes at a time.
inline constexpr std::int64_t kCudaAlignment = 16;

Expected<void> check_absorbed_arrays(const AbsorbedCall& call);
Expected<void> check_absorbed_arguments(const AbsorbedCall& call);
Expected<void> check_decompressed_arrays(const DecompressedCall& call);
Expected<void> check_decompressed_arguments(
    const DecompressedCall& call);  // not the up-projections
Expected<void> check_select_arrays(const SelectCall& call);
Expected<void> check_append_arrays(const AppendCall& call);
Expected<void> check_append_arguments(const AppendCall& call);
Expected<void> check_compact_arrays(const CompactCall& call);
Expected<void> check_compact_arguments(const CompactCall& call);

// Widths that a device's kernels are compiled for, in any combination; the oracle takes any.
struct CompiledDims {
    std::span<const KeyDims> keys;
    std::span<const HeadDims> heads;
};
inline constexpr CompiledDims kCpuDims{kKeyDims, kHeadDims};
inline constexpr CompiledDims kCudaDims{std::span(kKeyDims).first(1),
                                        std::span(kHeadDims).first(2)};
Expected<void> check_compiled_dims(const CompiledDims& compiled, const KeyDims& keys,
                                   const HeadDims& heads);
// Of calls that know no heads.
Expected<void> check_compiled_dims(const CompiledDims& compiled, const KeyDims& keys);

// CUDA's own limits, on top of the arguments: no f32 caches, and alignment.
Expected<void> check_cuda_pages(const KvPages& kv);
// Slots are moved in units of 16 bytes or words of 4.
Expected<void> check_cuda_slots(const KvPages& kv);
Expected<void> check_cuda_address(const void* address, std::string_view name);
inline constexpr std::int64_t kMostPackedRows = std::int64_t{1} << 25;  // of a row
// Numbers that 32-bit arithmetic on the device relies on.
Expected<void> check_cuda_capacities(const AbsorbedCall& call);

}  // namespace espalier::mla
