// SPDX-License-Identifier: Apache-2.0
// The reference backend's product, over weights laid out as rows.
#pragma once

#include "base/matrix.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {

// y [rows, n] from x [rows, k] and one matrix. Each output is one f32 chain over ascending k, every
// product rounded before it is added; weights with scales have one such chain per group of k, and
// total += chain · scale, groups ascending.
void reference_product(const Matrix& x, const WeightView& w, const Matrix& y, Store store);

}  // namespace espalier::ops
