// SPDX-License-Identifier: Apache-2.0
// A typed view of row-major activations. Columns are contiguous; rows are `stride` elements apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.hpp"
#include "base/numeric.hpp"

namespace espalier {

template <typename T>
constexpr DType dtype_of() {
    if constexpr (std::is_same_v<std::remove_const_t<T>, float>) return DType::f32;
    if constexpr (std::is_same_v<std::remove_const_t<T>, Bf16>) return DType::bf16;
    if constexpr (std::is_same_v<std::remove_const_t<T>, Fp16>) return DType::f16;
    if constexpr (std::is_same_v<std::remove_const_t<T>, E4m3>) return DType::e4m3;
}

// [rows, cols]; a view borrows.
struct Matrix {
    std::byte* data = nullptr;
    DType dtype = DType::f32;
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    std::int64_t stride = 0;  // elements between rows, ≥ cols

    template <typename T>
    static Matrix of(T* data, std::int64_t rows, std::int64_t cols, std::int64_t stride = -1) {
        return {reinterpret_cast<std::byte*>(data), dtype_of<T>(), rows, cols,
                stride < 0 ? cols : stride};
    }

    template <typename T>
    T* row(std::int64_t index) const {
        CHECK(dtype == dtype_of<T>(), "matrix holds {}, asked for {}", name_of(dtype),
              name_of(dtype_of<T>()));
        return reinterpret_cast<T*>(data) + index * stride;
    }
    // Columns [first, first + count) of every row.
    Matrix columns(std::int64_t first, std::int64_t count) const {
        return {data + first * static_cast<std::int64_t>(bytes_of(dtype)), dtype, rows, count,
                stride};
    }
    // Rows [first, first + count).
    Matrix slice(std::int64_t first, std::int64_t count) const {
        return {data + first * stride * static_cast<std::int64_t>(bytes_of(dtype)), dtype, count,
                cols, stride};
    }
};

}  // namespace espalier
