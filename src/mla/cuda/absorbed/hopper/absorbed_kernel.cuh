// SPDX-License-Identifier: Apache-2.0
// Absorbed attention on Hopper: what its roles share. Four warpgroups hand tiles of 64 keys on
// through shared memory, for 64 packed query rows (tokens × heads) at a time:
//
//   copies ──keys──▶ scores: S = Q·Kᵀ, mask, softmax ──P──▶ output: O += P·V, two halves of 256
//
// One thread block per multiprocessor takes its share of the work (schedule.cuh) item by item; an
// item is a run of tiles of one row for one block of packed rows.
//
// Over FP8 caches the products are turned round, Sᵀ = K·Qᵀ and Oᵀ += Vᵀ·Pᵀ: codes are widened to
// fp16 on their way into registers, as the left operand (fp8_score_role.cuh,
// fp8_output_role.cuh). Two warpgroups score, a tile each, and widen the queries before
// (query_widener.cuh); blocks have 32 packed rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/cuda/barrier.cuh"
#include "base/cuda/hopper/warpgroup.cuh"
#include "base/cuda/memory.cuh"
#include "mla/cuda/absorbed/schedule.cuh"

namespace espalier::mla::cuda {

// Tiles and queries lie in blocks of 64 rows of 128 bytes (64 columns), swizzled: nine blocks.
inline constexpr int kBlockBytes = kTileKeys * 128;

// The softmax works with finite numbers and -inf; nothing is ever subtracted from -inf.
__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }
// The number that exponents are relative to; 0 where nothing was seen (largest score -inf).
__device__ __forceinline__ float finite_or_zero(float reference) {
    return reference == minus_infinity() ? 0.0f : reference;
}

template <KvFormat kFormat>
struct Traits {
    static constexpr bool kFp8 = kFormat == KvFormat::fp8_tensor || kFormat == KvFormat::fp8_token;
    static constexpr bool kTokenScale = kFormat == KvFormat::fp8_token;
    static constexpr Element kElement = kFormat == KvFormat::bf16 ? Element::bf16 : Element::f16;
    // A tile of FP8 codes: four blocks of 128 columns, then the rope, bf16 or codes.
    static constexpr int kTileBytes = (kFp8 ? 5 : 9) * kBlockBytes;
    static constexpr int kRopePlace = 4 * kBlockBytes;
    static constexpr int kStages = kFp8 ? 4 : 2;  // all that 227 KB have room for
    static constexpr int kRows = kFp8 ? kFp8BlockRows : kBlockRows;
    static constexpr int kQueryBlock = kRows * 128;  // bytes of 64 columns
    static constexpr int kScorers = kFp8 ? 2 : 1;    // warpgroups, a tile each
    static constexpr int kThreads = 128 * (1 + kScorers + 2);
};

template <KvFormat kFormat>
struct SharedLayout {
    using T = Traits<kFormat>;
    static constexpr int kFp8Rows = T::kFp8 ? T::kRows : 1;
    static constexpr int kScaledKeys = T::kTokenScale ? kTileKeys : 1;
    alignas(1024) std::byte keys[T::kStages][T::kTileBytes];
    alignas(1024) std::byte query[9 * T::kQueryBlock];
    alignas(1024) std::byte weights[T::kScorers][T::kRows * 128];
    float factor[T::kRows];  // what the output is rescaled by before this tile
    float final_factor[T::kRows];
    float final_lse[T::kRows];                 // invariant: of a split
    float query_scale[kFp8Rows];               // FP8: a power of two per packed row
    float reference[kFp8Rows];                 // FP8: of the weights
    float by_warp[4 * T::kScorers][kFp8Rows];  // FP8: what the scoring warps tell each other
    std::uint64_t visible[T::kScorers][kFp8Rows];
    float key_scale[T::kStages][kScaledKeys];  // fp8_token
    Item items[2];
    std::int32_t seen[2][T::kRows];  // of an item with kOwnKeys, by its tokens
    Item deferred[2];                // invariant: merges that wait for other thread blocks
    Counter counted[2];              // invariant: their counters before this thread block's own
    Barrier keys_full[T::kStages];
    Barrier keys_free[T::kStages];
    Barrier query_full, query_free;  // 16-bit caches
    Barrier weights_full[T::kScorers], weights_free[T::kScorers];
    Barrier final_full, final_free;
    Barrier scorers;  // FP8: where those that score meet
    Barrier item_full[2], item_free[2];
    int rescale[4];  // per warp of the scores
    // FP8, where splits end without a meeting (splits_go_on): sums as each scoring warp leaves them
    // to the outputs, and references of splits by turns.
    float sum_of_warp[T::kFp8 ? 4 * T::kScorers : 1][kFp8Rows];
    float turn_reference[T::kFp8 ? 2 : 1][kFp8Rows];
};

