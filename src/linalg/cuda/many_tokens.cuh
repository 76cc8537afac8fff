// SPDX-License-Identifier: Apache-2.0
// Products for many tokens: bound by the tensor cores. A tile is 128 outputs × 128 tokens, or 64 or
// 32 where tiles would be too few for all multiprocessors.
//
// One block per multiprocessor goes through its tiles. A producing warpgroup brings 64 inputs at a
// time to shared memory: x in the order in which fragments.hpp has a step's inputs, weights as they
// are, by bulk copies. Two multiplying warpgroups have 64 outputs each; weights pass through their
// registers, which is where wgmma takes its left operand from and where codes are widened.
//
// A block by itself is bound by what the L2 can give (5.7 TB/s: 370 TFLOPS of 128 × 128 tiles), so
// two blocks with tokens of their own share a tile's weights, each asking for half of them.
//
// The sums are those of few_tokens.cuh: a chain of steps per segment (of codes: per 128 or 32
// inputs, which enter the segment's sum by their scale), segments added in ascending order. That
// takes two sums per output, three over codes, where the segments' total waits in shared memory.
#pragma once

#include "linalg/cuda/codes.cuh"
#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/wgmma.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct ManyParams {
    Problem problem;
    Segments segments;
    int row_blocks = 0;        // of a group, those of a second product included
    int first_row_blocks = 0;  // without them
    int token_tiles = 0;       // of all groups; of experts: at most
};

template <WeightCode kCode_, int kTokens_, int kCluster_>
struct ManyConfig {
    static constexpr WeightCode kCode = kCode_;
    static constexpr bool kCodes = kCode != WeightCode::bf16;
    static constexpr bool kGroups = in_groups(kCode);  // a chain of sums for each 32 inputs,
    static constexpr bool kBlocks = in_blocks(kCode);  // for each 128
    static constexpr int kOutputs = 128;
    static constexpr int kTokens = kTokens_;
    // Blocks with tokens of their own that share a tile's weights: each reads a part for all, since
    // what the L2 can give is the bound of a block by itself.
    static constexpr int kCluster = kCluster_;
    static constexpr bool kSecond = kTokens < 128;  // serves a second product of the same x
    // About 200 KB.
    static constexpr int kStages = kTokens == 128  ? (kCode == WeightCode::int8 ? 5 : 6)
                                   : kTokens == 64 ? (kCodes ? 10 : 8)
                                                   : 10;
    // A producing warp brings 32 tokens. The four of them share a stage, or each pair has every
    // second, or each warp every fourth: what a stage costs a warp hardly depends on its tokens.
    static constexpr int kStageWarps = kTokens / 32;
    static constexpr int kStageStep = 4 / kStageWarps;
    static constexpr int kInputBytes = kTokens * 128;  // 64 inputs
    // Of 16 outputs in a stage, at most; stages begin where a swizzle does.
    static constexpr int kWeightBytes = code_bytes(kCode) + most_scale_bytes(kCode);
    static constexpr int kStageBytes =
        (kInputBytes + kOutputs / 16 * kWeightBytes + 1023) / 1024 * 1024;
    static constexpr int kThreads = 384;
    // Of 168 at entry: three warpgroups share 504.
    static constexpr int kProducerRegisters = kTokens == 128 ? 136 : 160;
    static constexpr int kMultiplierRegisters = kTokens == 128 ? 184 : 168;
    static constexpr int kTotalBytes = kCodes ? 2 * 64 * kTokens * 4 : 0;
    static constexpr int kBarrierBytes = (2 * kStages * 8 + 127) / 128 * 128;

    static constexpr std::size_t shared_bytes(int token_tiles) {
        return 1024 + kStages * kStageBytes + kTotalBytes + kBarrierBytes +
               static_cast<std::size_t>(token_tiles) * sizeof(TokenTile);
    }
};

// Where a block's stages and barriers are, and which tiles it has.
template <class C>
struct ManyShared {
    std::uint32_t stages;
    std::uint32_t totals;
    std::uint32_t barriers;
    TokenTile* tiles;
    int items;
    int rank;    // of the block in its cluster
    int first;   // item of the cluster
    int stride;  // from one to its next

