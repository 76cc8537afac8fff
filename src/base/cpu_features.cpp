// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.hpp"

#include <array>
#include <cstdlib>

namespace espalier {
namespace {

constexpr std::array kVariants = {CpuVariant::portable, CpuVariant::avx2, CpuVariant::avx512,
                                  CpuVariant::avx512_bf16};

}  // namespace

std::string_view name_of(CpuVariant variant) {
    switch (variant) {
        case CpuVariant::portable:
            return "portable";
        case CpuVariant::avx2:
            return "avx2";
        case CpuVariant::avx512:
            return "avx512";
        case CpuVariant::avx512_bf16:
            return "avx512_bf16";
    }
    return "?";
}

CpuVariant best_cpu_variant() {
#if defined(__x86_64__)
#if defined(__clang__)
    const bool f16c = true;  // clang 14 does not know the name; no processor has AVX2 without it
#else
    const bool f16c = __builtin_cpu_supports("f16c");
#endif
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq");
    const bool bf16 =
        avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
    if (bf16) return CpuVariant::avx512_bf16;
    if (avx512) return CpuVariant::avx512;
    if (avx2) return CpuVariant::avx2;
#endif
    return CpuVariant::portable;
}

bool has_avx512_vnni() {
#if defined(__x86_64__)
    return best_cpu_variant() >= CpuVariant::avx512 && __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

Expected<CpuVariant> chosen_cpu_variant() {
    const char* wanted = std::getenv("ESPALIER_CPU_VARIANT");
    const CpuVariant best = best_cpu_variant();
    if (wanted == nullptr || *wanted == '\0') return best;
    for (const CpuVariant variant : kVariants) {
        if (name_of(variant) != wanted) continue;
        if (variant <= best) return variant;
        return fail(ErrorKind::unsupported, "ESPALIER_CPU_VARIANT={}: this machine's best is {}",
                    wanted, name_of(best));
    }
    return fail(ErrorKind::invalid,
                "ESPALIER_CPU_VARIANT={}: not one of portable, avx2, avx512, avx512_bf16", wanted);
}

}  // namespace espalier