// Over FP8 codes, whether those that score go on where a split ends, and the outputs find for
// themselves what its sums come to. In blocks of 32 packed rows the scores are what is waited for.
// In blocks of 16 memory is, and a short call wants the outputs to find it ready: 1 × 1,024 took
// 10.6 µs instead of 9.9.
constexpr bool splits_go_on(int columns, bool invariant) {
    return invariant && columns == kFp8BlockRows;
}

inline constexpr float kLn2 = 0.693147180559945309f;

template <Element kElement>
__device__ __forceinline__ std::uint32_t pack(float a, float b) {
    if constexpr (kElement == Element::bf16) {
        const __nv_bfloat162 both = __floats2bfloat162_rn(a, b);
        return reinterpret_cast<const std::uint32_t&>(both);
    } else {
        const __half2 both = __floats2half2_rn(a, b);
        return reinterpret_cast<const std::uint32_t&>(both);
    }
}

template <Element kElement>
__device__ __forceinline__ float2 unpack(std::uint32_t both) {
    if constexpr (kElement == Element::bf16)
        return float2{__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000u)};
    else
        return __half22float2(reinterpret_cast<const __half2&>(both));
}

// Neighbouring columns of the output. A zero is always +0.
template <DType kDType>
__device__ __forceinline__ void store_pair(std::byte* out, long long index, float a, float b) {
    a += 0.0f;
    b += 0.0f;
    if constexpr (kDType == DType::f32)
        *reinterpret_cast<float2*>(reinterpret_cast<float*>(out) + index) = float2{a, b};
    else
        *reinterpret_cast<std::uint32_t*>(out + index * 2) =
            pack < kDType == DType::bf16 ? Element::bf16 : Element::f16 > (a, b);
}
__device__ __forceinline__ void store_pair(std::byte* out, DType dtype, long long index, float a,
                                           float b) {
    if (dtype == DType::f32) return store_pair<DType::f32>(out, index, a, b);
    a += 0.0f;
    b += 0.0f;
    *reinterpret_cast<std::uint32_t*>(out + index * 2) =
        dtype == DType::bf16 ? pack<Element::bf16>(a, b) : pack<Element::f16>(a, b);
}
template <DType kDType>
__device__ __forceinline__ void store_quad(std::byte* out, long long index, float4 quad) {
    quad = {quad.x + 0.0f, quad.y + 0.0f, quad.z + 0.0f, quad.w + 0.0f};
    constexpr Element kElement = kDType == DType::bf16 ? Element::bf16 : Element::f16;
    if constexpr (kDType == DType::f32)
        *reinterpret_cast<float4*>(reinterpret_cast<float*>(out) + index) = quad;
    else
        *reinterpret_cast<uint2*>(out + index * 2) =
            uint2{pack<kElement>(quad.x, quad.y), pack<kElement>(quad.z, quad.w)};
}
__device__ __forceinline__ void store_quad(std::byte* out, DType dtype, long long index,
                                           float4 quad) {
    if (dtype == DType::f32) return store_quad<DType::f32>(out, index, quad);
    if (dtype == DType::bf16) return store_quad<DType::bf16>(out, index, quad);
    store_quad<DType::f16>(out, index, quad);
}

