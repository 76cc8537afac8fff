// SPDX-License-Identifier: Apache-2.0
// Random weights and activations for the tests of src/linalg, in the form a checkpoint holds them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/matrix.hpp"
#include "linalg/packed.hpp"
#include "linalg/product.hpp"

namespace espalier::linalg {

inline constexpr DType kWeightTypes[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};

inline std::vector<CpuVariant> variants_here() {
    std::vector<CpuVariant> variants;
    for (const CpuVariant variant :
         {CpuVariant::portable, CpuVariant::avx2, CpuVariant::avx512, CpuVariant::avx512_bf16})
        if (variant <= best_cpu_variant()) variants.push_back(variant);
    return variants;
}

inline void write_element(std::byte* at, DType dtype, float value) {
    const Fp16 half = to_fp16(value);
    const Bf16 brain = to_bf16(value);
    const E4m3 eight = to_e4m3(value);
    switch (dtype) {
        case DType::f32:
            std::memcpy(at, &value, 4);
            break;
        case DType::f16:
            std::memcpy(at, &half, 2);
            break;
        case DType::bf16:
            std::memcpy(at, &brain, 2);
            break;
        case DType::e4m3:
            std::memcpy(at, &eight, 1);
            break;
    }
}

inline float read_element(const std::byte* at, DType dtype) {
    float value = 0;
    Fp16 half;
    Bf16 brain;
    E4m3 eight;
    switch (dtype) {
        case DType::f32:
            std::memcpy(&value, at, 4);
            return value;
        case DType::f16:
            std::memcpy(&half, at, 2);
            return to_float(half);
        case DType::bf16:
            std::memcpy(&brain, at, 2);
            return to_float(brain);
        case DType::e4m3:
            std::memcpy(&eight, at, 1);
            return to_float(eight);
    }
    return value;
}

// Weights of these elements as checkpoints have them: e4m3 with scales.
inline WeightFormat format_of(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return {.code = WeightCode::f32};
        case DType::f16:
            return {.code = WeightCode::f16};
        case DType::bf16:
            return {.code = WeightCode::bf16};
        case DType::e4m3:
            return kFp8Blocks;
    }
    return {};
}

// A stored tensor [rows, cols] with a row stride and an odd byte offset, and scales if it is e4m3.
class StoredTensor {
  public:
    StoredTensor(DType dtype, std::int64_t rows, std::int64_t cols, std::uint32_t seed,
                 std::int64_t extra_stride = 0)
        : dtype_(dtype), rows_(rows), cols_(cols), stride_(cols + extra_stride) {
        std::mt19937 engine(seed);
        std::normal_distribution<float> normal;
        const auto size = bytes_of(dtype);
        bytes_.resize(static_cast<std::size_t>(rows * stride_) * size + 1);
        for (std::int64_t i = 0; i < rows * stride_; ++i)
            write_element(bytes_.data() + 1 + static_cast<std::size_t>(i) * size, dtype,
                          normal(engine));
        if (dtype != DType::e4m3) return;
        std::uniform_real_distribution<float> scale(0.01f, 0.1f);
        scale_stride_ = (cols + 127) / 128;
        scales_.resize(static_cast<std::size_t>((rows + 127) / 128 * scale_stride_));
        std::generate(scales_.begin(), scales_.end(), [&] { return scale(engine); });
    }

    // The stored block at (row, col), `height` × `width`, as a source; transposed makes n of the
    // columns.
    WeightSource view(std::int64_t row, std::int64_t col, std::int64_t height, std::int64_t width,
                      bool transposed = false) const {
        WeightSource source;
        const auto at = static_cast<std::size_t>(row * stride_ + col);
        source.data = bytes_.data() + 1 + at * bytes_of(dtype_);
        source.format = format_of(dtype_);
        source.n = transposed ? width : height;
        source.k = transposed ? height : width;
        source.row_stride = stride_;
        source.transposed = transposed;
        source.scales = reinterpret_cast<const std::byte*>(scales_.data());
        source.scale_stride = scale_stride_;
        source.first_row = row;
        source.first_col = col;
        return source;
    }
    WeightSource view(bool transposed = false) const {
        return view(0, 0, rows_, cols_, transposed);
    }

