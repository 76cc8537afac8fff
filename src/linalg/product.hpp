// SPDX-License-Identifier: Apache-2.0
// Row-invariant matrix products: the bits of an output row depend on that row and the weights
// alone, not on how many rows are computed with it, on threads, or on tiling. Each output is one
// chain over ascending k:
//   f32, f16 weights   x f32; one fused multiply-add per k (portable: product rounded, then added)
//   bf16 weights       x bf16; pairs of k into one f32 accumulator
//   e4m3 weights       x bf16; weights widened to bf16 exactly, one such chain per 128-wide block
//                      of k, then total += chain · scale, blocks ascending
// Weights that are cut into segments (o and down) have such a chain for each, and the segments'
// sums are added in ascending order. Equality of bits holds within one CpuVariant. Weights are laid
// out as panels (linalg/packed.hpp).
#pragma once

#include <cstdint>
#include <memory>

#include "base/cpu_features.hpp"
#include "base/matrix.hpp"
#include "base/thread_pool.hpp"
#include "linalg/store.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

class RoundedRows;

// Where WeightView::inputs asks for it, x is rounded first (linalg/rounded_inputs.hpp).
class Products {
  public:
    explicit Products(CpuVariant variant);
    ~Products();
    CpuVariant variant() const { return variant_; }
    // An error that names the format where there are no kernels for it.
    Expected<void> check_format(const WeightFormat& format) const;

    // y [rows, n] from x [rows, k]; w is one matrix.
    void product(ThreadPool& pool, const Matrix& x, const WeightView& w, const Matrix& y,
                 Store store = Store::assign) const;

    // The same without the last sum: sums [segments · rows, n] f32, of segment s and row r at
    // s · rows + r.
    void segment_sums(ThreadPool& pool, const Matrix& x, const WeightView& w,
                      const Matrix& sums) const;

    // For every stack index s (a head): y[s·y_step …] from x[s·x_step …]; steps are columns.
    // x [rows, ≥ (count-1)·x_step + k], y [rows, ≥ (count-1)·y_step + n].
    void stacked(ThreadPool& pool, const Matrix& x, std::int64_t x_step, const WeightView& w,
                 const Matrix& y, std::int64_t y_step) const;

    // Grouped (experts): output rows group_indptr[g] … group_indptr[g+1]-1 use matrix g. Output row
    // r reads input row source_row[r] (or r itself when source_row is null).
    void grouped(ThreadPool& pool, const Matrix& x, const std::int32_t* source_row,
                 const std::int32_t* group_indptr, const WeightView& w, const Matrix& y) const;

  private:
    CpuVariant variant_;
    std::unique_ptr<RoundedRows> rounded_;
};

// The definition in plain loops, in double and then rounded: an oracle for tolerance, not for bits.
void reference_product(const Matrix& x, const WeightView& w, const Matrix& y, Store store);

}  // namespace espalier::linalg
