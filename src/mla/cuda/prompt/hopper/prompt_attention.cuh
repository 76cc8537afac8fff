// SPDX-License-Identifier: Apache-2.0
// Attention over up-projected keys and values. An item is 128 query tokens of one (row, head); its
// keys come in tiles from slot 0 on. A copying warp runs ahead of two warpgroups of 64 tokens each,
// which multiply and take softmax in turns; a warpgroup's next scores are on the tensor cores
// together with the outputs of its last ones.
//
// A token is one row of every product and folds its own visible keys tile by tile, so its bits
// depend on its query and on these keys alone: a tile that it does not see multiplies its sums by
// one and adds zeros.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/copy.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/kernel_order.cuh"
#include "base/cuda/memory.cuh"
#include "base/cuda/mma.cuh"
#include "base/cuda/named_barrier.cuh"
#include "mla/cuda/prompt/decompressed_params.hpp"

namespace espalier::mla::cuda {

template <int kNope_, int kValue_, int kKeys_, bool kScaledRope_>
struct PromptConfig {
    static constexpr bool kScaledRope = kScaledRope_;  // the cache's rope columns are codes
    static constexpr int kNope = kNope_;
    static constexpr int kColumns = kNope + static_cast<int>(kRope);  // of queries and keys
    static constexpr int kValue = kValue_;
    static constexpr int kKeys = kKeys_;  // of a tile
    static constexpr int kQueries = kPromptQueries;
    static constexpr int kStages = 2;  // tiles in shared memory
    static constexpr int kThreads = 3 * 128;
    // Columns lie in blocks of 64: 128 bytes of a row.
    static constexpr int kColumnBlocks = kColumns / 64;
    static constexpr int kNopeBlocks = kNope / 64;
    static constexpr int kValueBlocks = kValue / 64;
    static constexpr int kQueryBlock = kQueries * 128;  // bytes
    static constexpr int kKeyBlock = kKeys * 128;
    // Registers: 384 threads start with 168 each.
    static constexpr int kStartRegisters = 168;
    static constexpr int kCopyRegisters = 24;
    static constexpr int kAttendRegisters = 240;
    static_assert(kNope % 64 == 0 && kValue % 128 == 0 && kKeys % 16 == 0);
};

enum class ItemKind : std::int32_t { attend, not_causal, none, end };

// 128 tokens of one (row, head).
struct PromptItem {
    ItemKind kind = ItemKind::none;
    std::int32_t head = 0;   // of the group
    std::int32_t token = 0;  // the first
    std::int32_t count = 0;
    std::int32_t limit = 0;  // token i sees the keys below clamp(limit + i, 0, keys)
    std::int32_t keys = 0;
    std::int32_t tiles = 0;      // of keys
    std::int32_t first_key = 0;  // in scratch