    __device__ std::uint32_t stage(int slot) const {
        return stages + static_cast<std::uint32_t>(slot * C::kStageBytes);
    }
    __device__ std::uint32_t full(int slot) const {
        return barriers + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ std::uint32_t free(int slot) const {
        return barriers + static_cast<std::uint32_t>(8 * (C::kStages + slot));
    }
    // The cluster's tokens.
    __device__ TokenTile tile(const Problem& p, int index) const {
        return p.indptr != nullptr ? tiles[index] : dense_tile(p, C::kTokens * C::kCluster, index);
    }
};

template <class C>
struct StageCursor {
    int slot = 0;
    std::uint32_t parity = 0;
    __device__ void advance(int step = 1) {
        slot += step;
        if (slot >= C::kStages) {
            slot -= C::kStages;
            parity ^= 1;
        }
    }
};

// A stage of an item, in the order in which a block goes through both. An item has two at least.
struct ItemStage {
    int item;
    int stage;
    template <int kStep>
    __device__ void advance(int stages, int stride) {
        static_assert(kStep <= 4);
        stage += kStep;
        carry(stages, stride);
        if constexpr (kStep > 2) carry(stages, stride);
    }

  private:
    __device__ void carry(int stages, int stride) {
        if (stage < stages) return;
        stage -= stages;
        item += stride;
    }
};

// --- x and weights ------------------------------------------------------------------------------
// A warp brings 32 tokens, and as much of the eight tiles of outputs as of the tile's tokens. Four
// tokens' 64 inputs come with one load: lane = 8 · token + unit, where unit 4j + t is the eight
// inputs that lane t of a fragment has for steps 2j and 2j + 1; its four words go to where wgmma
// looks for them. (Copies that need no registers can move 4 bytes at a time: four times the
// instructions, and the bound of the kernel.)
template <class C>
class Producer {
  public:
    __device__ Producer(const ManyParams& params, const ManyShared<C>& shared)
        : params_(params), p_(params.problem), shared_(shared) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        part_ = warp % C::kStageWarps;
        token_ = static_cast<int>(threadIdx.x) % 32 / 8;
        unit_ = static_cast<int>(threadIdx.x) % 8;
        stages_ = 2 * static_cast<int>(chunks_of(p_.k));
#pragma unroll
        for (int word = 0; word < 4; ++word)
            to_[word] = static_cast<std::uint32_t>(part_ * 4096 + token_ * 128 + unit_ / 4 * 64 +
                                                   (word ^ token_) * 16 + unit_ % 4 * 4);
        first_ = C::kStageStep == 1 ? 0 : warp / C::kStageWarps;
        put_.item = shared_.first;
        for (int before = 0; before < first_; ++before) {
            cursor_.advance(1);
            put_.template advance<1>(stages_, shared_.stride);
        }
        loaded_ = put_;
    }

    // The first item's weights, as far as there is room: no other kernel writes them.
    __device__ void ask_ahead() {
        if (shared_.first >= shared_.items) return;
        for (int stage = first_; stage < min(C::kStages, stages_); stage += C::kStageStep) {
            if (threadIdx.x % 32 == 0) ask_weights({shared_.first, stage}, stage);
            ++ahead_;
        }
        __syncwarp();
    }

    // This warp's stages of all items in a row, the loads of two ahead of the one that is put.
    __device__ void run() {
        if (shared_.first >= shared_.items) return;
        const int all =
            (shared_.items - shared_.first + shared_.stride - 1) / shared_.stride * stages_;
        left_ = unloaded_ = (all - first_ + C::kStageStep - 1) / C::kStageStep;
        if (all <= first_) return;
        uint4 x[3][8];
        load(x[0]);
        load(x[1]);
        while (true) {  // written out: a loop would leave x in memory
            load(x[2]);
            if (put(x[0])) return;
            load(x[0]);
            if (put(x[1])) return;
            load(x[1]);
            if (put(x[2])) return;
        }
    }

  private:
    static constexpr int kTiles = C::kOutputs / 16 / C::kStageWarps;  // of outputs, a warp's

    // Whether this is the first of the warp's stages of an item.
    __device__ static bool enters(const ItemStage& at, int last_item) {
        return C::kStageStep == 1 ? at.stage == 0 : at.item != last_item;
    }

