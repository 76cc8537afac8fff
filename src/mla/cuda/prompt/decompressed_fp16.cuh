// SPDX-License-Identifier: Apache-2.0
// Decompressed attention of fp16 queries on tensor cores. A block owns 256 query tokens of one
// (row, head) and walks the row's keys in tiles of 64 from slot 0: up-project the tile's latents to
// keys and values (bf16, in shared memory), then fold it into the running softmax of all 256
// tokens. Tiles divide the contract's blocks of 256, and a token is one row of every product, so
// its bits depend on its own query and visible keys alone.
//
// Cost: a tile is up-projected once per 256 query tokens. 64 keys cost 64 · 256 · 512 · 2 = 16.8
// MFLOP there and 64 · 256 · 320 · 2 = 10.5 MFLOP of attention, so a long prompt pays 2.6 times the
// attention alone, a chunk of up to 256 tokens pays nothing that could be shared. fp16 latents and
// queries are split into two bf16 halves (exact), which doubles the products they enter.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "mla/contract.hpp"
#include "mla/cuda/prompt/warp_mma.cuh"

namespace espalier::mla::cuda {

// Device copies of the call's words.
struct DecompressedParams {
    RaggedRows rows;
    KvPages kv;
    const std::byte* q;
    const std::byte* up_rows;
    std::byte* out;
    float* lse;
    float scale;
    std::int32_t heads;
    std::int32_t query_tiles;  // per row
    DType out_dtype;
};

template <KvFormat kFormat_>
struct DecompressedConfig {
    static constexpr KvFormat kFormat = kFormat_;
    static constexpr bool kHalfCache = kFormat == KvFormat::fp16;
    static constexpr bool kE4m3Latent =
        kFormat == KvFormat::fp8_tensor || kFormat == KvFormat::fp8_token;
    static constexpr bool kE4m3Rope = kFormat == KvFormat::fp8_tensor;

    static constexpr int kWarps = 8;
    static constexpr int kThreads = kWarps * 32;
    static constexpr int kRowTiles = 2;                       // of 16 query tokens, per warp
    static constexpr int kQueries = kWarps * kRowTiles * 16;  // 256
    static constexpr int kKeys = 64;                          // per tile
    static constexpr int kStageColumns = 64;                  // latent columns per pipeline stage
    static constexpr int kStages = static_cast<int>(kLatent) / kStageColumns;  // of a tile: 8
    static constexpr int kOutputs = static_cast<int>(kNope + kValue);          // 256
    static constexpr int kWarpOutputs = kOutputs / kWarps;                     // 32

    // Shared memory, bytes from its start.
    static constexpr int kQueryAt = 0;
    static constexpr int kKeyAt = kQueryAt + kQueries * static_cast<int>(kQuery) * 2;
    static constexpr int kValueAt = kKeyAt + kKeys * static_cast<int>(kQuery) * 2;
    static constexpr int kStageAt = kValueAt + kKeys * static_cast<int>(kValue) * 2;
    static constexpr int kStageLatentBytes = kKeys * kStageColumns * 2;
    static constexpr int kStageBytes = kStageLatentBytes + kOutputs * kStageColumns * 2;
    static constexpr int kRowsAt = kStageAt + 2 * kStageBytes;
    static constexpr int kSharedBytes = kRowsAt + 2 * kKeys * 24;
    static_assert(kSharedBytes <= 227 * 1024, "more than a block of Hopper has");
};

// Address of one key of a tile; a key that no token of the block sees has no address, and is zeros.
struct KeyPlace {
    const std::byte* latent;
    const std::byte* rope;
    float scale;  // of the latent; 1 for 16-bit caches
};
static_assert(sizeof(KeyPlace) == 24);

template <KvFormat kFormat>
__device__ KeyPlace place_key(const DecompressedParams& params, const std::int32_t* pages,
                              std::int32_t key, std::int32_t reach) {
    const KvPages& kv = params.kv;
    const std::int32_t slot = params.rows.first_slot + key;
    const std::int32_t entry = slot / kv.page_tokens;
    if (key >= reach || entry >= params.rows.block_stride) return {nullptr, nullptr, 0.0f};
    const std::int64_t page_id = pages[entry];
    if (page_id < 0 || page_id >= kv.page_count) return {nullptr, nullptr, 0.0f};
    const std::byte* page = kv.data + page_id * kv.page_stride;
    const std::int64_t place = slot % kv.page_tokens;
    const std::int64_t tokens = kv.page_tokens;
    if constexpr (kFormat == KvFormat::fp8_token) {
        return {page + place * kLatent, page + tokens * kLatent + place * kRope * 2,
                reinterpret_cast<const float*>(page + tokens * (kLatent + kRope * 2))[place]};
    } else {
        constexpr std::int64_t kElement = kFormat == KvFormat::fp8_tensor ? 1 : 2;
        const std::byte* row = page + place * kKey * kElement;
        return {row, row + kLatent * kElement, kFormat == KvFormat::fp8_tensor ? kv.scale : 1.0f};
    }
}

// Two e4m3 numbers as bf16, exactly.
__device__ inline unsigned widen_e4m3_pair(unsigned pair) {
    const __half2 half =
        __half2(__nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3));
    const float2 value = __half22float2(half);
    return bf16_pair(value.x, value.y);
}

