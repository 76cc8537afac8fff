// SPDX-License-Identifier: Apache-2.0
// One number of a buffer whose dtype is known only at run time. Buffers from files need not align
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/numeric.hpp"

namespace espalier {

inline float load_element(const std::byte* data, DType dtype, std::int64_t index) {
    const std::byte* at = data + index * static_cast<std::int64_t>(bytes_of(dtype));
    const auto read = [at]<typename T>(T value) {
        std::memcpy(&value, at, sizeof(T));
        return to_float(value);
    };
    switch (dtype) {
        case DType::f32:
            return read(float{});
        case DType::f16:
            return read(Fp16{});
        case DType::bf16:
            return read(Bf16{});
        case DType::e4m3:
            return read(E4m3{});
    }
    return 0.0f;
}

// Rounds once to the dtype.
inline void store_element(std::byte* data, DType dtype, std::int64_t index, float value) {
    std::byte* at = data + index * static_cast<std::int64_t>(bytes_of(dtype));
    const auto write = [at](auto stored) { std::memcpy(at, &stored, sizeof(stored)); };
    switch (dtype) {
        case DType::f32:
            return write(value);
        case DType::f16:
            return write(to_fp16(value));
        case DType::bf16:
            return write(to_bf16(value));
        case DType::e4m3:
            return write(to_e4m3(value));
    }
}

}  // namespace espalier