    float code(std::int64_t row, std::int64_t col) const {
        const auto at = static_cast<std::size_t>(row * stride_ + col);
        return read_element(bytes_.data() + 1 + at * bytes_of(dtype_), dtype_);
    }
    float scale(std::int64_t row, std::int64_t col) const {
        return scales_[static_cast<std::size_t>(row / 128 * scale_stride_ + col / 128)];
    }
    std::vector<std::byte>& bytes() { return bytes_; }

  private:
    DType dtype_;
    std::int64_t rows_, cols_, stride_;
    std::int64_t scale_stride_ = 0;
    std::vector<std::byte> bytes_;
    std::vector<float> scales_;
};

// Activations in exactly rows · stride elements, so that a sanitizer sees reads past the last row.
class Activations {
  public:
    Activations(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t stride)
        : bytes_(static_cast<std::size_t>(rows * stride) * bytes_of(dtype)),
          matrix_{bytes_.data(), dtype, rows, cols, stride} {}

    static Activations random(DType dtype, std::int64_t rows, std::int64_t cols,
                              std::int64_t stride, std::uint32_t seed) {
        Activations made(dtype, rows, cols, stride);
        std::mt19937 engine(seed);
        std::normal_distribution<float> normal;
        for (std::int64_t row = 0; row < rows; ++row)
            for (std::int64_t col = 0; col < stride; ++col)
                write_element(made.at(row, col), dtype,
                              col < cols ? normal(engine) : std::nanf(""));
        return made;
    }

    Activations(Activations&&) = default;
    const Matrix& matrix() const { return matrix_; }
    std::byte* at(std::int64_t row, std::int64_t col) {
        return bytes_.data() +
               static_cast<std::size_t>(row * matrix_.stride + col) * bytes_of(matrix_.dtype);
    }
    float value(std::int64_t row, std::int64_t col) {
        return read_element(at(row, col), matrix_.dtype);
    }
    void fill(std::byte value) { std::fill(bytes_.begin(), bytes_.end(), value); }
    const std::vector<std::byte>& bytes() const { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
    Matrix matrix_;
};

// The bytes of `cols` elements of a row.
// Where they differ: in how many columns, and both values in the first.
inline testing::AssertionResult same_row(Activations& a, std::int64_t a_row, Activations& b,
                                         std::int64_t b_row, std::int64_t cols,
                                         std::int64_t a_col = 0, std::int64_t b_col = 0) {
    const std::size_t bytes = bytes_of(a.matrix().dtype);
    if (std::memcmp(a.at(a_row, a_col), b.at(b_row, b_col),
                    static_cast<std::size_t>(cols) * bytes) == 0)
        return testing::AssertionSuccess();
    std::int64_t first = cols, count = 0;
    for (std::int64_t col = cols - 1; col >= 0; --col)
        if (std::memcmp(a.at(a_row, a_col + col), b.at(b_row, b_col + col), bytes) != 0) {
            first = col;
            ++count;
        }
    return testing::AssertionFailure()
           << count << " of " << cols << " columns differ, the first is " << first << ": "
           << a.value(a_row, a_col + first) << " and " << b.value(b_row, b_col + first);
}

inline Weight pack_or_die(CpuDevice& device, const WeightSource& source) {
    const std::span<const WeightSource> one(&source, 1);
    auto packed = pack_panels(device, WeightStack(&one, 1));
    EXPECT_TRUE(packed.has_value()) << (packed ? "" : packed.error().message);
    return std::move(packed.value());
}

inline std::string title(CpuVariant variant, DType dtype) {
    return std::string(name_of(variant)) + " " + std::string(name_of(dtype));
}

}  // namespace espalier::linalg