    __device__ std::int32_t visible(int i) const {
        const std::int32_t most = limit + i;
        return most < 0 ? 0 : most > keys ? keys : most;
    }
};

template <class C>
struct PromptShared {
    alignas(1024) std::byte query[C::kColumnBlocks][C::kQueryBlock];
    alignas(1024) std::byte keys[C::kStages][C::kColumnBlocks][C::kKeyBlock];
    alignas(1024) std::byte values[C::kStages][C::kValueBlocks][C::kKeyBlock];
    Barrier query_full, query_free;  // with the item
    Barrier key_full[C::kStages], key_free[C::kStages];
    Barrier value_full[C::kStages], value_free[C::kStages];
    PromptItem item;
};

template <class C>
struct PromptRing {
    int index = 0;
    std::uint32_t phase = 0;
    __device__ void advance() {
        if (++index < C::kStages) return;
        index = 0;
        phase ^= 1;
    }
};

// Items go by sections of heads, in a section by tiles of tokens, the last first: these see the
// most keys, and short items fill the end.
template <class C>
__device__ PromptItem item_at(const AttendParams& p, int index) {
    PromptItem item;
    if (index >= p.items) {
        item.kind = ItemKind::end;
        return item;
    }
    const int tiles_of_head = p.query_tiles * p.group.count;
    const int section = index / (tiles_of_head * kSectionHeads);
    const int heads = min(kSectionHeads, p.head_count - section * kSectionHeads);
    const int rest = index - section * tiles_of_head * kSectionHeads;
    item.head = section * kSectionHeads + rest % heads;
    const int local = rest / heads % p.group.count;
    const int tile = p.query_tiles - 1 - rest / heads / p.group.count;
    const PromptRow row = prompt_row(p.group.rows, p.group.first + local);
    const std::int32_t first = tile * C::kQueries;
    if (first >= row.q_len) return item;
    item.kind = row.causal ? ItemKind::attend : ItemKind::not_causal;
    item.token = row.begin + first;
    item.count = min(row.q_len - first, C::kQueries);
    item.limit = row.keys - (row.q_len - 1) + first;
    item.keys = row.keys;
    item.tiles = (item.visible(item.count - 1) + C::kKeys - 1) / C::kKeys;
    item.first_key = local * p.group.key_stride;
    return item;
}

// The copying thread.
template <class C>
class PromptCopier {
  public:
    __device__ PromptCopier(const AttendParams& p, PromptShared<C>& shared)
        : p_(p), shared_(shared) {}

    __device__ void run() {
        int index = static_cast<int>(blockIdx.x);
        for (;;) {
            const PromptItem item = item_at<C>(p_, index);
            if (item.kind != ItemKind::none) bring(item);
            if (item.kind == ItemKind::end) return;
            index = static_cast<int>(gridDim.x) + atomicAdd(p_.counter, 1);
        }
    }

  private:
    __device__ void bring(const PromptItem& item) {
        wait(&shared_.query_free, query_phase_ ^ 1);
        query_phase_ ^= 1;
        shared_.item = item;
        if (item.tiles == 0) return arrive(&shared_.query_full);
        arrive_expecting(&shared_.query_full, sizeof(shared_.query));
        for (int block = 0; block < C::kColumnBlocks; ++block)
            copy_tensor_3d(shared_.query[block], &p_.query_map, &shared_.query_full, block * 64,
                           p_.first_head + item.head, item.token, kEvictFirst);
        for (int tile = 0; tile < item.tiles; ++tile) bring_tile(item, tile * C::kKeys);
    }

    __device__ void bring_tile(const PromptItem& item, std::int32_t slot) {
        const std::int32_t at = item.first_key + slot;
        wait(&shared_.key_free[ring_.index], ring_.phase ^ 1);
        Barrier* full = &shared_.key_full[ring_.index];
        arrive_expecting(full, sizeof(shared_.keys[0]));
        for (int block = 0; block < C::kNopeBlocks; ++block)
            copy_tensor_3d(shared_.keys[ring_.index][block], &p_.key_map, full, block * 64, at,
                           item.head, kEvictNormal);
        copy_tensor_3d(shared_.keys[ring_.index][C::kNopeBlocks], &p_.rope_map, full, 0, at, 0,
                       kEvictNormal);
        wait(&shared_.value_free[ring_.index], ring_.phase ^ 1);
        full = &shared_.value_full[ring_.index];
        arrive_expecting(full, sizeof(shared_.values[0]));
        for (int block = 0; block < C::kValueBlocks; ++block)
            copy_tensor_3d(shared_.values[ring_.index][block], &p_.key_map, full,
                           C::kNope + block * 64, at, item.head, kEvictNormal);
        ring_.advance();
    }

    const AttendParams& p_;
    PromptShared<C>& shared_;
    PromptRing<C> ring_;
    std::uint32_t query_phase_ = 0;
};

// A warpgroup: 64 tokens of each item. Phases of a tile: score · softmax · accumulate; of an item:
// its tiles · store.
template <class C>
class PromptAttender {
  public:
    __device__ PromptAttender(const AttendParams& p, PromptShared<C>& shared, int group)
        : p_(p),
          shared_(shared),
          group_(group),
          lane_(static_cast<int>(threadIdx.x) % 32),
          row_(group * 64 + static_cast<int>(threadIdx.x) / 32 % 4 * 16 + lane_ / 4) {}

