// SPDX-License-Identifier: Apache-2.0
// The attention library's contract: multi-head latent attention over a paged cache for ragged rows.
// docs/mla_contract.md is the text; this header is its types. The oracle (reference.cpp) and every
// kernel take the same calls and pass the same tests.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/cpu_features.hpp"
#include "base/error.hpp"
#include "base/numeric.hpp"
#include "base/op_context.hpp"
#include "linalg/packed.hpp"

namespace espalier::mla {

inline constexpr std::int64_t kLatent = 512;           // compressed key = value columns
inline constexpr std::int64_t kRope = 64;              // rotary key columns
inline constexpr std::int64_t kKey = kLatent + kRope;  // 576 columns of a cached slot
inline constexpr std::int64_t kNope = 128;   // decompressed key columns per head, without rope
inline constexpr std::int64_t kValue = 128;  // decompressed value columns per head
inline constexpr std::int64_t kQuery = kNope + kRope;  // 192
inline constexpr std::int64_t kMaxTail = 64;

enum class KvFormat : std::uint8_t { f32, bf16, fp16, fp8_tensor, fp8_token };
std::string_view name_of(KvFormat format);

// Bytes from one page to the next: [page_tokens][576] elements; fp8_token has planes (latent, rope,
// scales).
std::int64_t page_stride_bytes(KvFormat format, std::int64_t page_tokens);

// One layer's pages. Slot s of the pool lies in page s / page_tokens.
struct KvPages {
    std::byte* data = nullptr;
    KvFormat format = KvFormat::bf16;
    std::int32_t page_tokens = 64;  // 16, 32, 64 or 128
    std::int64_t page_stride = 0;   // bytes
    std::int64_t page_count = 0;
    float scale = 1.0f;  // fp8_tensor
};

enum class MaskKind : std::uint8_t { full, causal, tree, dense };

// The ragged rows of one call. All arrays of a call lie in the memory of the device that computes;
// host integers are capacities, so that a captured graph may be replayed with other lengths. Row b
// owns query tokens q_indptr[b] … q_indptr[b+1]-1 of the token arrays; tokens from q_indptr[rows]
// to token_end are padding: their out is 0 and their lse -inf. Tokens before q_indptr[0] belong to
// another call and are left alone. kv_len includes the row's own tokens.
struct RaggedRows {
    std::int32_t rows = 0;                      // B
    std::int64_t token_end = 0;                 // total_q_cap
    const std::int32_t* q_indptr = nullptr;     // [B+1]
    const std::int32_t* kv_len = nullptr;       // [B]
    const std::int32_t* block_table = nullptr;  // [B, block_stride]
    std::int64_t block_stride = 0;
    const MaskKind* mask = nullptr;          // [B]
    const std::int32_t* tail_len = nullptr;  // [B]; null: q_len
    const std::uint64_t* words = nullptr;    // [token_end], tree rows
    const std::uint8_t* custom_mask =
        nullptr;  // dense rows: [q_len × kv_len] at custom_mask_offset[b]
    const std::int64_t* custom_mask_offset = nullptr;
    std::int64_t custom_mask_len = 0;
    std::int32_t max_q_len = 0;  // capacities for workspace
    std::int32_t max_kv_len = 0;
    std::int32_t dcp_world = 1;  // context parallel: local slot c is global slot c·W + r
    std::int32_t dcp_rank = 0;
    const std::int32_t* global_kv_len = nullptr;  // [B]; null unless dcp_world > 1
};

// Entry 1. q [token_end, H, 576], out [token_end, H, 512], lse [token_end, H] natural log, or null.
struct AbsorbedCall {
    RaggedRows rows;
    std::int32_t heads = 0;
    const std::byte* q = nullptr;
    DType q_dtype = DType::bf16;
    float q_scale = 1.0f;  // e4m3 queries
    KvPages kv;
    float scale = 0.0f;
    std::byte* out = nullptr;
    DType out_dtype = DType::bf16;
    float* lse = nullptr;
    // A token's bits depend on its query and visible keys alone. The CPU always keeps this; on CUDA
    // it fixes the splits, at a price (docs/kernels/mla_decode.md).
    bool invariant = true;
};

// Entry 2: prompt segments, causal rows only. q [token_end, H, 192] (128 nope, 64 rope), out
// [token_end, H, 128]. K_nope = latent · up_key[h]ᵀ and V = latent · up_value[h]ᵀ, f32 sums rounded
// to bf16 (f32 stays f32); key blocks of 256 from slot 0, folded in order. A row with another mask
// is refused on the CPU; on CUDA, where the host cannot see masks, it gives NaN.
struct DecompressedCall {
    RaggedRows rows;
    std::int32_t heads = 0;
    const std::byte* q = nullptr;
    DType q_dtype = DType::bf16;
    KvPages kv;
    linalg::PackedView up_key;    // CPU: count = heads, n = 128, k = 512
    linalg::PackedView up_value;  // CPU: count = heads, n = 128, k = 512
    const std::byte* up_rows =
        nullptr;  // CUDA: bf16 [heads, 128 key rows then 128 value rows, 512]
    float scale = 0.0f;
    std::byte* out = nullptr;
    DType out_dtype = DType::bf16;
    float* lse = nullptr;
};

// Entry 3. latent [tokens, 512] and rope [tokens, 64], f32, rows latent_stride / rope_stride apart,
// into slot[token] (of the pool; < 0: skipped). What the format would hold as NaN or infinity
// becomes 0 and sets nonfinite[token] = 1 (otherwise 0; the array may be null). A slot beyond the
// pool is an error on the CPU; CUDA, which cannot look, skips it.
struct AppendCall {
    std::int64_t tokens = 0;
    const float* latent = nullptr;
    std::int64_t latent_stride = 0;
    const float* rope = nullptr;
    std::int64_t rope_stride = 0;
    const std::int64_t* slot = nullptr;
    KvPages kv;
    std::uint8_t* nonfinite = nullptr;
};

// Entry 4. For i ascending: slot destination[i] of the pool becomes slot source[i]. Along a row
// both ascend and the destination never lies behind the source, so no slot is overwritten before it
// is read. Moves from or to slots outside the pool: as for append.
struct CompactCall {
    std::int64_t moves = 0;
    const std::int64_t* source = nullptr;
    const std::int64_t* destination = nullptr;
    KvPages kv;
};

// The largest call that scratch must do for.
struct Capacities {
    std::int32_t heads = 0;
    std::int32_t rows = 0;
    std::int64_t tokens = 0;  // token_end
    std::int32_t max_q_len = 0;
    std::int32_t max_kv_len = 0;
    int workers = 1;  // threads of the pool
};

// What a device offers. Each call first checks its words (combination of formats, heads, shapes)
// and returns an error that names what it cannot do; nothing is silently ignored.
class Kernels {
  public:
    virtual ~Kernels() = default;
    virtual Expected<void> absorbed(OpContext& context, const AbsorbedCall& call) const = 0;
    virtual Expected<void> decompressed(OpContext& context, const DecompressedCall& call) const = 0;
    virtual Expected<void> append(OpContext& context, const AppendCall& call) const = 0;
    virtual Expected<void> compact(OpContext& context, const CompactCall& call) const = 0;
    // Arena bytes that any call within these capacities may take.
    virtual std::size_t scratch_bytes(const Capacities& most) const = 0;
};

// The oracle: double, plain loops, straight from the contract.
std::unique_ptr<Kernels> make_reference_kernels();
std::unique_ptr<Kernels> make_cpu_kernels(CpuVariant variant);
// Hopper. An error where the build has no CUDA backend or the machine no such GPU.
Expected<std::unique_ptr<Kernels>> make_cuda_kernels();

}  // namespace espalier::mla
