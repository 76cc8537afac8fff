// SPDX-License-Identifier: Apache-2.0
// What a CPU variant supplies to the products: for each weight type, one kernel per number of rows,
// and the few row-wise helpers around it. product.cpp is the only caller; kernels_*.cpp fill the
// tables.
//
// A kernel multiplies a tile of x (a few rows, copied to a fixed stride so that every row is a
// constant offset from one pointer) with a run of panels. Tall tiles are what makes this fast: with
// 24 rows each 64 bytes of weights feed 24 products, so the weights may stream from memory and the
// tile stays in the first-level cache.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/cpu_features.hpp"
#include "base/numeric.hpp"
#include "linalg/packed.hpp"
#include "linalg/store.hpp"

namespace espalier::linalg {

inline constexpr int kMaxTileRows = 24;
inline constexpr std::int64_t kTileBytes = 24
                                           << 10;  // leaves 8 KiB of a 32 KiB cache to the weights

// k per tile: a multiple of every group of k that shares a scale, so that a group's chain never
// crosses two calls.
inline constexpr std::int64_t kDepthUnit = 128;
constexpr std::int64_t tile_depth(int rows, int bytes_per_k) {
    return kTileBytes / (rows * bytes_per_k) / kDepthUnit * kDepthUnit;
}
// Bytes between rows of a tile; the extra line keeps rows out of each other's cache sets.
constexpr std::int64_t tile_stride(int rows, int bytes_per_k) {
    return tile_depth(rows, bytes_per_k) * bytes_per_k + 64;
}

// tile_stride where weights were widened, which is done one group of k at a time.
inline constexpr std::int64_t kWidenedTileStride = kDepthUnit * std::int64_t{sizeof(float)} + 64;

// The smallest group of inputs with a scale among integer and 4-bit codes: NVFP4's.
inline constexpr int kLeastScaleGroup = 16;

struct TileCall {
    const std::byte* x = nullptr;   // [rows][tile stride], 64-byte aligned
    const std::byte* w = nullptr;   // the first panel, at this call's first k
    std::int64_t panel_stride = 0;  // bytes
    std::int64_t panels = 0;
    std::int64_t depth = 0;  // k of this call, ≤ tile_depth; padded to pairs where the weights are
    // Scales if there are any: the first panel's at this call's first group, [groups][16].
    const std::byte* scales = nullptr;
    std::int64_t scale_stride = 0;  // bytes between panels
    std::int64_t group = 0;         // k that share a scale
    bool bf16_scales = false;       // otherwise f32
    bool zero_points = false;       // which lie behind a group's scales
    // With zero points, unless x is rounded: for each row and group of this call the sum of its x,
    // [rows][groups].
    const float* x_sums = nullptr;
    float* acc = nullptr;  // [panels][rows][16]
    bool first = false;    // chains begin at zero; otherwise they go on from acc
};

using TileKernel = void (*)(const TileCall& call);
// Copies k elements of a row of x into a tile, in the tile's format, and zeros behind them up to
// `padded`.
using FillRow = void (*)(const std::byte* x, std::int64_t k, std::int64_t padded,
                         std::byte* tile_row);
using TileKernels = std::array<TileKernel, kMaxTileRows + 1>;  // by rows, from 1

// For weights whose widening costs as much as several rows' products: a panel's weights of one
// group of k become f32 once for all tiles of rows. The same products in the same order.
struct WidenedKernels {
    int from_rows = 0;  // fewer are faster in tiles that widen for themselves; 0: all are
    // A panel's weights of `depth` k, [depth][16].
    void (*widen)(const std::byte* w, std::int64_t depth, float* to) = nullptr;
    TileKernels tile{};
};

struct WeightKernels {
    int max_rows = 0;
    int bytes_per_k = 0;    // of a tile row
    int least_group = 0;    // k that share a scale at least; 0: weights without scales
    bool rounds_x = false;  // a tile has RoundedBlocks instead of k
    FillRow fill_row = nullptr;
    TileKernels tile{};
    WidenedKernels widened;
};

struct Microkernels {
    std::array<WeightKernels, kCodes.size()> by_code{};
    // Of inputs rounded to int8 (linalg/rounded_inputs.hpp).
    std::array<WeightKernels, kCodes.size()> integers{};
    // y[0 … columns) in y_dtype from panels acc[panel · acc_stride …][16].
    void (*store_row)(const float* acc, std::int64_t acc_stride, std::int64_t columns, std::byte* y,
                      DType y_dtype, Store store) = nullptr;
    // For machine_peaks: reads every byte (a multiple of 1024), and keeps the multiply units busy.
    float (*read_all)(const std::byte* data, std::int64_t bytes) = nullptr;
    float (*spin_bf16)(std::int64_t rounds) = nullptr;
    float (*spin_f32)(std::int64_t rounds) = nullptr;
    double bf16_flops_per_round = 0;
    double f32_flops_per_round = 0;

    WeightKernels& of(WeightCode code) { return by_code[static_cast<std::size_t>(code)]; }
    const WeightKernels& of(WeightCode code) const {
        return by_code[static_cast<std::size_t>(code)];
    }
    WeightKernels& integers_of(WeightCode code) { return integers[static_cast<std::size_t>(code)]; }
    const WeightKernels& of(const WeightView& w) const {
        return w.inputs == NumberMode::int8 ? integers[static_cast<std::size_t>(w.format.code)]
                                            : of(w.format.code);
    }
};

const Microkernels& portable_microkernels();
const Microkernels& avx2_microkernels();
const Microkernels& avx512_microkernels();
const Microkernels& avx512_bf16_microkernels();
// Fill Microkernels::integers. Sums are exact, so that a variant may take another one's.
void take_portable_integers(Microkernels& kernels);
void take_avx2_integers(Microkernels& kernels);
void take_avx512_integers(Microkernels& kernels);  // with VNNI
// The table of a variant; variants this build does not have fall back to the portable one.
const Microkernels& microkernels_of(CpuVariant variant);

}  // namespace espalier::linalg