    __device__ void run() {
        if (group_ == 1) pass_turn();
        for (;;) {
            wait(&shared_.query_full, query_phase_);
            query_phase_ ^= 1;
            const PromptItem item = shared_.item;
            if (item.kind == ItemKind::end) return;
            attend(item);
        }
    }

  private:
    static constexpr int kScores = C::kKeys / 2;
    static constexpr int kSteps = C::kKeys / 16;
    static constexpr int kPieces = C::kValue / 128;
    using Scores = float[kScores];
    using Weights = std::uint32_t[kSteps][4];
    using Output = float[kPieces][64];

    __device__ static int uniform(int value) { return __shfl_sync(~0u, value, 0); }

    __device__ void attend(const PromptItem& item) {
        const int first = group_ * 64;
        const int last = min(first + 63, item.count - 1);
        const int reach = first < item.count ? item.visible(last) : 0;
        const int tiles = uniform((reach + C::kKeys - 1) / C::kKeys);
        // Tiles that all tokens see whole need no mask.
        const int whole = uniform(item.visible(first)) / C::kKeys;
        bound_[0] = item.visible(row_);
        bound_[1] = item.visible(row_ + 8);
        top_[0] = top_[1] = -INFINITY;
        sum_[0] = sum_[1] = 0.0f;
        Output out;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
            for (int i = 0; i < 64; ++i) out[piece][i] = 0.0f;
        if (tiles > 0) fold(tiles, whole, out);
        if (tiles == 0) arrive_as_warp(&shared_.query_free);
        // Keys that the other warpgroup alone sees.
        for (int tile = tiles; tile < item.tiles; ++tile) {
            take_turn();
            pass_turn();
            wait(&shared_.key_full[keys_.index], keys_.phase);
            release(shared_.key_free, keys_);
            wait(&shared_.value_full[values_.index], values_.phase);
            release(shared_.value_free, values_);
        }
        store(item, out);
    }

    __device__ void fold(int tiles, int whole, Output& out) {
        Scores scores;
        Weights weights;
        float shrink[2];
        wait(&shared_.key_full[keys_.index], keys_.phase);
        take_turn();
        if constexpr (C::kScaledRope) score_codes(scores);
        wgmma_begin();
        score(scores);
        pass_turn();
        wgmma_wait<0>();
        hold(scores);
        release(shared_.key_free, keys_);
        softmax(scores, 0, whole == 0, shrink);
        round(scores, weights);
#pragma unroll 1
        for (int tile = 1; tile < tiles; ++tile) {
            // Both waits stand before the products: a loop between these would serialise them.
            wait(&shared_.value_full[values_.index], values_.phase);
            wait(&shared_.key_full[keys_.index], keys_.phase);
            take_turn();
            if constexpr (C::kScaledRope) score_codes(scores);
            hold(scores);
            hold_all(out);
            wgmma_begin();
            score(scores);
            accumulate(weights, out);
            pass_turn();
            wgmma_wait<1>();
            hold(scores);
            release(shared_.key_free, keys_);
            softmax(scores, tile * C::kKeys, tile >= whole, shrink);
            wgmma_wait<0>();
            hold_all(out);
            release(shared_.value_free, values_);
            rescale(out, shrink);
            round(scores, weights);
        }
        arrive_as_warp(&shared_.query_free);
        wait(&shared_.value_full[values_.index], values_.phase);
        hold_all(out);
        wgmma_begin();
        accumulate(weights, out);
        wgmma_wait<0>();
        hold_all(out);
        release(shared_.value_free, values_);
    }

    // Warpgroups give their products to the tensor cores in turns, tile by tile: one takes softmax
    // while the other multiplies. Left to themselves they are 1 to 5 % slower.
    __device__ void take_turn() const { named_barrier(1 + group_, 256); }
    __device__ void pass_turn() const { arrive_named_barrier(2 - group_, 256); }

