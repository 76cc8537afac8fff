// SPDX-License-Identifier: Apache-2.0
// Which kernel variant this machine runs. Bits are equal within one variant, not across variants.
#pragma once

#include <string_view>

#include "base/error.hpp"

namespace espalier {

// Ascending: a machine that has one has all before it.
enum class CpuVariant { portable, avx2, avx512, avx512_bf16 };

std::string_view name_of(CpuVariant variant);

// The best this machine has, or what ESPALIER_CPU_VARIANT names if the machine has it (an error
// otherwise).
CpuVariant best_cpu_variant();
Expected<CpuVariant> chosen_cpu_variant();

// True if integer products may use it; it changes no bits, so it makes no variant.
bool has_avx512_vnni();

}  // namespace espalier
