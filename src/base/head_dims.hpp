// SPDX-License-Identifier: Apache-2.0
// Widths of latent attention: of a cached key, and of one head once it is decompressed. They are
// the model's numbers (checkpoint/model_config.hpp); kernels say which they are made for. Plain
// data; device code includes this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier {

// Columns of a cached key: the compressed latent, which is its value too, and the rotated part.
struct KeyDims {
    std::int64_t latent = 512;
    std::int64_t rope = 64;

    constexpr std::int64_t key() const { return latent + rope; }
    constexpr bool operator==(const KeyDims&) const = default;
};

struct HeadDims {
    std::int64_t nope = 128;   // columns of a key without rope
    std::int64_t value = 128;  // columns of a value

    // Columns of a query, beside keys with the default's 64 rotated ones.
    constexpr std::int64_t query() const { return nope + KeyDims{}.rope; }
    constexpr std::int64_t outputs() const { return nope + value; }  // of the up-projection
    constexpr bool operator==(const HeadDims&) const = default;
};

// Keys and heads that the CPU's kernels are compiled for, in any combination: DeepSeek, Kimi and
// GLM · Mistral Small 4; DeepSeek, Kimi · GLM-4.7-Flash · Mistral Small 4 · GigaChat3. A row more
// is a row more in the tables of tile folds (mla/cpu/tile_kernels.hpp); the oracle takes any.
// CUDA's kernels are compiled for the first ones (mla/checks.hpp).
inline constexpr KeyDims kKeyDims[] = {{512, 64}, {256, 64}};
inline constexpr HeadDims kHeadDims[] = {{128, 128}, {192, 256}, {64, 128}, {128, 192}};
inline constexpr std::size_t kKeyDimsCount = sizeof(kKeyDims) / sizeof(kKeyDims[0]);
inline constexpr std::size_t kHeadDimsCount = sizeof(kHeadDims) / sizeof(kHeadDims[0]);

// The index in kKeyDims; kKeyDimsCount: none.
constexpr std::size_t index_of(const KeyDims& dims) {
    std::size_t index = 0;
    while (index < kKeyDimsCount && !(kKeyDims[index] == dims)) ++index;
    return index;
}
// The index in kHeadDims; kHeadDimsCount: none.
constexpr std::size_t index_of(const HeadDims& dims) {
    std::size_t index = 0;
    while (index < kHeadDimsCount && !(kHeadDims[index] == dims)) ++index;
    return index;
}

}  // namespace espalier