    __device__ static void hold_all(Output& out) {
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) hold(out[piece]);
    }

    __device__ static void release(Barrier (&free)[C::kStages], PromptRing<C>& ring) {
        arrive_as_warp(&free[ring.index]);
        ring.advance();
    }

    // Columns 16·kBegin … 16·kEnd - 1 of queries and keys.
    template <int kBegin, int kEnd>
    __device__ void score_columns(Scores& scores, bool add) const {
        const std::uint64_t query = descriptor(shared_address(shared_.query) + group_ * 64 * 128);
        const std::uint64_t keys = descriptor(shared_address(shared_.keys[keys_.index]));
#pragma unroll
        for (int step = kBegin; step < kEnd; ++step)
            wgmma_shared<C::kKeys>(
                scores, query + ((step / 4 * C::kQueryBlock + step % 4 * 32) >> 4),
                keys + ((step / 4 * C::kKeyBlock + step % 4 * 32) >> 4), add || step > kBegin);
        wgmma_commit();
    }
    __device__ void score(Scores& scores) const {
        if constexpr (C::kScaledRope)
            score_columns<0, C::kNope / 16>(scores, true);
        else
            score_columns<0, C::kColumns / 16>(scores, false);
    }
    // Rope columns that are codes come first, since their part of a score is still to be scaled.
    __device__ void score_codes(Scores& scores) const {
        hold(scores);
        wgmma_begin();
        score_columns<C::kNope / 16, C::kColumns / 16>(scores, false);
        wgmma_wait<0>();
        hold(scores);
#pragma unroll
        for (float& score : scores) score *= p_.rope_scale;
    }