    __device__ void find_tokens() {
        found_item_ = loaded_.item;
        const TokenTile tile = shared_.tile(p_, loaded_.item / params_.row_blocks);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Tokens that do not exist are the last one again: nobody stores them.
            const int own = shared_.rank * C::kTokens + part_ * 32 + i * 4 + token_;
            const int place = tile.first + min(own, tile.count - 1);
            const int row = p_.source != nullptr ? p_.source[place] : place;
            from_[i] = row * static_cast<int>(p_.x_stride) +
                       tile.group * static_cast<int>(p_.x_step) + unit_ * 8;
        }
    }

    __device__ void load(uint4 (&x)[8]) {
        if (unloaded_ == 0) return;
        --unloaded_;
        if (enters(loaded_, found_item_)) find_tokens();
        const auto* inputs = reinterpret_cast<const std::uint16_t*>(p_.x) + loaded_.stage * 64;
        if (loaded_.stage * 64 + unit_ * 8 < p_.k) {
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = load_global(inputs + from_[i]);
        } else {  // weights there are zeros, and zero times what lies behind x may be NaN
#pragma unroll
            for (int i = 0; i < 8; ++i) x[i] = make_uint4(0, 0, 0, 0);
        }
        loaded_.template advance<C::kStageStep>(stages_, shared_.stride);
    }

    // One lane does.
    __device__ void ask_weights(const ItemStage& at, int slot) {
        if (enters(at, asked_item_)) find_weights(at.item);
        const int half = C::kCodes ? p_.half_bytes : C::kWeightBytes;
        const std::byte* from = weights_ + at.stage * half;
        const std::uint32_t to = shared_.stage(slot) +
                                 static_cast<std::uint32_t>(C::kInputBytes + part_ * kTiles * half);
        const std::uint32_t barrier = shared_.full(slot);
        expect_bytes(barrier, static_cast<std::uint32_t>(kTiles * half));
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const std::uint32_t place = to + static_cast<std::uint32_t>(i * half);
            const std::byte* tile = from + min(i, last_tile_) * (stages_ * half);
            const auto bytes = static_cast<std::uint32_t>(half);
            if constexpr (C::kCluster == 1)
                copy_bytes(place, tile, bytes, barrier);
            else if ((part_ * kTiles + i) % C::kCluster == shared_.rank)
                copy_to_cluster(place, tile, bytes, barrier, (1 << C::kCluster) - 1);
        }
    }
    // Divisions, so once for an item. Tiles of outputs beyond the last are computed like it and not
    // stored.
    __device__ void find_weights(int item) {
        asked_item_ = item;
        const int tile = item / params_.row_blocks;
        int row_block = item - tile * params_.row_blocks;
        const bool second = C::kSecond && row_block >= params_.first_row_blocks;
        if (second) row_block -= params_.first_row_blocks;
        const int all = static_cast<int>(tiles_of(second ? p_.second.n : p_.n));
        const int wanted = row_block * (C::kOutputs / 16) + part_ * kTiles;
        const int first = min(wanted, all - 1);
        last_tile_ = max(0, min(kTiles, all - wanted) - 1);
        weights_ = second ? p_.second.weights
                          : p_.weights + shared_.tile(p_, tile).group * p_.matrix_bytes;
        weights_ += static_cast<std::int64_t>(first) * stages_ * p_.half_bytes;
    }

    // True after the last.
    __device__ bool put(const uint4 (&x)[8]) {
        wait(shared_.free(cursor_.slot), cursor_.parity ^ 1);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        if (ahead_ > 0)
            --ahead_;
        else if (threadIdx.x % 32 == 0)
            ask_weights(put_, cursor_.slot);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const std::uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int word = 0; word < 4; ++word)  // the swizzle: tokens 4 … 7 of eight
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(
                                 base + (to_[word] ^ static_cast<std::uint32_t>(i % 2 * 64)) +
                                 static_cast<std::uint32_t>(i * 512)),
                             "r"(words[word])
                             : "memory");
        }
        // The tensor cores read what ordinary stores wrote.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(shared_.full(cursor_.slot));
        cursor_.advance(C::kStageStep);
        put_.template advance<C::kStageStep>(stages_, shared_.stride);
        return --left_ == 0;
    }

    const ManyParams& params_;
    const Problem& p_;
    const ManyShared<C>& shared_;
    StageCursor<C> cursor_;
    int part_;   // of a stage that is the warp's
    int first_;  // of its stages
    int token_, unit_, stages_;
    int left_ = 0, unloaded_ = 0;  // of its stages: to put, to load
    ItemStage loaded_{}, put_{};   // the next
    int found_item_ = -1;          // whose tokens from_ knows
    int asked_item_ = -1;          // whose weights these are:
    const std::byte* weights_ = nullptr;
    int last_tile_ = 0;  // that there is, of the warp's
    int ahead_ = 0;      // of its stages: whose weights have been asked for already
    std::uint32_t to_[4];
    int from_[8];  // where the thread's inputs of its tokens begin in x
};

