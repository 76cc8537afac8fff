// SPDX-License-Identifier: Apache-2.0
// Products for many tokens: bound by the tensor cores. A tile is 128 outputs × 128 tokens.
//
// One block per multiprocessor goes through its tiles. A producing warpgroup brings x to shared
// memory 64 inputs at a time, in the order in which fragments.hpp has a step's inputs; two
// multiplying warpgroups have 64 outputs each. Their weights come straight from memory to
// registers, as the left operand of wgmma wants them, two stages ahead; e4m3 codes are widened
// there.
//
// The sums are those of few_tokens.cuh: a chain of steps per segment (e4m3: per block of 128
// inputs, which enters the segment's sum by its scale), segments added in ascending order. That
// takes two sums per output, three over e4m3, where the segments' total waits in shared memory.
#pragma once

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/ptx.cuh"
#include "linalg/cuda/wgmma.cuh"
#include "linalg/cuda/work.cuh"

namespace espalier::linalg::cuda {

struct ManyParams {
    Problem problem;
    Segments segments;
    int row_blocks = 0;   // of a group
    int token_tiles = 0;  // of all groups; of experts: at most
};

template <bool kFp8_>
struct ManyConfig {
    static constexpr bool kFp8 = kFp8_;
    static constexpr int kOutputs = 128;
    static constexpr int kTokens = 128;
    static constexpr int kStages = 4;
    static constexpr int kStageBytes = kTokens * 128;        // 64 inputs
    static constexpr int kWeightBytes = kFp8 ? 1024 : 2048;  // of 16 outputs in a stage
    static constexpr int kWeightLoads = kWeightBytes / 512;
    static constexpr int kAhead = 3;  // stages whose weights are in registers or on their way
    static constexpr int kThreads = 384;
    // Of 168 at entry: three warpgroups share 504.
    static constexpr int kProducerRegisters = kFp8 ? 88 : 96;
    static constexpr int kMultiplierRegisters = kFp8 ? 208 : 200;
    static constexpr int kTotalBytes = kFp8 ? 2 * 64 * kTokens * 4 : 0;
    static constexpr int kBarrierBytes = 128;

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

    __device__ std::uint32_t stage(int slot) const {
        return stages + static_cast<std::uint32_t>(slot * C::kStageBytes);
    }
    __device__ std::uint32_t full(int slot) const {
        return barriers + static_cast<std::uint32_t>(8 * slot);
    }
    __device__ std::uint32_t free(int slot) const {
        return barriers + static_cast<std::uint32_t>(8 * (C::kStages + slot));
    }
    __device__ TokenTile tile(const Problem& p, int index) const {
        return p.indptr != nullptr ? tiles[index] : dense_tile(p, C::kTokens, index);
    }
};

template <class C>
struct StageCursor {
    int slot = 0;
    std::uint32_t parity = 0;
    __device__ void advance() {
        if (++slot == C::kStages) {
            slot = 0;
            parity ^= 1;
        }
    }
};

// --- x ------------------------------------------------------------------------------------------
// A warp brings 32 tokens, four of them (128 bytes each) with one load: lane = 8 · token + unit,
// where unit 4j + t is the eight inputs that lane t of a fragment has for steps 2j and 2j + 1. Its
// four words go to four different 16-byte units of the token's row.
template <class C>
class Producer {
  public:
    __device__ Producer(const ManyParams& params, const ManyShared<C>& shared)
        : params_(params), p_(params.problem), shared_(shared) {
        const int thread = static_cast<int>(threadIdx.x);
        warp_ = thread / 32;
        token_ = thread % 32 / 8;
        unit_ = thread % 8;
#pragma unroll
        for (int word = 0; word < 4; ++word)
            to_[word] =
                warp_ * 4096 + token_ * 128 + unit_ / 4 * 64 + (word ^ token_) * 16 + unit_ % 4 * 4;
    }

    __device__ void run() {
        const int stages = 2 * static_cast<int>(chunks_of(p_.k));
        for (int item = static_cast<int>(blockIdx.x); item < shared_.items;
             item += static_cast<int>(gridDim.x)) {
            enter(shared_.tile(p_, item / params_.row_blocks));
            uint4 x[2][8];
            load(x[0], 0);
            for (int stage = 0; stage < stages; stage += 2) {  // stages are pairs: a chunk has two
                load(x[1], stage + 1);
                put(x[0]);
                if (stage + 2 < stages) load(x[0], stage + 2);
                put(x[1]);
            }
        }
    }

