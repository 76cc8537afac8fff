// SPDX-License-Identifier: Apache-2.0
#include "linalg/microkernels.hpp"

#include "base/check.hpp"

namespace espalier::linalg {

const WeightKernels& Microkernels::of(DType weight) const {
    switch (weight) {
        case DType::f32:
            return f32;
        case DType::f16:
            return f16;
        case DType::bf16:
            return bf16;
        case DType::e4m3:
            return e4m3;
    }
    CHECK(false, "no kernels for weight type {}", static_cast<int>(weight));
}

const Microkernels& microkernels_of(CpuVariant variant) {
    CHECK(variant <= best_cpu_variant(), "this machine's best is {}, asked for {}",
          name_of(best_cpu_variant()), name_of(variant));
#if defined(__x86_64__)
    switch (variant) {
        case CpuVariant::portable:
            return portable_microkernels();
        case CpuVariant::avx2:
            return avx2_microkernels();
        case CpuVariant::avx512:
            return avx512_microkernels();
        case CpuVariant::avx512_bf16:
            return avx512_bf16_microkernels();
    }
#endif
    return portable_microkernels();
}

}  // namespace espalier::linalg