// --- products -----------------------------------------------------------------------------------
template <class C>
class Multiplier {
  public:
    __device__ Multiplier(const ManyParams& params, const ManyShared<C>& shared, int group)
        : params_(params), p_(params.problem), shared_(shared), group_(group) {
        warp_ = static_cast<int>(threadIdx.x) % 128 / 32;
        lane_ = static_cast<int>(threadIdx.x) % 32;
        chunks_ = static_cast<int>(chunks_of(p_.k));
        stages_ = 2 * chunks_;
    }

    __device__ void run() {
        for (int item = shared_.first; item < shared_.items; item += shared_.stride) {
            TokenTile tile = shared_.tile(p_, item / params_.row_blocks);
            if constexpr (C::kCluster > 1) {
                tile.first += shared_.rank * C::kTokens;
                tile.count -= shared_.rank * C::kTokens;
            }
            int row_block = item % params_.row_blocks;
            const bool second = C::kSecond && row_block >= params_.first_row_blocks;
            if (second) row_block -= params_.first_row_blocks;
            const int n = second ? p_.second.n : p_.n;
            const int row_tile = row_block * (C::kOutputs / 16) + group_ * 4 + warp_;
            if constexpr (C::kBlocks)
                scales_ = (second ? p_.second.scales : p_.scales + tile.group * p_.matrix_scales) +
                          std::int64_t{min(row_tile, static_cast<int>(tiles_of(n)) - 1)} * chunks_ *
                              p_.scale_outputs;
            multiply_item();
            const int output = row_tile * 16 + lane_ / 4;
            if (second)
                store_all(tile, output, n, p_.second.y, p_.second.y_stride,
                          [](float* to, float sum) { *to = sum; });
            else
                store_total(tile, output);
        }
    }

  private:
    static constexpr int kSums = C::kTokens / 2;  // token 8j + 2t + i, output g + 8h: 4j + 2h + i

    __device__ void multiply_item() {
        clear(block_);
        first_stage_ = true;
        for (int first = 0; first < chunks_; first += params_.segments.chunks) {
            if constexpr (C::kCodes) clear(segment_);
            const int end = min(first + params_.segments.chunks, chunks_);
            for (int chunk = first; chunk < end; ++chunk) multiply_chunk(chunk);
            if constexpr (!C::kCodes) {
                wgmma_wait<0>();
                hold(block_);
            }
            end_segment(first == 0, end == chunks_);
        }
        if constexpr (!C::kGroups) release(previous_slot_);
    }

    __device__ void multiply_chunk(int chunk) {
        if constexpr (C::kGroups) {
            multiply_groups();
            multiply_groups();
            return;
        }
        float2 scale;
        if constexpr (C::kBlocks) scale = load_scales(chunk);
        multiply_stage(left_[0]);
        multiply_stage(left_[1]);
        if constexpr (C::kBlocks) {
            wgmma_wait<0>();
            hold(block_);
            add_block(scale);
            clear(block_);
        }
    }