  private:
    __device__ void enter(const TokenTile& tile) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int token = warp_ * 32 + i * 4 + token_;
            from_[i] = -1;
            if (token >= tile.count) continue;
            const int row =
                p_.source != nullptr ? p_.source[tile.first + token] : tile.first + token;
            from_[i] = row * static_cast<int>(p_.x_stride) +
                       tile.group * static_cast<int>(p_.x_step) + unit_ * 8;
        }
    }

    __device__ void load(uint4 (&x)[8], int stage) const {
        const bool exists = stage * 64 + unit_ * 8 < p_.k;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            x[i] = make_uint4(0, 0, 0, 0);
            if (exists && from_[i] >= 0)
                x[i] = load_global(reinterpret_cast<const std::uint16_t*>(p_.x) + from_[i] +
                                   stage * 64);
        }
    }

    __device__ void put(const uint4 (&x)[8]) {
        wait(shared_.free(cursor_.slot), cursor_.parity ^ 1);
        const std::uint32_t base = shared_.stage(cursor_.slot);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // Tokens 4 … 7 of eight: the swizzle turns the row's halves round.
            const std::uint32_t row = base + static_cast<std::uint32_t>(i * 512);
            const std::uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
            for (int word = 0; word < 4; ++word)
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(
                                 row + static_cast<std::uint32_t>(to_[word] ^ (i % 2 * 64))),
                             "r"(words[word])
                             : "memory");
        }
        // The tensor cores read what ordinary stores wrote.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(shared_.full(cursor_.slot));
        cursor_.advance();
    }

    const ManyParams& params_;
    const Problem& p_;
    const ManyShared<C>& shared_;
    StageCursor<C> cursor_;
    int warp_, token_, unit_;
    int to_[4];
    int from_[8];  // where the thread's tokens begin in x; -1: no token
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
        int item = static_cast<int>(blockIdx.x);
        if (item < shared_.items) start(item);
        while (item < shared_.items) {
            multiply_item();
            const TokenTile tile = tile_;
            const int output = output_;
            item += static_cast<int>(gridDim.x);
            if (item < shared_.items) start(item);  // its weights are on their way while we store
            store_total(tile, output);
        }
    }

  private:
    static constexpr int kSums = 64;  // token 8j + 2t + i, output g + 8h: 4j + 2h + i

    // The weights of the first stages of an item.
    __device__ void start(int item) {
        tile_ = shared_.tile(p_, item / params_.row_blocks);
        const int row_tile = item % params_.row_blocks * (C::kOutputs / 16) + group_ * 4 + warp_;
        output_ = row_tile * 16 + lane_ / 4;
        const std::int64_t existing = min(row_tile, static_cast<int>(tiles_of(p_.n)) - 1);
        weights_ = p_.weights + tile_.group * p_.matrix_bytes +
                   existing * stages_ * C::kWeightBytes + lane_ * 16;
        if constexpr (C::kFp8)
            scales_ =
                p_.scales + tile_.group * p_.matrix_scales + existing * chunks_ * p_.scale_outputs;
        load<0>(0);
        load<1>(1);
    }

    template <int kBuffer>
    __device__ void load(int stage) {
#pragma unroll
        for (int i = 0; i < C::kWeightLoads; ++i)
            left_[kBuffer][i] = load_global(
                weights_ + static_cast<std::int64_t>(stage) * C::kWeightBytes + i * 512);
    }

    __device__ void multiply_item() {
        clear(block_);
        segment_end_ = 2 * params_.segments.chunks;
        first_segment_ = true;
        if constexpr (C::kFp8) clear(segment_);
        for (int stage = 0; stage < stages_; stage += 6) {
            multiply_stage<0>(stage);
            multiply_stage<1>(stage + 1);
            if (stage + 2 >= stages_) break;
            multiply_stage<2>(stage + 2);
            multiply_stage<3>(stage + 3);
            if (stage + 4 >= stages_) break;
            multiply_stage<4>(stage + 4);
            multiply_stage<5>(stage + 5);
        }
        release(previous_slot_);
    }

    template <int kPhase>
    __device__ void multiply_stage(int stage) {
        constexpr int kBuffer = kPhase % 3;
        float scale[2];
        if constexpr (C::kFp8 && kPhase % 2 == 1) load_scales(stage / 2, scale);
        wait(shared_.full(cursor_.slot), cursor_.parity);
        const std::uint64_t right = swizzled_operand(shared_.stage(cursor_.slot));
        uint4 step[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (C::kFp8) {
                const uint4& codes = left_[kBuffer][i / 2];
                step[i] = i % 2 == 0 ? widen(codes.x, codes.y) : widen(codes.z, codes.w);
            } else {
                step[i] = left_[kBuffer][i];
            }
        }
        hold(block_);
        wgmma_begin();
#pragma unroll
        for (int i = 0; i < 4; ++i) wgmma(block_, step[i], right + static_cast<unsigned>(2 * i));
        wgmma_commit();
        constexpr bool chunk_ends = kPhase % 2 == 1;
        const bool segment_ends = stage + 1 == segment_end_ || stage + 1 == stages_;
        if ((C::kFp8 && chunk_ends) || segment_ends) {
            wgmma_wait<0>();
            hold(block_);
            if constexpr (C::kFp8) add_block(scale);
            if (segment_ends) end_segment(stage + 1 == stages_);
        } else {
            wgmma_wait<1>();
        }
        // The stage before has been read.
        if (stage > 0) release(previous_slot_);
        previous_slot_ = cursor_.slot;
        cursor_.advance();
        if (stage + 2 < stages_) load<(kPhase + 2) % 3>(stage + 2);
    }

    __device__ void release(int slot) {
        __syncwarp();
        if (lane_ == 0) arrive(shared_.free(slot));
    }

    __device__ void load_scales(int chunk, float (&scale)[2]) const {
        const float* from = scales_ + static_cast<std::int64_t>(chunk) * p_.scale_outputs;
        const bool apart = p_.scale_outputs != 1;
        scale[0] = __ldg(from + (apart ? lane_ / 4 : 0));
        scale[1] = __ldg(from + (apart ? lane_ / 4 + 8 : 0));
    }

    __device__ void add_block(const float (&scale)[2]) {
#pragma unroll
        for (int i = 0; i < kSums; ++i)
            segment_[i] = fmaf(scale[i / 2 % 2], block_[i], segment_[i]);
        clear(block_);
    }

    __device__ void end_segment(bool last) {
        segment_end_ += 2 * params_.segments.chunks;
        if constexpr (C::kFp8) {
            const std::uint32_t place = shared_.totals +
                                        static_cast<std::uint32_t>(group_ * 64 * C::kTokens * 4) +
                                        threadIdx.x % 128 * 16;
#pragma unroll
            for (int i = 0; i < kSums / 4; ++i) {
                const std::uint32_t at = place + static_cast<std::uint32_t>(i * 2048);
                if (!first_segment_) add_shared(segment_ + 4 * i, at);
                if (!last) store_shared(segment_ + 4 * i, at);
            }
            if (!last) clear(segment_);
        } else {
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                total_[i] = first_segment_ ? block_[i] : __fadd_rn(total_[i], block_[i]);
            clear(block_);
        }
        first_segment_ = false;
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
        const float* total = C::kFp8 ? segment_ : total_;
#pragma unroll
        for (int i = 0; i < kSums; ++i) {
            const int token = i / 4 * 8 + lane_ % 4 * 2 + i % 2;
            const int n = output + i / 2 % 2 * 8;
            if (token < tile.count && n < p_.n)
                store(p_, tile.group, tile.first + token, n, total[i]);
        }
    }

    const ManyParams& params_;
    const Problem& p_;
    const ManyShared<C>& shared_;
    StageCursor<C> cursor_;
    int group_;  // which of the two
    int warp_, lane_, chunks_, stages_;
    int previous_slot_ = 0;
    int segment_end_ = 0;
    bool first_segment_ = true;
    TokenTile tile_{};
    int output_ = 0;  // the thread's first
    const std::byte* weights_ = nullptr;
    const float* scales_ = nullptr;
    uint4 left_[C::kAhead][C::kWeightLoads];
    float block_[kSums];                  // what the tensor cores add to
    float segment_[C::kFp8 ? kSums : 1];  // e4m3: the segment's sum
    float total_[C::kFp8 ? 1 : kSums];    // bf16: of the segments before
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
    let_next_kernel_start();
    if (threadIdx.x == 0) {
        for (int slot = 0; slot < C::kStages; ++slot) {
            init_barrier(shared.full(slot), 4);  // the producer's warps
            init_barrier(shared.free(slot), 8);  // the multipliers'
        }
        fence_barrier_init();
    }
    wait_for_previous_kernel();
    if (p.indptr != nullptr && threadIdx.x < 32) {
        const int count = list_expert_tiles(p, C::kTokens, shared.tiles, params.token_tiles);
        if (threadIdx.x == 0) listed = count;
    }
    __syncthreads();
    shared.items = (p.indptr != nullptr ? listed : params.token_tiles) * params.row_blocks;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kProducerRegisters));
        Producer<C>(params, shared).run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kMultiplierRegisters));
        Multiplier<C>(params, shared, static_cast<int>(threadIdx.x) / 128 - 1).run();
    }
}

}  // namespace espalier::linalg::cuda
