// SPDX-License-Identifier: Apache-2.0
// What an instruction set offers to attention: folding one tile of keys into 16 packed query rows,
// and up-projecting latents. A packed row (token, head) is one lane of a 16-wide vector in the
// scores and one row of the output sums, so its bits cannot depend on its neighbours. Plain data
// and function pointers: the files compiled for an instruction set call no inline function of a
// header, so no such code is left in a shared one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/head_dims.hpp"
#include "base/numeric.hpp"

namespace espalier::mla::cpu {

inline constexpr int kLanes = 16;  // packed query rows
inline constexpr int kGroupKeys =
    16;  // keys that lie one after another in memory; divides every page size
inline constexpr int kMaxGroups = 16;
inline constexpr int kMaxTileKeys = kGroupKeys * kMaxGroups;

// 16 keys of an e4m3 cache on their way to bf16: codes of all columns, or of the latent ones beside
// 64 columns of bf16 rope that lie apart (null: they do not).
struct Widening {
    const std::byte* codes;
    const std::byte* rope;
    std::byte* to;  // [16][latent + 64]
};

// Keys in logical order. Lane r sees the first visible[r] keys of the tile; a hidden key adds
// exactly nothing.
struct KeyTile {
    const std::byte* key[kMaxGroups];
    const std::byte* value[kMaxGroups];
    std::int32_t visible[kLanes];
    int groups;  // those that some lane sees
    // Lanes [first_lane, first_lane + lanes) are folded; the others see nothing and may be left
    // alone.
    int first_lane;
    int lanes;
    // bf16 kernels, tiles of more than 8 lanes: the state's `out` was not written yet and counts as
    // zeros.
    bool fresh;
    // bf16 kernels over e4m3 codes: what a key's scaled segments (ScorePlan), and its
    // probabilities, are multiplied by. [groups][16], or null for 1.
    const float* score_scale;
    const float* value_scale;
    // Fetched while group g is scored: a line per pair of the first segment from ahead[g] on,
    // ahead_step bytes apart, and a line per pair of the last segment (if it is another) from
    // ahead_rope[g] on (unless null), 64 bytes apart. Where ahead_step is 0, nothing.
    const std::byte* ahead[kMaxGroups];
    const std::byte* ahead_rope[kMaxGroups];
    int ahead_step;
    // bf16 kernels, tiles of more than 8 lanes: keys of a later tile that are widened while group g
    // is scored, where the dot products leave the shuffle units idle. Null: none.
    const Widening* widening[kMaxGroups];
};

// bf16 kernels: a score is one chain of dot products of pairs over these segments in order. The
// sum of the first `scaled` ones is multiplied by the key's scale before the chain goes on. Queries
// that bf16 cannot hold come in two terms, each a segment.
struct ScorePlan {
    struct Segment {
        int query;  // first pair
        int key;    // first pair
        int pairs;
    };
    Segment segment[4];
    int segments;
    int scaled;
};

// 16 packed rows: [columns][16] f32, or [columns / 2][16][2] bf16 (per term), as the kernels'
// elements are.
struct LaneQuery {
    const std::byte* block;
    float scale;
    const ScorePlan* plan;  // bf16 kernels
};

// The running softmax of 16 lanes. A column's place in `out` is the kernels' affair; store_row
// knows it.
struct LaneState {
    float* maximum;  // [16]
    float* sum;      // [16]
    float* out;      // [16][columns]
};

struct TileScratch {
    alignas(64) float scores[kMaxTileKeys * kLanes];  // [key][lane], then the probabilities
    alignas(64) std::uint32_t pairs[kMaxTileKeys / 2 * kLanes];  // bf16 probabilities of two keys
};

// One head's matrix W [16 · count, latent] in the panels of linalg/packed.hpp.
struct UpWeights {
    const std::byte* panels;
    int count;            // of panels
    const float* scales;  // [panel][latent / 128][16], or null: bf16 kernels only
};

using TileFold = void (*)(const LaneQuery& query, const KeyTile& tile, TileScratch& scratch,
                          const LaneState& state);
// out[key][0 … 16 · count - 1], out_stride elements apart, from groups of 16 latents (rows of whole
// keys), times key_scale [groups][16] unless null (bf16 kernels only).
using UpProject = void (*)(const std::byte* const* latents, int groups, const UpWeights& weights,
                           const float* key_scale, std::byte* out, std::int64_t out_stride);

// A token's index query, in f32, against 16 keys that lie with their columns apart.
struct IndexQuery {
    const float* q;        // [heads][width]
    const float* weights;  // [heads]
    int heads;
    int width;
    float scale;  // of dot products
};

struct TileKernels {
    bool bf16_elements;  // keys, values and queries are bf16 (pairs into dot products), otherwise
                         // f32
    int absorbed_tile;   // keys per tile of the absorbed entry: a function of (H, dtype) alone
    TileFold absorbed[kKeyDimsCount];  // keys of kKeyDims, whose latent columns are the values too
    TileFold decompressed[kHeadDimsCount];  // keys [nope + 64], values [value] of kHeadDims
    UpProject up_project[kKeyDimsCount];
    // Merges lanes [first, last) of `part`, each of `columns` columns, into `total`.
    void (*merge)(const LaneState& part, const LaneState& total, int columns, int first, int last);
    // One lane's row of `out` times `factor`, in column order, rounded once to f32, bf16 or f16.
    void (*store_row)(const float* row, float factor, int columns, DType dtype, std::byte* to);
    // scores[key] of f32 kernels: Σ weights[h] · max(0, scale · dot(q[h], key)), heads ascending,
    // each dot product one chain over ascending columns; keys [width][16].
    void (*index_scores)(const IndexQuery& query, const float* keys, float* scores);
    // `count` (a multiple of 64) elements of the cache in the kernels' elements. e4m3 becomes f32
    // times the scale, or exactly the bf16 of its code. Null where no cache needs it.
    void (*widen_bf16)(const std::byte* from, float* to, std::int64_t count);
    void (*widen_fp16)(const std::byte* from, float* to, std::int64_t count);
    void (*widen_e4m3)(const std::byte* from, float scale, std::byte* to, std::int64_t count);
    // 16 bf16 rows, row_stride elements apart, as a query block of one term. columns is a multiple
    // of 32. Null: the kernels have other elements.
    void (*pack_rows)(const std::byte* rows, std::int64_t row_stride, int columns,
                      std::byte* block);
};

extern const TileKernels kPortableTiles;
#if defined(__x86_64__)
extern const TileKernels kAvx2Tiles;
extern const TileKernels kAvx512Tiles;
extern const TileKernels kAvx512Bf16Tiles;
#endif

}  // namespace espalier::mla::cpu
