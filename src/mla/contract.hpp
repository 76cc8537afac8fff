// SPDX-License-Identifier: Apache-2.0
// The attention library's contract: multi-head latent attention over a paged cache for ragged rows.
// docs/mla_contract.md is the text; this header is its types. The oracle (reference.cpp) and every
// kernel take the same calls and pass the same tests.
#pragma once

#include <memory>

#include "base/cpu_features.hpp"
#include "base/error.hpp"
#include "base/op_context.hpp"
#include "linalg/weight.hpp"
#include "mla/types.hpp"

namespace espalier::mla {

// Entry 1. q [token_end, H, latent + rope], out [token_end, H, latent] of kv.dims: those of
// kKeyDims on the CPU, 512 + 64 on CUDA, any for the oracle; lse [token_end, H] natural log, or
// null.
struct AbsorbedCall {
    RaggedRows rows;
    KeyLists lists;  // the oracle and the CPU: keys by list, as dense attention over it
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
    // CUDA: how many multiprocessors the call may take, so that other work can run beside it; 0:
    // all of them. It changes no bits of an invariant call.
    std::int32_t multiprocessors = 0;
    // CUDA: workspace for the partial results of an invariant call, in bytes; 0: 250 MB. A call
    // that may have more of them is several launches. It changes no bits.
    std::int64_t partial_bytes = 0;
    // CUDA: the step's plan, plan_bytes() on the device, filled by plan(); the layers of a step
    // share it. Null: the call makes its own.
    std::byte* plan = nullptr;
    // CUDA, invariant calls with a plan: of the cache, the appends in front of the call on its
    // context have written the rows' own last q_len slots alone. The call then may ask for its
    // first keys while the operation in front ends, where the context's order knows that the rest
    // is there, and needs that end for the queries alone. Two such calls never run at the same time
    // unless `multiprocessors` leaves both room.
    bool history_stands = false;
};

// Entry 2: prompt segments, causal rows only. q [token_end, H, nope + rope], out [token_end, H,
// value], of head_dims(): 128 and 128, 192 and 256 (on CUDA with bf16 queries) or, on the CPU,
// any of kHeadDims; the oracle takes any. K_nope = latent · up_key[h]ᵀ and V = latent ·
// up_value[h]ᵀ, f32 sums rounded to bf16 (f32 stays f32); tiles of keys from slot 0, folded in
// order. A row with another mask is refused on the CPU; on CUDA, where the host cannot see masks,
// it gives NaN.
struct DecompressedCall {
    RaggedRows rows;
    std::int32_t heads = 0;
    const std::byte* q = nullptr;
    DType q_dtype = DType::bf16;
    KvPages kv;
    // count = heads, n = nope and value, k = latent each, laid out as panels on the CPU and as rows
    // on CUDA, whose kernels read both halves of W_kv_b where a checkpoint has them: bf16 [heads,
    // key rows then value rows, 512].
    linalg::WeightView up_key;
    linalg::WeightView up_value;
    float scale = 0.0f;
    std::byte* out = nullptr;
    DType out_dtype = DType::bf16;
    float* lse = nullptr;

