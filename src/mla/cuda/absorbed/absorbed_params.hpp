// SPDX-License-Identifier: Apache-2.0
// What the absorbed kernels get: the call's words, the partition of the work, and the workspace.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "mla/types.hpp"

namespace espalier::mla::cuda {

inline constexpr int kTileKeys = 64;
// Packed rows that are computed together; fewer over FP8 codes, which are then widened twice for 64
// rows but leave registers for two warpgroups that score.
inline constexpr int kBlockRows = 64;
inline constexpr int kFp8BlockRows = 32;
// Invariant: partial results lie in slots of 16 packed rows, 16 chunks of 1,024 bytes.
inline constexpr int kStripRows = 16;
inline constexpr int kStripChunks = 16;
inline constexpr int kChunkBytes = 1024;
inline constexpr int kStripScales = 8 * kStripRows;
inline constexpr int kQuad = 4;  // splits that are merged at once
// Slots of a plan, for partial results that say themselves that they are there: one for each
// multiprocessor and 16 packed rows, 2.2 MB.
inline constexpr int kMarkedSlots = 128;
// Invariant: a launch whose items have up to this many packed rows has a kernel of its own. Over
// 16-bit caches these are spread over a warpgroup's warps, eight to each, where otherwise warps
// take sixteen each in turn: every scheduler has work then, and half as much. Partial results are
// marked. Asked at run time, both cost launches of 64 rows 3 to 4 % (76 bytes spilled).
inline constexpr int kFewRows = 32;

// What the invariant partition says of an item. It is a run of splits or, where a split's tokens do
// not share all keys, one of several items that make up that split; a merge has no tiles.
enum ItemFlag : std::int32_t {
    kStarts = 1,      // the first item of its split
    kEnds = 2,        // the last one
    kNewQuery = 4,    // the queries are not yet there
    kFreesQuery = 8,  // no later item reads them
    kMerges = 16,   // chunks tile_begin … tile_end - 1 of a block, whose splits are `run` groups
                    // of split_tiles quads
    kLocal = 32,    // all splits of the block were computed here
    kSecond = 64,   // of two blocks of packed rows whose splits other thread blocks have too
    kMarked = 128,  // its slots are among the plan's: nothing is counted (partial.cuh)
};

// One item of work: a run of tiles of one row for one block of packed rows. All warps read it from
// shared memory.
struct Item {
    std::int32_t row;
    std::int32_t table;         // its block table
    std::int32_t packed_first;  // of its columns, among all packed rows of the call
    std::int32_t row_first;     // the same, within the row
    std::int32_t columns;
    std::int32_t first_token;  // of the row
    std::int32_t tokens;       // of the row
    std::int32_t keys;         // of the row, or of the gathered token
    std::int32_t tile_begin;
    std::int32_t tile_end;
    std::int32_t slot;       // of the partial result; -1: the output itself
    std::int32_t free_keys;  // keys below this are visible to all columns
    std::int32_t mask;       // MaskKind
    std::int32_t gathered;   // token whose keys are gathered, or -1
    std::int32_t last;       // no further item
    // Invariant.
    std::int32_t flags;
    std::int32_t run;          // splits that the item consists of, one after another …
    std::int32_t split_tiles;  // … of this many tiles each, the last perhaps fewer
    std::int32_t splits;       // of its block
    std::int32_t
        arrivals;       // partial results that are there with this one, to be counted; 0: not yet
    std::int32_t base;  // first slot of the block; its counter has the same number
};

// The mask of an item that gathers a path of a tree: its tokens see the first of these keys, as
// many as belong to their own paths, the other tokens none.
inline constexpr std::int32_t kOwnKeys = 4;

// The line of work that parts are cut from (schedule.cuh).
struct Partition {
    std::int32_t total = 0;
    std::int32_t length = 1;       // of a part
    std::int32_t piece = 0;        // even: tiles of a piece at most; 0: not even
    std::int32_t merges = 0;       // flexible: rows in the list of merges
    std::int32_t slots = 0;        // invariant: in use
    std::int32_t block_shift = 0;  // invariant: AbsorbedParams's, or less
    std::uint32_t arrived = 0;     // thread blocks at the end of a call
};

// A part's share of the line and, with the even partition, the whole of its work. A line of the
// cache, a word to a lane: a part waits for memory once.
struct alignas(16) PartPlan {
    std::int32_t begin = 0;  // of the share, in the line
    std::int32_t end = 0;
    std::int32_t row = 0;    // where it begins
    std::int32_t start = 0;  // that row's place in the line
    // The item says all: of the first block of packed rows or, invariant, of the first block, with
    // tile_end what some token of it sees. Invariant: if it has flags, it is the part's first item
    // as it will be handed on, and there are no others but its merge.
    std::int32_t even = 0;
    Item item{};
    // Invariant: the first block of packed rows that the part has splits of, and which; then, what
    // is left of the part's share of the line, counted from that block's beginning.
    std::int32_t group = 0;
    std::int32_t block = 0;
    std::int32_t split = 0;
    std::int32_t split_end = 0;
    std::int32_t left = 0;
    std::int32_t slot = 0;  // first of the group
};
static_assert(sizeof(PartPlan) == 128);

// A row whose partial results are to be merged.
struct alignas(16) MergeRow {
    std::int32_t first_token = 0;
    std::int32_t tokens = 0;
    std::int32_t blocks = 0;  // of packed rows
    std::int32_t splits = 0;
    std::int32_t first = 0;  // the first part that has a piece of it
    std::int32_t place = 0;  // which of that part's two partials
    std::int32_t unused[2] = {};
};

// Number of partial results of a block of packed rows that are there, call after call: all of them
// together count kAllArrived, whatever their number, so that no kernel has to reset it. A part that
// waits looks before its own arrive, and again until the bits above have changed.
using Counter = std::uint32_t;
inline constexpr std::uint32_t kAllArrived = std::uint32_t{1} << 24;

struct AbsorbedParams {
    CUtensorMap key_map;    // 16-bit caches: all columns; FP8: the latent columns
    CUtensorMap rope_map;   // FP8 caches: the rope columns
    CUtensorMap query_map;  // 16-bit caches: query_rows packed rows of 64 columns at a time
    // first_slot: of this rank. dcp_rank: the global number of its first key.
    RaggedRows rows;
    KvPages kv;
    std::int32_t query_rows = 64;
    std::int32_t page_shift = 0;  // page_tokens = 2^page_shift
    const std::byte* q = nullptr;
    DType q_dtype = DType::bf16;
    DType out_dtype = DType::bf16;
    std::int32_t heads = 0;
    std::uint64_t heads_inverse = 0;  // 2^32 / heads, rounded up
    float score_scale = 0.0f;  // to the logarithm of base 2, with the scales of an FP8 tensor
    float value_scale = 1.0f;
    std::byte* out = nullptr;
    float* lse = nullptr;