// 16 e4m3 numbers into chunks 2·piece and 2·piece + 1 (from `first` on) of a row.
template <int kColumns>
__device__ void store_widened(const SharedTile<kColumns>& tile, int row, int first, int piece,
                              uint4 bytes) {
    const unsigned words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    unsigned wide[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) wide[i] = widen_e4m3_pair(words[i / 2] >> (16 * (i % 2)) & 0xffffu);
    store_shared(tile.at(row, first + 2 * piece), make_uint4(wide[0], wide[1], wide[2], wide[3]));
    store_shared(tile.at(row, first + 2 * piece + 1),
                 make_uint4(wide[4], wide[5], wide[6], wide[7]));
}

// e^x; exactly 0 for -inf.
__device__ inline float exp_of(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504f));
    return result;
}

// One block's work. Phases: start · up-project (stage by stage) · score · softmax · accumulate ·
// store.
template <typename Config>
class DecompressedBlock {
  public:
    static constexpr int kNopeSteps = static_cast<int>(kNope) / 16;
    static constexpr int kRopeSteps = static_cast<int>(kRope) / 16;

    __device__ DecompressedBlock(const DecompressedParams& params, std::byte* shared)
        : params_(params),
          places_(reinterpret_cast<KeyPlace*>(shared + Config::kRowsAt)),
          base_(shared_address(shared)),
          thread_(static_cast<int>(threadIdx.x)),
          warp_(thread_ / 32),
          lane_(thread_ % 32),
          query_{base_ + Config::kQueryAt},
          key_{base_ + Config::kKeyAt},
          value_{base_ + Config::kValueAt} {}

    // Tokens first … of the batch, `count` of them; token i of these sees the keys below
    // clamp(limit + i, 0, keys).
    __device__ void run(std::int32_t row, int head, std::int64_t first_token, int count,
                        std::int32_t limit, std::int32_t keys) {
        head_ = head;
        first_token_ = first_token;
        count_ = count;
        limit_ = limit;
        keys_ = keys;
        pages_ = params_.rows.block_table + table_of(params_.rows, row) * params_.rows.block_stride;
        reach_ = visible(count - 1);
        clear();
        const int tiles = reach_ / Config::kKeys + (reach_ % Config::kKeys != 0);
        if (tiles > 0) {
            place_keys(0);
            __syncthreads();
            load_queries();
            finish_stage(0, begin_stage(0, 0));
            commit_copies();
        }
        for (int tile = 0; tile < tiles; ++tile) {
            up_project(tile);
            if (tile + 1 < tiles) place_keys(tile + 1);
            __syncthreads();  // keys, values and the next tile's places are there
            uint4 held{};
            if (tile + 1 < tiles) held = begin_stage(tile + 1, 0);
            commit_copies();
            attend(tile * Config::kKeys);
            if (tile + 1 < tiles) finish_stage(0, held);
        }
        wait_copies<0>();
        store();
    }

