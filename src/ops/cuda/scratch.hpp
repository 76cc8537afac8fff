// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/op_context.hpp"
#include "linalg/cuda/product.hpp"

namespace espalier::ops::cuda {

// Scratch of a product: the whole arena, because no operation that holds a part of it calls one.
inline linalg::cuda::Scratch scratch_of(OpContext& context) {
    return {context.arena.memory().data(), context.arena.memory().bytes()};
}

}  // namespace espalier::ops::cuda
