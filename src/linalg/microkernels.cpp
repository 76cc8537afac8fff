// SPDX-License-Identifier: Apache-2.0
#include "linalg/microkernels.hpp"

#include "base/check.hpp"

namespace espalier::linalg {

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
