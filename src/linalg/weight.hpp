// SPDX-License-Identifier: Apache-2.0
// Weights as a backend keeps them. A backend packs what a checkpoint holds (WeightSource) into a
// layout of its own and gets it back as an opaque view; the layout's name lets a kernel refuse
// another backend's. Mostly plain data: attention reads this header without linking the library.
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/buffer.hpp"
#include "base/check.hpp"
#include "base/error.hpp"
#include "base/number_mode.hpp"
#include "base/weight_format.hpp"
#include "linalg/segments.hpp"

namespace espalier::linalg {

// A weight matrix as a checkpoint holds it: row-major [n, k], or [k, n] when transposed. Unaligned
// is fine.
struct WeightSource {
    const std::byte* data = nullptr;
    WeightFormat format = {};
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t row_stride = 0;  // weights between stored rows
    bool transposed = false;      // stored [k, n]
    // Scaled formats only. The scale of the stored element (i, j) is
    //   scales[(first_row + i) / rows_of_a_group · scale_stride + (first_col + j) / columns_of_one]
    // where first_row and first_col say where this view begins in the tensor that owns the scales.
    // Along n a view may begin anywhere; along k at a multiple of group_k, unless it lies in one
    // group.
    const std::byte* scales = nullptr;
    std::int64_t scale_stride = 0;
    std::int64_t first_row = 0;
    std::int64_t first_col = 0;
    float tensor_scale =
        1.0f;  // where the format has one: every scale is times this, rounded to f32
    // Formats with zero points: f32, in the grid of the scales, which are f32 too. A weight is
    // code · scale + zero point.
    const std::byte* zeros = nullptr;
    // Integer codes plus half their range, as compressed-tensors packs them: packing takes it off.
    bool offset_codes = false;
};

// `stack[i]` lists the sources that make matrix i (heads, experts); they are joined along n and
// must agree in k and format, and all matrices must have the same n.
using WeightStack = std::span<const std::span<const WeightSource>>;

enum class WeightLayout : std::uint8_t {
    none,
    rows,    // [count][n][k], scales [count][n][groups of k]: the reference backend, CUDA attention
    panels,  // linalg/packed.hpp: the CPU backend
    fragments,        // linalg/cuda/fragments.hpp: the CUDA backend
    gated_fragments,  // the same of gate and up, their rows dealt for a gated product
};

constexpr std::string_view name_of(WeightLayout layout) {
    switch (layout) {
        case WeightLayout::none:
            return "none";
        case WeightLayout::rows:
            return "rows";
        case WeightLayout::panels:
            return "panels";
        case WeightLayout::fragments:
            return "fragments";
        case WeightLayout::gated_fragments:
            return "gated fragments";
    }
    return "?";
}

// `count` matrices [n, k] of one format in a device's memory (y = x · Wᵀ).
struct WeightView {
    WeightFormat format;
    WeightLayout layout = WeightLayout::none;
    std::int64_t count = 0;
    std::int64_t n = 0;
    std::int64_t k = 0;
    std::int64_t matrix_bytes = 0;  // from one matrix to the next
    std::int64_t scale_bytes = 0;   // from one matrix's scales to the next one's
    const std::byte* data = nullptr;
    const std::byte* scales = nullptr;    // scaled formats only
    InputSegments segments{};             // of one chain each, on a CPU; a GPU has them by shape
    NumberMode inputs = NumberMode::own;  // as which products read x

    // Numbers that a group of an output has: a scale, and behind it a zero point.
    std::int64_t group_numbers() const { return format.zero_points ? 2 : 1; }
    // Their bytes.
    std::int64_t scale_width() const {
        return group_numbers() * static_cast<std::int64_t>(bytes_of(dtype_of(format.scale)));
    }
    std::int64_t scale_groups() const {
        return format.scaled() ? (k + format.group_k - 1) / format.group_k : 0;
    }
    // One matrix of the stack.
    WeightView at(std::int64_t index) const {
        CHECK(index >= 0 && index < count, "matrix {} of {}", index, count);
        WeightView one = *this;
        one.count = 1;
        one.data += index * matrix_bytes;
        if (scales != nullptr) one.scales += index * scale_bytes;
        return one;
    }
};

// Owns what its view shows.
class Weight {
  public:
    Weight() = default;
    // view: without data and scales, which are the buffers'.
    Weight(Buffer data, Buffer scales, const WeightView& view)
        : data_(std::move(data)), scales_(std::move(scales)), view_(view) {
        view_.data = data_.data();
        view_.scales = scales_.data();
    }

    const WeightView& view() const { return view_; }
    // Borders are multiples of kChunkInputs, so that no layout and no group of scales crosses them.
    void cut(const InputSegments& segments) {
        CHECK(segments.count <= 1 || (segments.inputs % kChunkInputs == 0 &&
                                      (segments.count - 1) * segments.inputs < view_.k &&
                                      view_.k <= segments.count * segments.inputs),
              "{} inputs in {} segments of {}", view_.k, segments.count, segments.inputs);
        view_.segments = segments;
    }
    std::size_t bytes() const { return data_.bytes() + scales_.bytes(); }
    // Products read x so, where the format takes a number mode.
    void read_inputs_as(NumberMode mode) {
        if (takes_number_mode(view_.format.code)) view_.inputs = mode;
    }

  private:
    Buffer data_;
    Buffer scales_;
    WeightView view_;
};

// Format in which stored weights are packed. Products know scales of bf16 and f32, one for
// an output and up to kLongestGroup inputs: others become f32, with the matrix's own scale in them,
// and one for more inputs (a whole row's) is repeated.
inline constexpr std::int32_t kLongestGroup = 128;
constexpr WeightFormat packed_format(WeightFormat format) {
    if (!format.scaled()) return format;
    if (format.scale != ScaleType::bf16 || format.tensor_scale || format.zero_points)
        format.scale = ScaleType::f32;
    if (format.group_k > kLongestGroup) format.group_k = kLongestGroup;
    format.tensor_scale = false;
    return format;
}

// Packed format and shape that all matrices of the stack share, with every source checked. Sizes
// are multiplied as 64-bit with overflow checks. Zero points are refused where the layout has no
// place for them.
enum class ZeroPoints : std::uint8_t { refused, taken };
Expected<WeightView> common_shape(WeightStack stack, ZeroPoints zero_points = ZeroPoints::refused);
Expected<std::int64_t> checked_product(std::int64_t a, std::int64_t b);

// First output and input of a source in its grid of scales.
struct GridOrigin {
    std::int64_t n = 0;
    std::int64_t k = 0;
};
GridOrigin grid_origin(const WeightSource& source);
// The scale of output n and of group `group` of the inputs as packed_format has them.
float scale_of(const WeightSource& source, std::int64_t n, std::int64_t group);
// Likewise of a format with zero points.
float zero_of(const WeightSource& source, std::int64_t n, std::int64_t group);

}  // namespace espalier::linalg
