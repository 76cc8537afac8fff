// SPDX-License-Identifier: Apache-2.0
// Up to 64 packed rows (token · heads + head) of one row, folded together: a tile of keys is
// fetched, copied and widened once for all of them. A block's rows are cut into units of 16 lanes;
// which rows share a block, and how many, changes no bits.
#pragma once

#include "mla/cpu/key_tiles.hpp"

namespace espalier::mla::cpu {

// 4: states (263 KB), queries and a tile of keys (147 KB each) of 512 + 64 columns stay in a
// second-level cache of 1 MB, while 64 rows share what it takes to bring a key there.
inline constexpr int kBlockUnits = 4;
inline constexpr int kBlockRows = kBlockUnits * kLanes;
inline constexpr std::int64_t kSplitKeys = 512;

struct Block {
    RowView row;
    std::int64_t first = 0;  // packed row
    int rows = 0;            // packed rows, ≤ 64
    std::int64_t splits = 0;

    int units() const { return (rows + kLanes - 1) / kLanes; }
    int lanes(int unit) const { return rows - unit * kLanes < kLanes ? rows % kLanes : kLanes; }
};

// State that all workers of one call share.
struct AbsorbedPlan {
    AbsorbedPlan(const TileKernels& kernels, const AbsorbedCall& call);

    LaneState state_at(float* states, int unit) const {
        float* at = states + unit * state_floats;
        return {at, at + kLanes, at + 2 * kLanes};
    }

    const TileKernels& kernels;
    const AbsorbedCall& call;
    KeyDims dims;
    TileFold fold;
    std::int64_t state_floats;  // of a unit
    std::int64_t query_bytes;   // likewise
    Elements elements;
    ScorePlan scores;
    float score_scale;
    OutputRows output;
};

constexpr std::int64_t state_floats_of(const KeyDims& dims) { return kLanes * (dims.latent + 2); }

// Scratch memory of one worker, reused from block to block.
struct BlockScratch {
    TileScratch* tile;
    std::byte* queries;   // [unit][key][16]
    std::byte* keys[2];   // a tile of copied keys, and the next one in the making
    float* scales[2];     // their scales
    float* part;          // states [unit], for the caller
    float* total;         // likewise
    std::int64_t packed;  // the block whose queries are packed: its first packed row in the call
    int buffer;           // of keys and scales: the current one
    // The other buffer holds this many groups of that block's tile at this logical key.
    std::int64_t ready_first;
    int ready_groups;

    BlockScratch(const TileKernels& kernels, const KeyDims& dims, std::byte* memory);
    static std::int64_t bytes(const TileKernels& kernels, const KeyDims& dims);
};

class BlockFold {
  public:
    BlockFold(const AbsorbedPlan& plan, const Block& block, BlockScratch& mine);

    // Folds split `split` of the block's keys into fresh states [unit]. `stride` splits later comes
    // the one that this worker will probably fold next: its first keys are fetched, and widened,
    // with the last of this one.
    void fold_split(std::int64_t split, std::int64_t stride, float* states);

  private:
    std::int64_t token_of(int row) const { return (block_.first + row) / plan_.call.heads; }
    std::int64_t seen_by(int row, std::int64_t first) const;
    void fold_shared(std::int64_t first, float* states);
    void fold_private(std::int64_t token, std::int64_t first, float* states);
    KeyTile empty_tile() const;
    std::byte* copy_of(int group, int buffer) const;
    float* scales_of(int group, int buffer) const;
    void fetch_ahead(std::int64_t first, KeyTile& tile) const;
    void widen_ahead(std::int64_t next, KeyTile& tile);
    void fold(KeyTile& tile, int unit, float* states);

    const AbsorbedPlan& plan_;
    const Block& block_;
    BlockScratch& mine_;
    KeySource source_;
    SlotCursor cursors_[kBlockRows];
    // Straight logical keys that some row of the block sees.
    std::int64_t reach_ = 0;
    std::int64_t split_end_ = 0;
    std::int64_t jump_ = 0;         // from the end of a split to the next one's beginning
    bool fresh_[kBlockUnits] = {};  // units of this split whose state was not begun
    Widening widening_[kMaxGroups];
};

// Writes the outputs of lanes [first, last) of a unit whose keys are all folded.
void finish_lanes(const AbsorbedPlan& plan, const Block& block, float* states, int unit, int first,
                  int last);

}  // namespace espalier::mla::cpu
