// SPDX-License-Identifier: Apache-2.0
// CUDA's entry beside the contract: entry 3 for keys that are still as kv_a has them, and what
// attention reads ahead. The layer program calls it (ops/cuda/layer_program.cpp).
#pragma once

#include "base/matrix.hpp"
#include "mla/contract.hpp"

namespace espalier::mla {

// Rows that are normed in the kernel that appends, because they are there when kv_a is: out
// [tokens, D] bf16 = x / sqrt(mean(x²) + epsilon) · weight [D], x f32. Without data: none.
struct BesideNorm {
    Matrix x;
    const float* weight = nullptr;
    float epsilon = 0.0f;
    Matrix out;
};

// Columns 0 … 511 of kv_a[token] are to be normed, 512 … 575 rotated by the pairs (cos, sin) of
// cos_sin[token]. All f32, rows *_stride apart.
struct RawKeys {
    const float* kv_a = nullptr;
    std::int64_t kv_a_stride = 0;
    const float* norm_weight = nullptr;  // [512]
    float epsilon = 0.0f;
    const float* cos_sin = nullptr;
    std::int64_t cos_sin_stride = 0;
    BesideNorm beside{};
    Ranges holds_back{};  // what an operation behind reads early (LaunchNeeds)
};

// Memory that an invariant call with a plan reads ahead, where its history stands: other launches
// hold it back for the call.
Ranges read_ahead(const Kernels& kernels, const AbsorbedCall& call);

// Norms, rotates and appends in one kernel, with the bits of the operations rms_norm and rope
// (ops/operations.hpp), then append; beside that norms other rows with the bits of rms_norm. The
// call's latent and rope are not read.
Expected<void> append_raw(OpContext& context, const AppendCall& call, const RawKeys& keys);

}  // namespace espalier::mla
