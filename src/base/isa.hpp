// SPDX-License-Identifier: Apache-2.0
// Compiles the functions between BEGIN and END for a given instruction set while the rest of the
// program stays portable. Include every header before BEGIN, and keep the functions in an anonymous
// namespace: an inline function compiled for AVX-512 must never be the copy the linker keeps for
// everyone.
#pragma once

#if defined(__clang__)
#define ESPALIER_PRAGMA(text) _Pragma(#text)
#define ESPALIER_ISA_BEGIN(features) \
    ESPALIER_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define ESPALIER_ISA_END _Pragma("clang attribute pop")
#else
#define ESPALIER_PRAGMA(text) _Pragma(#text)
#define ESPALIER_ISA_BEGIN(features) \
    _Pragma("GCC push_options") ESPALIER_PRAGMA(GCC target(features))
#define ESPALIER_ISA_END _Pragma("GCC pop_options")
#endif

#define ESPALIER_ISA_AVX2 "avx2,fma,f16c"
#define ESPALIER_ISA_AVX512 "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq"
#define ESPALIER_ISA_AVX512_VNNI "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"
#define ESPALIER_ISA_AVX512_BF16 \
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vbmi"
