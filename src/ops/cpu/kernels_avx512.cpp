// SPDX-License-Identifier: Apache-2.0
// AVX512, compiled apart; only kernels_for() hands it out, after asking the processor.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/isa.hpp"
#include "base/numeric.hpp"
#include "base/portable_math.hpp"
#include "ops/draw.hpp"
#include "ops/kernels.hpp"

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX512)
namespace espalier::ops {
namespace {

// 8 counters at a time, each word in the low half of a 64-bit lane: a product's high half is a
// shift away, and what a lane holds above its low half is never read. (g++ 12 turns the plain loop
// into full 64-bit products, 3× slower.)
void philox(const std::int32_t* tokens, std::int64_t n, std::uint64_t seed, std::int32_t position,
            std::int32_t choice, std::uint32_t* out) {
    const __m512i first_factor = _mm512_set1_epi64(0xD2511F53);
    const __m512i second_factor = _mm512_set1_epi64(0xCD9E8D57);
    std::int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m512i c0 = _mm512_set1_epi64(position);
        __m512i c1 =
            _mm512_cvtepi32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(tokens + i)));
        __m512i c2 = _mm512_set1_epi64(choice);
        __m512i c3 = _mm512_setzero_si512();
        auto k0 = static_cast<std::uint32_t>(seed);
        auto k1 = static_cast<std::uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const __m512i first = _mm512_mul_epu32(c0, first_factor);
            const __m512i second = _mm512_mul_epu32(c2, second_factor);
            c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(second, 32), c1, _mm512_set1_epi64(k0),
                                           0x96);
            c1 = second;
            c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(first, 32), c3, _mm512_set1_epi64(k1),
                                           0x96);
            c3 = first;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtepi64_epi32(c0));
    }
    for (; i < n; ++i) out[i] = philox_word(seed, position, tokens[i], choice);
}

#include "ops/cpu/kernels.inc"

}  // namespace
}  // namespace espalier::ops
ESPALIER_ISA_END

namespace espalier::ops {

const KernelTable& avx512_kernels() { return kTable; }

}  // namespace espalier::ops

#endif
