// SPDX-License-Identifier: Apache-2.0
// The reference backend's product, over weights laid out as rows.
#pragma once

#include "base/matrix.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {

// y [rows, n] from x [rows, k] and one matrix. Each output is one f32 chain over ascending k, every
// product rounded before it is added; weights with scales have one such chain per group of k, and
// total += chain · scale, groups ascending. Weights cut into segments have this for each, and the
// segments' sums are added in ascending order.
void reference_product(const Matrix& x, const WeightView& w, const Matrix& y, Store store);
// The same without the last sum: sums [segments · rows, n] f32.
void reference_segment_sums(const Matrix& x, const WeightView& w, const Matrix& sums);

}  // namespace espalier::ops
