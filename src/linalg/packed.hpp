// SPDX-License-Identifier: Apache-2.0
// Weights in the one packed layout that every CPU variant reads, for any number of rows.
//
// A matrix W [n, k] (y = x · Wᵀ) is cut into panels of 16 outputs; the last panel is padded with
// zeros, and so is an odd k. Inside a panel, k runs slowest:
//   f32, f16    [panel][k][16]
//   bf16, e4m3  [panel][k/2][16][2]      pairs of k side by side, as vdpbf16ps wants them
// e4m3 also has scales f32 [panel][ceil(k/128)][16]: one per output and 128-wide block of k.
// `count` matrices of one shape lie one after another (heads, experts).
#pragma once

#include <cstdint>
#include <span>

#include "base/buffer.hpp"
#include "base/cpu_device.hpp"
#include "base/error.hpp"
#include "base/numeric.hpp"

namespace espalier::linalg {

inline constexpr std::int64_t kPanel = 16;  // outputs per panel
inline constexpr std::int64_t kScaleBlock =
    128;  // FP8 checkpoints: 128 × 128 weights share a scale

// A weight matrix as a checkpoint holds it: row-major [n, k], or [k, n] when transposed. Unaligned
// is fine.
struct WeightSource {
    const std::byte* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t row_stride = 0;  // elements between stored rows
    bool transposed = false;      // stored [k, n]
    // e4m3 only. The scale of the stored element (i, j) is
    //   scale_inv[(first_row + i) / 128 · scale_stride + (first_col + j) / 128]
    // where first_row and first_col say where this view begins in the tensor that owns the scales.
    // Along n a view may begin anywhere; along k at a multiple of 128, unless it lies in one block.
    const float* scale_inv = nullptr;
    std::int64_t scale_stride = 0;
    std::int64_t first_row = 0;
    std::int64_t first_col = 0;
};

// A borrowed view of packed matrices; plain data.
struct PackedView {
    DType dtype = DType::f32;
    std::int64_t count = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    const std::byte* data = nullptr;
    const float* scales = nullptr;  // e4m3 only

    std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
    std::int64_t k_padded() const {
        return dtype == DType::bf16 || dtype == DType::e4m3 ? (k + 1) / 2 * 2 : k;
    }
    std::int64_t panel_bytes() const {
        return k_padded() * kPanel * static_cast<std::int64_t>(bytes_of(dtype));
    }
    std::int64_t scale_blocks() const { return (k + kScaleBlock - 1) / kScaleBlock; }
    // One matrix of the stack.
    PackedView at(std::int64_t index) const;
    // Outputs [first, first + outputs): first is a multiple of 16.
    PackedView outputs(std::int64_t first, std::int64_t outputs) const;
};

class PackedMatrix {
  public:
    PackedMatrix() = default;

    // `stack[i]` lists the sources that make matrix i; they are joined along n and must agree in k
    // and dtype, and all matrices must have the same n. Sizes are multiplied as 64-bit with
    // overflow checks. FP8 joined with FP8 keeps each source's own scales.
    static Expected<PackedMatrix> pack(CpuDevice& device,
                                       std::span<const std::span<const WeightSource>> stack);
    static Expected<PackedMatrix> pack(CpuDevice& device, const WeightSource& source);

    const PackedView& view() const { return view_; }
    std::size_t bytes() const { return data_.bytes() + scales_.bytes(); }

  private:
    Buffer data_;
    Buffer scales_;
    PackedView view_;
};

}  // namespace espalier::linalg