  private:
    using StageTile = SharedTile<Config::kStageColumns>;

    __device__ StageTile stage_latents(int stage) const {
        return {base_ + Config::kStageAt + static_cast<unsigned>(stage % 2) * Config::kStageBytes};
    }
    __device__ StageTile stage_weights(int stage) const {
        return {stage_latents(stage).base + Config::kStageLatentBytes};
    }
    __device__ const KeyPlace& place(int tile, int key) const {
        return places_[tile % 2 * Config::kKeys + key];
    }
    // Keys that token i of the block sees.
    __device__ std::int32_t visible(int i) const {
        const std::int32_t most = limit_ + i;
        return most < 0 ? 0 : most > keys_ ? keys_ : most;
    }
    // Shared-memory addresses are functions of the lane, and the compiler would carry some forty of
    // them through the loop over tiles; 50 registers would spill. Here it computes them anew.
    __device__ void forget_addresses() { asm volatile("" : "+r"(lane_), "+r"(thread_)); }

    // Query token of the block that this lane's row `half` (0: l / 4, 1: l / 4 + 8) stands for.
    __device__ int token_of(int row_tile, int half) const {
        return (warp_ * Config::kRowTiles + row_tile) * 16 + half * 8 + lane_ / 4;
    }

    __device__ void clear() {
#pragma unroll
        for (int r = 0; r < Config::kRowTiles; ++r) {
#pragma unroll
            for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) out_[r][n][c] = 0.0f;
            maximum_[r][0] = maximum_[r][1] = -INFINITY;
            sum_[r][0] = sum_[r][1] = 0.0f;
        }
    }

    __device__ void place_keys(int tile) {
        if (thread_ < Config::kKeys)
            places_[tile % 2 * Config::kKeys + thread_] =
                place_key<Config::kFormat>(params_, pages_, tile * Config::kKeys + thread_, reach_);
    }

    __device__ void load_queries() {
        constexpr int kChunks = static_cast<int>(kQuery) / 8;
        for (int i = thread_; i < Config::kQueries * kChunks; i += Config::kThreads) {
            const int token = i / kChunks;
            const int chunk = i % kChunks;
            const bool exists = token < count_;
            const std::int64_t packed =
                (first_token_ + (exists ? token : 0)) * params_.heads + head_;
            copy_async(query_.at(token, chunk), params_.q + packed * kQuery * 2 + chunk * 16,
                       exists);
        }
    }

    // Starts the copies of stage `stage` of a tile. e4m3 latents come back in registers, to be
    // widened by finish_stage.
    __device__ uint4 begin_stage(int tile, int stage) {
        const StageTile weights = stage_weights(stage);
        const int chunk = thread_ % 8;
        const std::byte* from = params_.up_rows +
                                std::int64_t{head_} * Config::kOutputs * kLatent * 2 +
                                stage * Config::kStageColumns * 2 + chunk * 16;
#pragma unroll
        for (int i = 0; i < Config::kOutputs * 8 / Config::kThreads; ++i) {
            const int output = thread_ / 8 + i * (Config::kThreads / 8);
            copy_async(weights.at(output, chunk), from + output * kLatent * 2, true);
        }
        if constexpr (Config::kE4m3Latent) {
            const std::byte* latent = place(tile, thread_ / 4).latent;
            if (latent == nullptr) return uint4{};
            return *reinterpret_cast<const uint4*>(latent + stage * Config::kStageColumns +
                                                   thread_ % 4 * 16);
        } else {
            const StageTile latents = stage_latents(stage);
#pragma unroll
            for (int i = 0; i < Config::kKeys * 8 / Config::kThreads; ++i) {
                const int key = thread_ / 8 + i * (Config::kThreads / 8);
                const std::byte* latent = place(tile, key).latent;
                const bool exists = latent != nullptr;
                copy_async(latents.at(key, chunk),
                           exists ? latent + stage * Config::kStageColumns * 2 + chunk * 16
                                  : params_.up_rows,
                           exists);
            }
            return uint4{};
        }
    }

    __device__ void finish_stage(int stage, uint4 held) {
        if constexpr (Config::kE4m3Latent)
            store_widened(stage_latents(stage), thread_ / 4, 0, thread_ % 4, held);
    }

    // The same two steps for the tile's rope columns, which are key columns as they are.
    __device__ uint4 begin_rope(int tile) {
        if constexpr (Config::kE4m3Rope) {
            const std::byte* rope = place(tile, thread_ / 4).rope;
            if (rope == nullptr) return uint4{};
            return *reinterpret_cast<const uint4*>(rope + thread_ % 4 * 16);
        } else {
            const int chunk = thread_ % 8;
#pragma unroll
            for (int i = 0; i < Config::kKeys * 8 / Config::kThreads; ++i) {
                const int key = thread_ / 8 + i * (Config::kThreads / 8);
                const std::byte* rope = place(tile, key).rope;
                const bool exists = rope != nullptr;
                copy_async(key_.at(key, kRopeChunk + chunk),
                           exists ? rope + chunk * 16 : params_.up_rows, exists);
            }
            return uint4{};
        }
    }

    __device__ void finish_rope(uint4 held) {
        if constexpr (Config::kE4m3Rope)
            store_widened(key_, thread_ / 4, kRopeChunk, thread_ % 4, held);
    }

    // Keys and values of the tile into shared memory. Stage 0 is on its way already. A warp
    // computes 32 of the 256 outputs for all 64 keys.
    __device__ void up_project(int tile) {
        float sums[kKeyTiles][kWarpTiles][4] = {};
#pragma unroll 1
        for (int stage = 0; stage < Config::kStages; ++stage) {
            uint4 held{};
            uint4 held_rope{};
            const bool more = stage + 1 < Config::kStages;
            if (more) held = begin_stage(tile, stage + 1);
            // From stage 1 on, all warps have left the tile before and its keys.
            if (stage == 1) held_rope = begin_rope(tile);
            commit_copies();
            wait_copies<1>();
            __syncthreads();
            multiply_stage(stage, sums);
            if (more) finish_stage(stage + 1, held);
            if (stage == 1) finish_rope(held_rope);
            __syncthreads();
        }
        store_projected(tile, sums);
    }

    static constexpr int kKeyTiles = Config::kKeys / 16;              // 4
    static constexpr int kWarpTiles = Config::kWarpOutputs / 8;       // 4
    static constexpr int kScoreTiles = Config::kKeys / 8;             // 8
    static constexpr int kValueTiles = static_cast<int>(kValue) / 8;  // 16
    static constexpr int kRopeChunk = static_cast<int>(kNope) / 8;

    __device__ void multiply_stage(int stage, float (&sums)[kKeyTiles][kWarpTiles][4]) {
        forget_addresses();
        const StageTile latents = stage_latents(stage);
        const StageTile weights = stage_weights(stage);
        // Splitting fp16 takes registers: one step at a time, 148 bytes spill instead of 196.
        constexpr int kUnroll = Config::kHalfCache ? 1 : Config::kStageColumns / 16;
#pragma unroll kUnroll
        for (int step = 0; step < Config::kStageColumns / 16; ++step) {
            unsigned right[kWarpTiles / 2][4];
#pragma unroll
            for (int pair = 0; pair < kWarpTiles / 2; ++pair)
                load_right(right[pair], weights, warp_ * Config::kWarpOutputs + pair * 16, step,
                           lane_);
#pragma unroll
            for (int m = 0; m < kKeyTiles; ++m) {
                Left<Config::kHalfCache> left;
                left.load(latents, m * 16, step, lane_);
#pragma unroll
                for (int n = 0; n < kWarpTiles; ++n)
                    left.multiply(sums[m][n], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
            }
        }
    }

    // A left operand of bf16, or one of fp16 as two bf16 halves.
    template <bool kSplit>
    struct Left {
        unsigned high[4];
        unsigned low[kSplit ? 4 : 1];

        template <int kColumns>
        __device__ void load(const SharedTile<kColumns>& tile, int first, int step, int lane) {
            load_left(high, tile, first, step, lane);
            if constexpr (kSplit)
#pragma unroll
                for (int i = 0; i < 4; ++i) split_fp16_pair(high[i], high[i], low[i]);
        }
        __device__ void multiply(float (&sums)[4], unsigned right0, unsigned right1) const {
            multiply_bf16(sums, packed(high), right0, right1);
            if constexpr (kSplit) multiply_bf16(sums, packed(low), right0, right1);
        }
    };

    // Scaled and rounded to bf16. Held within bf16's finite range: a hidden key whose value
    // overflowed would otherwise turn its probability 0 into NaN.
    __device__ static float bounded(float value) {
        constexpr float kMost = 0x1.fep127f;
        return fminf(fmaxf(value, -kMost), kMost);
    }

    __device__ void store_projected(int tile, const float (&sums)[kKeyTiles][kWarpTiles][4]) {
        forget_addresses();
        constexpr int kKeyWarps = static_cast<int>(kNope) / Config::kWarpOutputs;  // 4
        const bool is_key = warp_ < kKeyWarps;
        const int first = (is_key ? warp_ : warp_ - kKeyWarps) * Config::kWarpOutputs;
#pragma unroll
        for (int m = 0; m < kKeyTiles; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int key = m * 16 + half * 8 + lane_ / 4;
                const float scale = Config::kE4m3Latent ? place(tile, key).scale : 1.0f;
#pragma unroll
                for (int n = 0; n < kWarpTiles; ++n) {
                    const unsigned pair = bf16_pair(bounded(sums[m][n][2 * half] * scale),
                                                    bounded(sums[m][n][2 * half + 1] * scale));
                    const int chunk = first / 8 + n;
                    const unsigned at = is_key ? key_.at(key, chunk) : value_.at(key, chunk);
                    store_shared(at + static_cast<unsigned>(lane_ % 4) * 4, pair);
                }
            }
    }

    // Folds the tile's keys, slots first … first + 63, into the warp's tokens.
    __device__ void attend(std::int32_t first) {
        const int last = (warp_ + 1) * Config::kRowTiles * 16 - 1;
        const int last_token = last < count_ ? last : count_ - 1;
        if (warp_ * Config::kRowTiles * 16 >= count_ || first >= visible(last_token)) return;
#pragma unroll
        for (int r = 0; r < Config::kRowTiles; ++r) {
            forget_addresses();
            float scores[kScoreTiles][4] = {};
            score(scores, r);
            softmax(scores, r, first);
            accumulate(scores, r);
        }
    }

    // q · key: the rope columns first, since an fp8_tensor cache's are still to be scaled.
    __device__ void score(float (&scores)[kScoreTiles][4], int r) {
#pragma unroll 1
        for (int step = kNopeSteps; step < kNopeSteps + kRopeSteps; ++step)
            score_step<Config::kHalfCache>(scores, r, step);
        if constexpr (Config::kE4m3Rope) {
#pragma unroll
            for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c) scores[n][c] *= params_.kv.scale;
        }
#pragma unroll 1
        for (int step = 0; step < kNopeSteps; ++step) score_step<false>(scores, r, step);
    }

    // 16 columns of q and key. For bf16 keys queries are split; fp16 keys (an fp16 cache's rope)
    // meet them as they are.
    template <bool kHalfKeys>
    __device__ void score_step(float (&scores)[kScoreTiles][4], int r, int step) {
        Left<!kHalfKeys> left;
        left.load(query_, (warp_ * Config::kRowTiles + r) * 16, step, lane_);
#pragma unroll
        for (int pair = 0; pair < kScoreTiles / 2; ++pair) {
            unsigned right[4];
            load_right(right, key_, pair * 16, step, lane_);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                if constexpr (kHalfKeys)
                    multiply_fp16(scores[2 * pair + side], packed(left.high), right[2 * side],
                                  right[2 * side + 1]);
                else
                    left.multiply(scores[2 * pair + side], right[2 * side], right[2 * side + 1]);
            }
        }
    }

    // Scores in, probabilities out; hidden keys get exactly 0. The running sums shrink with a new
    // maximum. A row that has seen nothing keeps -inf; 0 stands in for it, so that no inf - inf
    // arises.
    __device__ void softmax(float (&scores)[kScoreTiles][4], int r, std::int32_t first) {
        float shrink[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::int32_t keys = visible(token_of(r, half)) - first;
            float maximum = maximum_[r][half];
#pragma unroll
            for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& score = scores[n][2 * half + c];
                    const int key = n * 8 + lane_ % 4 * 2 + c;
                    score = key < keys ? score * params_.scale : -INFINITY;
                    maximum = fmaxf(maximum, score);
                }
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
            const float base = maximum == -INFINITY ? 0.0f : maximum;
            shrink[half] = exp_of(maximum_[r][half] - base);
            float sum = sum_[r][half] * shrink[half];
#pragma unroll
            for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                    float& score = scores[n][2 * half + c];
                    score = exp_of(score - base);
                    sum += score;
                }
            maximum_[r][half] = maximum;
            sum_[r][half] = sum;
        }
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c) out_[r][n][c] *= shrink[c / 2];
    }

    // out += probabilities (bf16) · values. The sums' layout is that of a left operand.
    __device__ void accumulate(const float (&scores)[kScoreTiles][4], int r) {
#pragma unroll
        for (int step = 0; step < Config::kKeys / 16; ++step) {
            const float(&low)[4] = scores[2 * step];
            const float(&high)[4] = scores[2 * step + 1];
            const unsigned left[4] = {bf16_pair(low[0], low[1]), bf16_pair(low[2], low[3]),
                                      bf16_pair(high[0], high[1]), bf16_pair(high[2], high[3])};
#pragma unroll
            for (int pair = 0; pair < kValueTiles / 2; ++pair) {
                unsigned right[4];
                load_right_by_rows(right, value_, pair * 16, step, lane_);
                multiply_bf16(out_[r][2 * pair], packed(left), right[0], right[1]);
                multiply_bf16(out_[r][2 * pair + 1], packed(left), right[2], right[3]);
            }
        }
    }

    __device__ void store() {
#pragma unroll
        for (int r = 0; r < Config::kRowTiles; ++r)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = sum_[r][half];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                const int token = token_of(r, half);
                if (token >= count_) continue;
                const std::int64_t packed = (first_token_ + token) * params_.heads + head_;
                const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
                for (int n = 0; n < kValueTiles; ++n)
                    store_pair(packed * kValue + n * 8 + lane_ % 4 * 2,
                               out_[r][n][2 * half] * inverse, out_[r][n][2 * half + 1] * inverse);
                if (params_.lse != nullptr && lane_ % 4 == 0)
                    params_.lse[packed] = sum == 0.0f ? -INFINITY : maximum_[r][half] + logf(sum);
            }
    }

    // Hidden keys may turn the sign of a zero sum; + 0 drops it.
    __device__ void store_pair(std::int64_t index, float low, float high) {
        low = __fadd_rn(low, 0.0f);
        high = __fadd_rn(high, 0.0f);
        if (params_.out_dtype == DType::f32)
            *reinterpret_cast<float2*>(params_.out + index * 4) = make_float2(low, high);
        else if (params_.out_dtype == DType::bf16)
            *reinterpret_cast<unsigned*>(params_.out + index * 2) = bf16_pair(low, high);
        else
            *reinterpret_cast<__half2*>(params_.out + index * 2) = __floats2half2_rn(low, high);
    }

    const DecompressedParams& params_;
    KeyPlace* places_;  // [2][64]: this tile's and the next one's
    unsigned base_;
    int thread_, warp_, lane_;
    SharedTile<static_cast<int>(kQuery)> query_;  // [256][192], as the caller has it
    SharedTile<static_cast<int>(kQuery)> key_;    // [64][192]
    SharedTile<static_cast<int>(kValue)> value_;  // [64][128]

    int head_, count_;
    std::int32_t limit_, keys_, reach_;
    std::int64_t first_token_;
    const std::int32_t* pages_;

    float out_[Config::kRowTiles][kValueTiles][4];
    float maximum_[Config::kRowTiles][2];
    float sum_[Config::kRowTiles][2];  // of this lane's columns
};

}  // namespace espalier::mla::cuda