    // The plan.
    Partition* partition = nullptr;
    PartPlan* part_plans = nullptr;  // [parts] of this launch
    MergeRow* merge_rows = nullptr;  // flexible: [rows]
    Counter* counters = nullptr;     // invariant: [slots]

    // Rows of this launch have least_packed … most_packed packed rows (tokens × heads).
    std::int32_t least_packed = 0;
    std::int32_t most_packed = 0;
    std::int32_t block_shift = 6;  // 2^this packed rows are computed together, at most
    std::int32_t max_blocks = 1;   // blocks that such a row may have
    std::int32_t lanes = 1;        // thread blocks that share a part, one block of packed rows each
    std::int32_t parts = 1;
    std::int32_t row_cost = 0;     // what starting a row costs, in tiles
    std::int32_t least_tiles = 1;  // of a part
    bool invariant = false;
    bool early_keys = false;  // the first keys are asked for ahead of the wait (order.hpp)
    // Rows have one token at most, none has a dense mask, and no other rank has keys: a kernel with
    // less code serves them.
    bool one_token = false;
    bool padding = false;  // this launch clears tokens that belong to no row

    // Flexible: partial [slot][block rows][512], partial_lse [slot][block rows], base 2. Invariant:
    // 16-bit numbers [slot][chunk][2][lane][8], and for each row and group of columns the
    // log-sum-exp and what the numbers are to be multiplied with: partial_rows [slot][8][16].
    float* partial = nullptr;
    float* partial_lse = nullptr;
    float2* partial_rows = nullptr;
    std::int32_t slots = 0;  // invariant: that there are
    // The same marks in the plan, for the first of the slots; zeros between calls.
    uint4* marked = nullptr;
    float2* marked_rows = nullptr;
    std::int32_t marked_slots = 0;  // 0: the launch has more than kFewRows
    std::int32_t* dense_start =
        nullptr;  // [token][splits + 1]: slot where a dense token's split begins; how many it sees
    std::int32_t dense_splits = 0;
};

// Launches that an invariant call's slots are dealt to, so that they fit the workspace: each has
// the blocks of packed rows that begin in its share of them.
struct Launches {
    std::int32_t count = 1;
    std::int32_t slots = 0;  // of a share, at most; where there are several
};

// One function per cache format, each in a file of its own: they take long to compile.
cudaError_t launch_bf16(const AbsorbedParams& p, cudaStream_t stream);
cudaError_t launch_fp16(const AbsorbedParams& p, cudaStream_t stream);
cudaError_t launch_fp8_tensor(const AbsorbedParams& p, cudaStream_t stream);
cudaError_t launch_fp8_token(const AbsorbedParams& p, cudaStream_t stream);
// Likewise, where p.one_token.
cudaError_t launch_one_token_bf16(const AbsorbedParams& p, cudaStream_t stream);
cudaError_t launch_one_token_fp8_token(const AbsorbedParams& p, cudaStream_t stream);
// Writes partition, part_plans (those of one launch after those of another) and merge_rows from the
// lengths.
cudaError_t launch_plan(const AbsorbedParams& p, const Launches& launches, cudaStream_t stream);
// Finds where the splits of dense rows' tokens begin; only the invariant partition needs it.
cudaError_t launch_dense_index(const AbsorbedParams& p, cudaStream_t stream);

}  // namespace espalier::mla::cuda
