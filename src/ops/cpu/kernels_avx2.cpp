// SPDX-License-Identifier: Apache-2.0
// AVX2, compiled apart; only kernels_for() hands it out, after asking the processor.
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

ESPALIER_ISA_BEGIN(ESPALIER_ISA_AVX2)
namespace espalier::ops {
namespace {

// 4 counters at a time, each word in the low half of a 64-bit lane: a product's high half is a
// shift away, and what a lane holds above its low half is never read. (g++ 12 turns the plain loop
// into full 64-bit products, 3× slower.)
void philox(const std::int32_t* tokens, std::int64_t n, std::uint64_t seed, std::int32_t position,
            std::int32_t choice, std::uint32_t* out) {
    const __m256i first_factor = _mm256_set1_epi64x(0xD2511F53);
    const __m256i second_factor = _mm256_set1_epi64x(0xCD9E8D57);
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256i c0 = _mm256_set1_epi64x(position);
        __m256i c1 =
            _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens + i)));
        __m256i c2 = _mm256_set1_epi64x(choice);
        __m256i c3 = _mm256_setzero_si256();
        auto k0 = static_cast<std::uint32_t>(seed);
        auto k1 = static_cast<std::uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const __m256i first = _mm256_mul_epu32(c0, first_factor);
            const __m256i second = _mm256_mul_epu32(c2, second_factor);
            c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(second, 32), c1),
                                  _mm256_set1_epi64x(k0));
            c1 = second;
            c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(first, 32), c3),
                                  _mm256_set1_epi64x(k1));
            c3 = first;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        const __m256i low =
            _mm256_permutevar8x32_epi32(c0, _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_castsi256_si128(low));
    }
    for (; i < n; ++i) out[i] = philox_word(seed, position, tokens[i], choice);
}

#include "ops/cpu/kernels.inc"

}  // namespace
}  // namespace espalier::ops
ESPALIER_ISA_END

namespace espalier::ops {

const KernelTable& avx2_kernels() { return kTable; }

}  // namespace espalier::ops

#endif