// The reference of the weights is raised when they exceed it twofold: the output is rescaled less
// often. More (it was 2^8) costs accuracy: the largest weight is exact only where it is a power of
// two, and an ideal kernel's always is; 2^8 lost 1 dB of signal over noise, twofold loses 0.05.
inline constexpr float kHeadroom = 1.0f;
// A raised reference makes the largest weight 2^6 in fp16, whose smallest is 2^-24: a hundred
// thousand keys 2^30 below the largest are 1e-4 of a sum.
template <Element kElement>
inline constexpr float kLargestAfterRaise = kElement == Element::f16 ? 6.0f : 0.0f;
inline constexpr int kScoreBarrier = 1;  // named, of the scoring warpgroup
inline constexpr int kOutputThreads = 256;
inline constexpr int kOutputBarrier = 2;  // named, of the output warpgroups
inline constexpr int kMaskBarrier = 3;    // and 4: named, of one scoring warpgroup over codes
inline constexpr int kVoteBarrier = 5;    // named, of all that score over codes
inline constexpr int kMergeBarrier = 6;   // named, of all that score and put out

// 2^shift with |shift| ≤ 126, and the shift that brings `largest` into [2^14, 2^15).
__device__ __forceinline__ float power_of_two(int shift) {
    return __int_as_float((127 + shift) << 23);
}
__device__ __forceinline__ int shift_below_2_15(float largest) {
    const int exponent = (__float_as_int(largest) >> 23) - 127;  // -127: zero or subnormal
    return exponent == 128 ? 0 : min(14 - exponent, 120);
}

// Zeros rows `valid` … 63 of a tile of kBlocks blocks of 128 bytes. All threads of a warpgroup.
template <int kBlocks>
__device__ inline void clear_key_rows(std::byte* keys, int valid) {
    const int chunks = (kTileKeys - valid) * 8;  // of 16 bytes, per block
    for (int block = 0; block < kBlocks; ++block)
        for (int i = threadIdx.x % 128; i < chunks; i += 128)
            *reinterpret_cast<int4*>(keys + block * kTileKeys * 128 + valid * 128 + i * 16) =
                int4{};
}