    // A stage of integer codes: two groups of inputs, each a chain of its own. While one
    // warpgroup adds, the other one's products run.
    __device__ void multiply_groups() {
        wait(shared_.full(cursor_.slot), cursor_.parity);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        const std::uint32_t half = weights_of(base);
        const std::uint64_t right = swizzled_operand(base);
        uint4(&left)[4] = left_[0];
        load_pair(left, half, 0);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            hold(block_);
            wgmma_begin();
            wgmma(block_, left[2 * pair], right + static_cast<unsigned>(4 * pair), false);
            wgmma(block_, left[2 * pair + 1], right + static_cast<unsigned>(4 * pair + 2));
            wgmma_commit();
            const float2 scale =
                group_scales<C::kCode>(half, pair, lane_, p_.two_groups, p_.wide_scales);
            if (pair == 0) load_pair(left, half, 1);
            wgmma_wait<0>();
            hold(block_);
            add_block(scale);
        }
        release(cursor_.slot);
        cursor_.advance();
    }

    // Stages alternate between two sets of registers: one is filled while the other's products run.
    __device__ void multiply_stage(uint4 (&left)[4]) {
        wait(shared_.full(cursor_.slot), cursor_.parity);
        const std::uint32_t base = shared_.stage(cursor_.slot);
        load_pair(left, weights_of(base), 0);
        load_pair(left, weights_of(base), 1);
        hold(block_);
        wgmma_begin();
        const std::uint64_t right = swizzled_operand(base);
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma(block_, left[i], right + static_cast<unsigned>(2 * i));
        wgmma_commit();
        wgmma_wait<1>();
        if (!first_stage_) release(previous_slot_);  // the stage before has been read
        first_stage_ = false;
        previous_slot_ = cursor_.slot;
        cursor_.advance();
    }

    // The warp's 16 outputs in a stage.
    __device__ std::uint32_t weights_of(std::uint32_t base) const {
        const int half = C::kCodes ? p_.half_bytes : C::kWeightBytes;
        return base + static_cast<std::uint32_t>(C::kInputBytes + (group_ * 4 + warp_) * half);
    }
    __device__ void load_pair(uint4 (&left)[4], std::uint32_t half, int pair) const {
        uint4 two[2];
        load_left<C::kCode>(half, pair, lane_, two);
        left[2 * pair] = two[0];
        left[2 * pair + 1] = two[1];
    }

    __device__ void release(int slot) {
        __syncwarp();
        if constexpr (C::kCluster == 1) {
            if (lane_ == 0) arrive(shared_.free(slot));
        } else {
            if (lane_ < C::kCluster) arrive_at(shared_.free(slot), lane_);
        }
    }

    __device__ float2 load_scales(int chunk) const {
        const float* from = scales_ + static_cast<std::int64_t>(chunk) * p_.scale_outputs;
        const bool apart = p_.scale_outputs != 2;
        return {__ldg(from + (apart ? lane_ / 4 : 0)), __ldg(from + (apart ? lane_ / 4 + 8 : 1))};
    }

    __device__ void add_block(float2 scale) {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            segment_[i] = fmaf(i / 2 % 2 == 0 ? scale.x : scale.y, block_[i], segment_[i]);
    }

    __device__ void end_segment(bool first, bool last) {
        if constexpr (C::kCodes) {
            const std::uint32_t place = shared_.totals +
                                        static_cast<std::uint32_t>(group_ * 64 * C::kTokens * 4) +
                                        threadIdx.x % 128 * 16;
#pragma unroll
            for (int i = 0; i < kSums / 4; ++i) {
                const std::uint32_t at = place + static_cast<std::uint32_t>(i * 2048);
                if (!first) add_shared(segment_ + 4 * i, at);
                if (!last) store_shared(segment_ + 4 * i, at);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                total_[i] = first ? block_[i] : __fadd_rn(total_[i], block_[i]);
            clear(block_);
        }
    }

    __device__ static void add_shared(float* to, std::uint32_t at) {
        const uint4 v = load_shared(at);
        to[0] = __fadd_rn(__uint_as_float(v.x), to[0]);
        to[1] = __fadd_rn(__uint_as_float(v.y), to[1]);
        to[2] = __fadd_rn(__uint_as_float(v.z), to[2]);
        to[3] = __fadd_rn(__uint_as_float(v.w), to[3]);
    }
    __device__ static void store_shared(const float* from, std::uint32_t at) {
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(from[0]),
                     "f"(from[1]), "f"(from[2]), "f"(from[3])
                     : "memory");
    }

    __device__ static void clear(float (&sums)[kSums]) {
#pragma unroll
        for (float& sum : sums) sum = 0.0f;
    }

    __device__ void store_total(const TokenTile& tile, int output) {
        if (p_.gated) return store_gated(tile, output / 16 * 8 + output % 8);
        if (p_.y_type == DType::f32 && !p_.accumulate)
            store_all(tile, output, p_.n, reinterpret_cast<float*>(p_.y), p_.y_stride,
                      [](float* to, float sum) { *to = sum; });
        else if (p_.y_type == DType::f32)
            store_all(tile, output, p_.n, reinterpret_cast<float*>(p_.y), p_.y_stride,
                      [](float* to, float sum) { *to = *to + sum; });
        else if (p_.y_type == DType::bf16)
            store_all(tile, output, p_.n, reinterpret_cast<__nv_bfloat16*>(p_.y), p_.y_stride,
                      [](__nv_bfloat16* to, float sum) { *to = __float2bfloat16_rn(sum); });
        else
            store_all(tile, output, p_.n, reinterpret_cast<__half*>(p_.y), p_.y_stride,
                      [](__half* to, float sum) { *to = __float2half_rn(sum); });
    }

    // Of a tile of 16 outputs, eight are the gate's and eight are up's: a lane has both.
    __device__ void store_gated(const TokenTile& tile, int column) const {
        const float* total = C::kCodes ? segment_ : total_;
        const int token = lane_ % 4 * 2;
        if (2 * column >= p_.n) return;
#pragma unroll
        for (int eight = 0; eight < C::kTokens / 8; ++eight)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                if (eight * 8 + token + i < tile.count)
                    store(p_, tile.group, tile.first + eight * 8 + token + i, column,
                          gated(total[4 * eight + i], total[4 * eight + 2 + i]));
    }

    template <typename Y, typename Put>
    __device__ void store_all(const TokenTile& tile, int output, int n, Y* y, std::int64_t stride,
                              const Put& put) const {
        const float* total = C::kCodes ? segment_ : total_;
        const int token = lane_ % 4 * 2;
        y += (tile.first + token) * stride + tile.group * p_.y_step + output;
#pragma unroll
        for (int eight = 0; eight < C::kTokens / 8; ++eight, y += 8 * stride)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (eight * 8 + token + i % 2 < tile.count && output + i / 2 * 8 < n)
                    put(y + i % 2 * stride + i / 2 * 8, total[4 * eight + i]);
    }

    const ManyParams& params_;
    const Problem& p_;
    const ManyShared<C>& shared_;
    StageCursor<C> cursor_;
    int group_;  // which of the two
    int warp_, lane_, chunks_, stages_;
    int previous_slot_ = 0;
    bool first_stage_ = true;
    const float* scales_ = nullptr;
    uint4 left_[2][4];
    float block_[kSums];                    // what the tensor cores add to
    float segment_[C::kCodes ? kSums : 1];  // codes: the segment's sum
    float total_[C::kCodes ? 1 : kSums];    // bf16: of the segments before
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    many_tokens_kernel(const __grid_constant__ ManyParams params) {
    extern __shared__ std::byte dynamic[];
    __shared__ int listed;
    const Problem& p = params.problem;
    const std::uint32_t unaligned = shared_address(dynamic);
    ManyShared<C> shared;
    shared.stages = (unaligned + 1023) / 1024 * 1024;
    shared.totals = shared.stages + C::kStages * C::kStageBytes;
    shared.barriers = shared.totals + C::kTotalBytes;
    shared.tiles =
        reinterpret_cast<TokenTile*>(dynamic + (shared.barriers - unaligned) + C::kBarrierBytes);
    shared.rank = static_cast<int>(blockIdx.x) % C::kCluster;
    shared.first = static_cast<int>(blockIdx.x) / C::kCluster;
    shared.stride = static_cast<int>(gridDim.x) / C::kCluster;
    const bool experts = p.indptr != nullptr;
    const bool settled = p.overlap.inputs_settled;
    const bool early = !p.overlap.holds_next && (!experts || settled);
    if (early) let_next_kernel_start();
    if (settled) see_settled_memory();
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < C::kStages; ++slot) {
            init_barrier(shared.full(slot), C::kStageWarps);
            init_barrier(shared.free(slot), 8 * C::kCluster);  // the multipliers'
        }
        fence_barrier_init();
    }
    if (experts && !settled) wait_for_previous_kernel();
    if (experts && threadIdx.x < 32) {
        const int count =
            list_expert_tiles(p, C::kTokens * C::kCluster, shared.tiles, params.token_tiles);
        if (threadIdx.x == 0) listed = count;
    }
    __syncthreads();
    if constexpr (C::kCluster > 1) synchronize_cluster();  // the others' barriers are there
    shared.items = (experts ? listed : params.token_tiles) * params.row_blocks;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kProducerRegisters));
        Producer<C> producer(params, shared);
        producer.ask_ahead();
        if (!settled) wait_for_previous_kernel();
        if (!early) let_next_kernel_start();
        producer.run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kMultiplierRegisters));
        if (!settled) wait_for_previous_kernel();
        Multiplier<C>(params, shared, static_cast<int>(threadIdx.x) / 128 - 1).run();
    }
    if constexpr (C::kCluster > 1) synchronize_cluster();  // nobody writes here any more
    // Who waits for this kernel waits for those in front of it, too.
    if (settled) wait_for_previous_kernel();
}

}  // namespace espalier::linalg::cuda
