// SPDX-License-Identifier: Apache-2.0
// What one head of latent attention has once it is decompressed. Latent and rope columns are the
// same for all models that run here (512 and 64). Plain data; device code includes this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

struct HeadDims {
    std::int64_t nope = 128;   // columns of a key without rope
    std::int64_t value = 128;  // columns of a value

    // Columns of a query: 64 more than nope, which are rotated.
    constexpr std::int64_t query() const { return nope + 64; }
    constexpr std::int64_t outputs() const { return nope + value; }  // of the up-projection
    constexpr bool operator==(const HeadDims&) const = default;
};

// DeepSeek, Kimi · GLM-4.7-Flash. A row more is a row more in the CPU's table of tile folds
// (mla/cpu/tile_kernels.hpp); the absorbed form takes any.
inline constexpr HeadDims kHeadDims[] = {{128, 128}, {192, 256}};
inline constexpr std::size_t kHeadDimsCount = sizeof(kHeadDims) / sizeof(kHeadDims[0]);

// The index in kHeadDims; kHeadDimsCount: none.
constexpr std::size_t index_of(const HeadDims& dims) {
    std::size_t index = 0;
    while (index < kHeadDimsCount && !(kHeadDims[index] == dims)) ++index;
    return index;
}

}  // namespace espalier