    HeadDims head_dims() const { return {up_key.n, up_value.n}; }
};

// Entry 3. latent [tokens, latent] and rope [tokens, rope] of kv.dims, f32, rows latent_stride /
// rope_stride apart, into slot[token] (of the pool; < 0: skipped). What the format would hold as
// NaN or infinity becomes 0 and sets nonfinite[token] = 1; other flags stay as they are, so that
// they gather over the layers of a step if the caller clears them once (the array may be null). A
// slot beyond the pool is an error on the CPU; CUDA, which cannot look, skips it.
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

// Entry 4, of slots of any widths. For i ascending: slot destination[i] of the pool becomes slot
// source[i]. Along a row both ascend and the destination never lies behind the source, so no slot
// is overwritten before it is read. Moves from or to slots outside the pool: as for append.
struct CompactCall {
    std::int64_t moves = 0;
    const std::int64_t* source = nullptr;
    const std::int64_t* destination = nullptr;
    KvPages kv;
};

// Entry 5. The keys that tokens of sparse attention choose: of those a token sees, the top_k of
// highest index score, ties to the lower slot, in ascending order. Its score for a key is
//   Σ_h weights[h] · weight_scale · max(0, scale · dot(q[h], key))
// over ascending heads; −0 counts as 0, NaN as less than all numbers, and sets nonfinite[token]
// = 1. A score depends on the token's query and weights and on the key alone, so the choice does on
// what the token sees: not on the batch, nor on a tree's other branches. A token that sees at most
// top_k keys gets count −1: it attends to all of them.
struct SelectCall {
    RaggedRows rows;                 // of any mask but a dense one
    std::int32_t heads = 0;          // of the indexer
    const std::byte* q = nullptr;    // [token_end, heads, width]
    DType q_dtype = DType::bf16;     // or f32
    const float* weights = nullptr;  // [token_end, heads]
    float weight_scale = 1.0f;
    KvPages keys;  // bf16 or f32, of dims {width, 0}
    float scale = 0.0f;
    std::int64_t top_k = 0;
    KeyLists lists;                     // stride ≥ top_k
    std::uint8_t* nonfinite = nullptr;  // [token_end]
};

// The largest call that scratch must do for.
struct Capacities {
    std::int32_t heads = 0;
    HeadDims head_dims = {};  // of the decompressed entry
    std::int32_t rows = 0;
    std::int64_t tokens = 0;  // token_end
    std::int32_t max_q_len = 0;
    std::int32_t max_kv_len = 0;
    std::int64_t total_splits = 0;   // 0: derived, as in RaggedRows
    std::int64_t partial_bytes = 0;  // as in AbsorbedCall
    int workers = 1;                 // threads of the pool
    bool invariant = true;           // as absorbed calls are, all of them
    bool dense = false;              // calls may bring a custom_mask
    bool decompressed = true;        // there may be decompressed calls too
    std::int32_t index_heads = 0;    // of select calls; 0: there are none
    std::int64_t index_width = 0;
};

Capacities capacities_of(const AbsorbedCall& call);

// Calls that a device offers. Each first checks its words (combination of formats, heads, shapes)
// and returns an error that names what it cannot do; nothing is silently ignored.
class Kernels {
  public:
    virtual ~Kernels() = default;
    virtual Expected<void> absorbed(OpContext& context, const AbsorbedCall& call) const = 0;
    // Fills call.plan from the lengths; devices that need none do nothing.
    virtual Expected<void> plan(OpContext&, const AbsorbedCall&) const { return {}; }
    virtual std::size_t plan_bytes(const Capacities&) const { return 0; }
    virtual Expected<void> decompressed(OpContext& context, const DecompressedCall& call) const = 0;
    virtual Expected<void> append(OpContext& context, const AppendCall& call) const = 0;
    virtual Expected<void> compact(OpContext& context, const CompactCall& call) const = 0;
    // Those that have no such entry refuse it, and say so before a model's weights are read.
    virtual Expected<void> select(OpContext& context, const SelectCall& call) const;
    virtual Expected<void> check_indexer() const;
    // True if attention over such keys and heads is possible here; each call checks it again.
    virtual Expected<void> check_dims(const KeyDims&, const HeadDims&) const { return {}; }
    // Arena bytes that any call within these capacities may take.
    virtual std::size_t scratch_bytes(const Capacities& most) const = 0;
};

// The oracle: double, plain loops, straight from the contract.
std::unique_ptr<Kernels> make_reference_kernels();
std::unique_ptr<Kernels> make_cpu_kernels(CpuVariant variant);
// For calls on that device, of which they keep the facts alone. An error where the build has no
// CUDA backend or the device is no Hopper GPU.
Expected<std::unique_ptr<Kernels>> make_cuda_kernels(const Device& device);

}  // namespace espalier::mla
