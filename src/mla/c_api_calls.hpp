// SPDX-License-Identifier: Apache-2.0
// The structs of include/espalier/mla.h as the contract's calls: sizes and enumerators are checked
// here; what the calls say is checked by the kernels.
#pragma once

#include "espalier/mla.h"
#include "mla/compat.hpp"
#include "mla/contract.hpp"

namespace espalier::mla::c_api {

Expected<KvFormat> format_of(std::int32_t value);
Expected<AbsorbedCall> call_of(const espalier_mla_absorbed_call* given);
Expected<DecompressedCall> call_of(const espalier_mla_decompressed_call* given, DeviceKind device);
Expected<AppendCall> call_of(const espalier_mla_append_call* given);
Expected<CompactCall> call_of(const espalier_mla_compact_call* given);
Expected<CompatCall> call_of(const espalier_mla_compat_call* given);

// Within what the calls' own checks let through, so that sizes cannot overflow.
Expected<Capacities> capacities_of(const espalier_mla_capacities* given, int workers);
Expected<Capacities> capacities_of(const AbsorbedCall& call, int workers);
Expected<Capacities> capacities_of(const DecompressedCall& call, int workers);

}  // namespace espalier::mla::c_api
