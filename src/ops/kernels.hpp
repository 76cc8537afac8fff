// SPDX-License-Identifier: Apache-2.0
// The inner loops of the CPU backend: one table per instruction set, all made from cpu/kernels.inc.
// Every loop is elementwise or sums in lanes fixed by the index, without fused steps, so all tables
// give the same bits.
#pragma once

#include <cstdint>

#include "base/cpu_features.hpp"
#include "base/numeric.hpp"

namespace espalier::ops {

// One scan over a range of logits.
struct LogitScan {
    float maximum;
    bool bad;  // a NaN or +Inf is among them
};

// A node's logits scaled by its temperature, as doubles: raw · inverse; maximum is the largest of
// them.
struct Scaling {
    double inverse;
    double maximum;
};

// Beginning of the buckets and their number per unit of raw logit.
struct BucketScale {
    float maximum;
    float per_unit;
};

// The penalties of DrawParameters.
struct Penalties {
    float repetition;
    float frequency;
    float presence;
};

struct KernelTable {
    // Σ x² over n, in 32 lanes by index and a fixed tree.
    float (*sum_of_squares)(const float* x, std::int64_t n);
    // out = (x · factor) · weight.
    void (*scale)(const float* x, float factor, const float* weight, std::int64_t n, float* out);
    // out = silu(gate) · up.
    void (*swiglu)(const float* gate, const float* up, std::int64_t n, float* out);
    // Rotates 32 interleaved pairs by 32 (cos, sin) pairs; out may be from.
    void (*rotate)(const float* from, const float* cos_sin, float* out);
    // f32 → dtype and back (dtype: f32, f16, bf16).
    void (*store)(const float* from, std::int64_t n, DType dtype, std::byte* to);
    void (*load)(const std::byte* from, std::int64_t n, DType dtype, float* to);
    // sum = weight · x; sum += weight · x; sum += x.
    void (*weighted)(float weight, const float* x, std::int64_t n, float* sum);
    void (*add_weighted)(float weight, const float* x, std::int64_t n, float* sum);
    void (*add)(const float* x, std::int64_t n, float* sum);
    // out = sigmoid(x); out = exp(x - maximum).
    void (*sigmoid)(const float* x, std::int64_t n, float* out);
    void (*exp_below)(const float* x, float maximum, std::int64_t n, float* out);

    // Sampling; see ops/draw.hpp for weights and buckets.
    LogitScan (*scan)(const float* logits, std::int64_t n);
    void (*weights)(const float* logits, Scaling scaling, std::int64_t n, std::uint64_t* out);
    std::uint64_t (*sum_weights)(const float* logits, Scaling scaling, std::int64_t n);
    // bucket_of for logits above `least`, and for the equal ones among the first `ties`; kBuckets
    // for the others.
    void (*buckets)(const float* logits, BucketScale scale, float least, std::int32_t ties,
                    std::int64_t n, std::int32_t* out);
    // out = logits where the bit is set, lowest bit of a word first; -inf elsewhere.
    void (*keep_allowed)(const float* logits, const std::uint32_t* words, std::int64_t n,
                         float* out);
    // Logits of listed tokens under penalties: how often each is in the output, and whether (1) it
    // is in the prompt.
    void (*penalise)(float* logits, const std::int32_t* in_output, const std::int32_t* in_prompt,
                     Penalties penalties, std::int64_t n);
    // exp(scaled - maximum) · bar - (1 - u) of listed logits and random words, to 2⁻¹⁸ relative:
    // not negative where the token's score may reach the best one (cpu/sample.cpp).
    void (*bound_margins)(const float* logits, const std::uint32_t* words, Scaling scaling,
                          float bar, std::int64_t n, float* out);
    // The first Philox word of listed token ids.
    void (*philox)(const std::int32_t* tokens, std::int64_t n, std::uint64_t seed,
                   std::int32_t position, std::int32_t choice, std::uint32_t* out);
};

const KernelTable& kernels_for(CpuVariant variant);
const KernelTable& portable_kernels();
#if defined(__x86_64__)
const KernelTable& avx2_kernels();
const KernelTable& avx512_kernels();
#endif

}  // namespace espalier::ops
