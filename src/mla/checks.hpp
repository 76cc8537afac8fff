// SPDX-License-Identifier: Apache-2.0
// The words of a call, checked before any byte is computed: the oracle and the CPU kernels share
// them, so what one refuses the other refuses too. Block-table entries are data, but on the CPU
// they are checked as well.
#pragma once

#include "mla/contract.hpp"

namespace espalier::mla {

Expected<void> check_absorbed(const AbsorbedCall& call);
Expected<void> check_decompressed(const DecompressedCall& call);
Expected<void> check_append(const AppendCall& call);
Expected<void> check_compact(const CompactCall& call);

}  // namespace espalier::mla
