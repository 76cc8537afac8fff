// SPDX-License-Identifier: Apache-2.0
// The CUDA entries besides absorbed attention (absorbed.hpp), for calls whose words are checked;
// device arrays are never read on the host. Data that contradict themselves (a slot outside the
// pool, a page id outside it, a length beyond the block table) are skipped, never followed.
#pragma once

#include "mla/contract.hpp"
#include "mla/raw_append.hpp"

namespace espalier::mla::cuda {

Expected<void> append(OpContext& context, const AppendCall& call);
Expected<void> append_raw(OpContext& context, const AppendCall& call, const RawKeys& keys);
Expected<void> compact(OpContext& context, const CompactCall& call);

// A row whose mask is not causal, which the host cannot see, gives NaN.
Expected<void> decompressed(OpContext& context, const DecompressedCall& call,
                            const DeviceFacts& facts);
// For fp16 queries; needs no scratch.
Expected<void> decompressed_fp16(OpContext& context, const DecompressedCall& call);
// Arena bytes of a call within these capacities.
std::size_t decompressed_scratch(const Capacities& most);

}  // namespace espalier::mla::cuda