// The first `count` of a tile's keys, bit by bit.
__device__ inline std::uint64_t ones(long long count) {
    if (count <= 0) return 0;
    return count >= kTileKeys ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

// Keys that a row's one token sees: all keys of its item, which were gathered where they do not lie
// in one piece. A dense mask that the call does not have hides all.
__device__ inline std::uint64_t keys_of_one_token(const Item& item, int tile) {
    return item.mask == static_cast<int>(MaskKind::dense) ? 0 : ones(item.keys - tile * kTileKeys);
}

// Mask of one packed row: docs/mla_contract.md, word for word, in 64-bit arithmetic.
class RowMask {
  public:
    // `seen`: by an item with kOwnKeys, which says how many keys each of its tokens sees.
    __device__ RowMask(const AbsorbedParams& p, const Item& item, const std::int32_t* seen,
                       int column)
        : p_(p), row_(item.row), keys_(item.keys), mask_(static_cast<MaskKind>(item.mask)) {
        token_ = token_of(p, item.row_first + column);
        if (item.mask == kOwnKeys) keys_ = seen[token_ - token_of(p, item.row_first)];
        world_ = p.rows.dcp_world;
        long long all = item.keys;  // over all ranks
        if (world_ > 1 && item.gathered < 0) all = p.rows.global_kv_len[item.row];
        if (mask_ == MaskKind::causal) bound_ = all - (item.tokens - 1) + token_;
        if (mask_ == MaskKind::tree) {
            const int tail = tail_slots(p, item.row, item.tokens);
            bound_ = all - tail;
            word_ = tail_word(p, item.first_token + token_, tail);
        }
    }
    // Which of the 64 keys of a tile are visible, bit by bit. Dense masks and ranks are looked up
    // key by key, in equal shares by the kLanes lanes that share a row; the rest is arithmetic.
    template <int kLanes>
    __device__ std::uint64_t visible(int tile) const {
        const int first = tile * kTileKeys;
        const std::uint64_t inside = ones(keys_ - first);
        if (mask_ == MaskKind::full || static_cast<int>(mask_) == kOwnKeys) return inside;
        if (mask_ == MaskKind::dense || world_ > 1) return inside & looked_up<kLanes>(first);
        const long long before = bound_ - first;  // keys of the tile that are visible anyway
        std::uint64_t tail = 0;
        if (before >= 0 && before < kTileKeys) tail = word_ << before;
        if (before < 0 && before > -kTileKeys) tail = word_ >> -before;
        return inside & (ones(before) | tail);
    }

  private:
    template <int kLanes>
    __device__ std::uint64_t looked_up(int first) const {
        constexpr int kShare = kTileKeys / kLanes;
        std::uint64_t bits = 0;
        const int begin = static_cast<int>(threadIdx.x) % kLanes * kShare;
#pragma unroll 1
        for (int i = begin; i < begin + kShare; ++i)
            if (sees(first + i)) bits |= std::uint64_t{1} << i;
        for (int lanes = 1; lanes < kLanes; lanes *= 2) bits |= __shfl_xor_sync(~0u, bits, lanes);
        return bits;
    }
    __device__ bool sees(int key) const {
        if (key >= keys_) return false;
        if (mask_ == MaskKind::dense) return dense_visible(p_, row_, keys_, token_, key);
        const long long bit = key * world_ + p_.rows.dcp_rank - bound_;
        return bit < 0 || (bit < kMaxTail && ((word_ >> bit) & 1) != 0);
    }

    const AbsorbedParams& p_;
    int row_, keys_, token_;
    MaskKind mask_;
    long long world_ = 1;
    long long bound_ = 0;     // places before it are visible
    std::uint64_t word_ = 0;  // from there on, by bit; 0: none
};

// Facts that an item states by flags where the partition is invariant, and always where it is not.
template <bool kInvariant>
__device__ __forceinline__ bool item_says(const Item& item, int flag) {
    return !kInvariant || (item.flags & flag) != 0;
}

// True if an item's tiles may have been gathered, for which products wait by a fence.
template <bool kInvariant>
__device__ __forceinline__ bool may_gather(const AbsorbedParams& p, const Item& item) {
    return p.rows.first_slot != 0 || (kInvariant && item.gathered >= 0);
}

// A number that all lanes of a warp agree on, known as such to the compiler: matrix products under
// branches that might diverge are serialised.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(~0u, value, 0); }

// The splits of an item: their tiles, and where their results go (-1: to the output itself).
template <bool kInvariant>
class SplitRun {
  public:
    __device__ explicit SplitRun(const Item& item) : item_(item), end_(uniform(item.tile_begin)) {}
    __device__ bool next() {
        if (++split_ == uniform(item_.run)) return false;
        const int tile_end = uniform(item_.tile_end);
        end_ = last() ? tile_end : min(end_ + uniform(item_.split_tiles), tile_end);
        return true;
    }
    __device__ bool last() const { return split_ + 1 == uniform(item_.run); }
    __device__ int end() const { return end_; }
    __device__ int slot() const {
        if (item_.slot < 0) return item_.slot;
        return item_.slot + split_ * ((item_.columns + kStripRows - 1) / kStripRows);
    }

  private:
    const Item& item_;
    int end_;
    int split_ = -1;
};
// The flexible partition's items have one.
template <>
class SplitRun<false> {
  public:
    __device__ explicit SplitRun(const Item& item) : item_(item) {}
    __device__ bool next() {
        const bool first = first_;
        first_ = false;
        return first;
    }
    __device__ int end() const { return uniform(item_.tile_end); }
    __device__ int slot() const { return item_.slot; }
    __device__ static constexpr bool last() { return true; }

  private:
    const Item& item_;
    bool first_ = true;
};

// A descriptor made where all lanes agree on it: otherwise the compiler makes one for each product,
// in registers that every lane has, and products wait for it.
class UniformDescriptor {
  public:
    __device__ explicit UniformDescriptor(const void* place) {
        low_ = static_cast<std::uint32_t>(descriptor(shared_address(place)));
        asm volatile("" : "+r"(low_));
        low_ = static_cast<std::uint32_t>(uniform(static_cast<int>(low_)));
    }
    // This many bytes further on.
    __device__ std::uint64_t at(int bytes) const {
        constexpr std::uint64_t kHigh = descriptor_high();
        return kHigh << 32 | (low_ + static_cast<std::uint32_t>(bytes >> 4));
    }

  private:
    std::uint32_t low_;
};

// Counts the uses of a ring and knows which phase of its barriers comes next.
template <int kDepth>
struct Ring {
    int index = 0;
    std::uint32_t phase = 0;
    __device__ void advance() {
        if (++index == kDepth) {
            index = 0;
            phase ^= 1;
        }
    }
};

}  // namespace espalier::mla::cuda
