// SPDX-License-Identifier: Apache-2.0
// Sums and norms of rows, each spread over several multiprocessors, with the bits of rows.cu.
// False: nothing was launched, because rows are too many or too long, cannot be read 16 bytes at a
// time or become f16, or because the stream's device has no clusters.
#pragma once

#include "ops/cuda/addends.cuh"
#include "ops/layer_program.hpp"

namespace espalier::ops::cuda {

bool spread_norm(const char* what, Stream stream, const Addends& add, const Matrix& x,
                 const RowNorm& norm);

}  // namespace espalier::ops::cuda
