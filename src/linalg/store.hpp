// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace espalier::linalg {

// Way in which a product stores y.
enum class Store {
    assign,      // y = x · Wᵀ, rounded once to y's dtype (f32, bf16 or f16)
    accumulate,  // y += x · Wᵀ; y is f32
};

}  // namespace espalier::linalg
