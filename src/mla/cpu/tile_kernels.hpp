// SPDX-License-Identifier: Apache-2.0
// What an instruction set offers to attention: folding one tile of keys into 16 packed query rows,
// and up-projecting latents. A packed row (token, head) is one lane of a 16-wide vector in the
// scores and one row of the output sums, so its bits cannot depend on its neighbours. Plain data
// and function pointers: the files compiled for an instruction set include nothing that could leave
// such code in a shared inline function.
#pragma once

#include <cstddef>
#include <cstdint>

namespace espalier::mla::cpu {

inline constexpr int kLanes = 16;  // packed query rows
inline constexpr int kGroupKeys =
    16;  // keys that lie one after another in memory; divides every page size
inline constexpr int kMaxGroups = 16;
inline constexpr int kMaxTileKeys = kGroupKeys * kMaxGroups;

// Keys in logical order. Lane r sees the first visible[r] keys of the tile; a hidden key adds
// exactly nothing.
struct KeyTile {
    const std::byte* key[kMaxGroups];
    const std::byte* value[kMaxGroups];
    std::int32_t visible[kLanes];
    int groups;  // those that some lane sees
};

// The running softmax of 16 lanes. A column's place in `out` is the kernels' affair (see
// TileKernels::column).
struct LaneState {
    float* maximum;  // [16]
    float* sum;      // [16]
    float* out;      // [16][columns]
};

struct TileScratch {
    alignas(64) float scores[kMaxTileKeys * kLanes];  // [key][lane], then the probabilities
    alignas(64) std::uint32_t pairs[kMaxTileKeys / 2 * kLanes];  // bf16 probabilities of two keys
};

// One head's matrix W [128, 512] in the panels of linalg/packed.hpp.
struct UpWeights {
    const std::byte* panels;
    const float* scales;  // [panel][4][16] per 128-wide block of k, or null: bf16 kernels only
};

// query: [columns][16] f32, or [columns / 2][16][2] bf16, as the kernels' elements are.
using TileFold = void (*)(const std::byte* query, float scale, const KeyTile& tile,
                          TileScratch& scratch, const LaneState& state);

struct TileKernels {
    bool bf16_elements;  // keys, values and queries are bf16 (pairs into dot products), otherwise
                         // f32
    int absorbed_tile;   // keys per tile of the absorbed entry: a function of (H, dtype) alone
    TileFold absorbed;   // keys [576] with the values as their first 512 columns
    TileFold decompressed;  // keys [192], values [128]
    // out[key][0 … 127], out_stride elements apart, from groups of 16 latents (rows of 576
    // elements).
    void (*up_project)(const std::byte* const* latents, int groups, const UpWeights& weights,
                       std::byte* out, std::int64_t out_stride);
    // total = total merged with part, columns each.
    void (*merge)(const LaneState& part, const LaneState& total, int columns);
    void (*widen_bf16)(const std::byte* from, float* to, std::int64_t count);
    void (*widen_fp16)(const std::byte* from, float* to, std::int64_t count);
    // Where column c of 32 lies in a row of `out`.
    std::int8_t column[32];
};

extern const TileKernels kPortableTiles;
#if defined(__x86_64__)
extern const TileKernels kAvx2Tiles;
extern const TileKernels kAvx512Tiles;
extern const TileKernels kAvx512Bf16Tiles;
#endif

}  // namespace espalier::mla::cpu