    __device__ void accumulate(const Weights& weights, Output& out) const {
        const std::uint64_t values =
            descriptor(shared_address(shared_.values[values_.index]), C::kKeyBlock);
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece)
                wgmma_left_values(out[piece], weights[step],
                                  values + ((piece * 2 * C::kKeyBlock + step * 2048) >> 4));
        wgmma_commit();
    }

    // Scores in, probabilities out; hidden keys get exactly 0. Maxima are kept in powers of two, so
    // that what earlier tiles shrink by is exactly what they were taken relative to. A row that has
    // seen nothing keeps -inf; 0 stands in for it, so that no inf - inf arises.
    __device__ void softmax(Scores& scores, std::int32_t first, bool masked, float (&shrink)[2]) {
        if (masked) mask(scores, first);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float most = scores[2 * half];
#pragma unroll
            for (int i = 0; i < kScores; i += 4)
                most = fmaxf(most, fmaxf(scores[i + 2 * half], scores[i + 2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const float top = fmaxf(top_[half], most * p_.score_scale);
            const float base = top == -INFINITY ? 0.0f : top;
            shrink[half] = exp2_fast(top_[half] - base);
            top_[half] = top;
            float even = 0.0f;
            float odd = 0.0f;
#pragma unroll
            for (int i = 0; i < kScores; i += 4) {
                float& low = scores[i + 2 * half];
                float& high = scores[i + 2 * half + 1];
                low = exp2_fast(fmaf(low, p_.score_scale, -base));
                high = exp2_fast(fmaf(high, p_.score_scale, -base));
                even += low;
                odd += high;
            }
            sum_[half] = fmaf(sum_[half], shrink[half], even + odd);
        }
    }

    __device__ void mask(Scores& scores, std::int32_t first) const {
        const std::int32_t key = first + lane_ % 4 * 2;
#pragma unroll
        for (int i = 0; i < kScores; ++i)
            if (key + i / 4 * 8 + i % 2 >= bound_[i / 2 % 2]) scores[i] = -INFINITY;
    }

    // The sums' layout is that of a left operand.
    __device__ static void round(const Scores& scores, Weights& weights) {
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
            const __nv_bfloat162 pair = __floats2bfloat162_rn(scores[2 * i], scores[2 * i + 1]);
            weights[i / 4][i % 4] = reinterpret_cast<const std::uint32_t&>(pair);
        }
    }

    // Maxima seldom grow after the first tiles. Times one is no change, so a warp may pass.
    __device__ static void rescale(Output& out, const float (&shrink)[2]) {
        if (!__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
            for (int i = 0; i < 64; ++i) out[piece][i] *= shrink[i / 2 % 2];
    }

    __device__ void store(const PromptItem& item, Output& out) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float sum = sum_[half];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const int row = row_ + 8 * half;
            if (row >= item.count) continue;
            float factor = sum == 0.0f ? 0.0f : 1.0f / sum;
            float lse = sum == 0.0f ? -INFINITY : (top_[half] + log2f(sum)) * 0.693147181f;
            if (item.kind == ItemKind::not_causal) factor = lse = NAN;
            const std::int64_t packed =
                (std::int64_t{item.token} + row) * p_.heads + p_.first_head + item.head;
#pragma unroll
            for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
                for (int j = 0; j < 16; ++j)
                    store_pair(packed * C::kValue + piece * 128 + j * 8 + lane_ % 4 * 2,
                               out[piece][4 * j + 2 * half] * factor,
                               out[piece][4 * j + 2 * half + 1] * factor);
            if (p_.lse != nullptr && lane_ % 4 == 0) p_.lse[packed] = lse;
        }
    }

    // Hidden keys may turn the sign of a zero sum; + 0 drops it.
    __device__ void store_pair(std::int64_t index, float low, float high) const {
        low = __fadd_rn(low, 0.0f);
        high = __fadd_rn(high, 0.0f);
        if (p_.out_dtype == DType::f32)
            *reinterpret_cast<float2*>(p_.out + index * 4) = make_float2(low, high);
        else if (p_.out_dtype == DType::bf16)
            *reinterpret_cast<__nv_bfloat162*>(p_.out + index * 2) =
                __floats2bfloat162_rn(low, high);
        else
            *reinterpret_cast<__half2*>(p_.out + index * 2) = __floats2half2_rn(low, high);
    }

    const AttendParams& p_;
    PromptShared<C>& shared_;
    int group_, lane_, row_;
    PromptRing<C> keys_, values_;
    std::uint32_t query_phase_ = 0;
    std::int32_t bound_[2] = {};  // keys that this lane's two rows see
    float top_[2] = {};
    float sum_[2] = {};  // of this lane's columns
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    prompt_attention_kernel(const __grid_constant__ AttendParams p) {
    extern __shared__ __align__(1024) std::byte memory[];
    auto& shared = *reinterpret_cast<PromptShared<C>*>(memory);
    if (threadIdx.x == 0) {
        init_barrier(&shared.query_full, 1);
        init_barrier(&shared.query_free, 8 * kArrivalsOfWarp);
        for (int stage = 0; stage < C::kStages; ++stage) {
            init_barrier(&shared.key_full[stage], 1);
            init_barrier(&shared.value_full[stage], 1);
            init_barrier(&shared.key_free[stage], 8 * kArrivalsOfWarp);
            init_barrier(&shared.value_free[stage], 8 * kArrivalsOfWarp);
        }
        fence_barrier_init();
        prefetch_map(&p.query_map);
        prefetch_map(&p.key_map);
        prefetch_map(&p.rope_map);
    }
    wait_for_previous_kernel();
    __syncthreads();
    let_next_kernel_start();
    // The compiler must know that a warp has one role.
    const int role = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
    if (role == 0) {
        set_registers<C::kStartRegisters, C::kCopyRegisters>();
        if (threadIdx.x == 0) PromptCopier<C>(p, shared).run();
    } else {
        set_registers<C::kStartRegisters, C::kAttendRegisters>();
        PromptAttender<C>(p, shared, role - 1).run();
    }
}

}  // namespace espalier::mla::cuda
