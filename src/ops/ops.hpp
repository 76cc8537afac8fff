// SPDX-License-Identifier: Apache-2.0
// The operations a backend offers besides attention (mla/contract.hpp). T is the batch's token
// capacity, a host number that is fixed for a captured step; pad tokens are computed like any other
// and mean nothing, except in the mixture of experts, which skips tokens whose row_of is
// negative. "act" below is the activation dtype: bf16 for bf16 and FP8 weights, f32 otherwise. Sums
// are f32.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "base/cpu_features.hpp"
#include "base/error.hpp"
#include "base/matrix.hpp"
#include "base/op_context.hpp"
#include "linalg/overlap.hpp"
#include "linalg/store.hpp"
#include "linalg/weight.hpp"
#include "ops/draft_children.hpp"
#include "ops/draft_growth.hpp"
#include "ops/sampling_batch.hpp"

namespace espalier::ops {

using linalg::Overlap;
using linalg::Store;
using linalg::WeightView;

// Rows of an embedding as the checkpoint holds them: [vocabulary, hidden] f32, f16 or bf16.
struct EmbeddingTable {
    const std::byte* data = nullptr;  // of the device
    DType dtype = DType::f32;
    std::int64_t vocabulary = 0;
    std::int64_t hidden = 0;
};

enum class RouterScore : std::uint8_t { softmax, sigmoid };
enum class GroupScore : std::uint8_t {
    none,         // greedy: no groups
    maximum,      // V2 group-limited: a group's best score
    top_two_sum,  // V3: sum of a group's two best corrected scores
};

// Routing keeps a token's scores on the stack; loaders refuse configurations beyond these (V3: 256,
// Kimi K2: 384).
inline constexpr std::int32_t kMaxExperts = 1024;
inline constexpr std::int32_t kMaxTopK = 64;

// DeepSeek's own order of operations: choose by (corrected) score, weights are the uncorrected
// scores, normalised if asked, × scaling. Published code differs in corners that no published
// checkpoint reaches, so the rule says it all:
// - V2: DeepSeek's modeling_deepseek.py scales only when it does not normalise; transformers always
//   scales and never normalises. All V2 checkpoints have norm_topk_prob = false, where both agree;
//   config.json with both is refused.
// - DeepSeek's code normalises only if top_k > 1, transformers' V3 always: config.json with one
//   expert per token and norm_topk_prob is refused.
// - Groups not chosen are masked with -inf, as DeepSeek and transformers (5.22) do.
struct RouterRule {
    RouterScore score = RouterScore::sigmoid;
    GroupScore group_score = GroupScore::none;
    std::int32_t experts = 0;
    std::int32_t top_k = 0;
    std::int32_t groups = 1;      // experts / groups neighbours form a group
    std::int32_t top_groups = 1;  // groups kept; the others are masked with -inf
    bool normalise = false;       // weights divided by their sum + 1e-20
    float scaling = 1.0f;         // weights multiplied at last
};

// Where each (token, choice) pair goes when pairs are sorted by expert, tokens ascending inside an
// expert.
struct ExpertPlan {
    std::int32_t* expert;  // [T, top_k] ids, each token's ascending (they are summed in this order)
    float* weight;         // [T, top_k]
    std::int32_t* indptr;  // [experts + 1]: pairs of expert e are indptr[e] … indptr[e+1]-1
    std::int32_t* source_token;  // [T · top_k]: pair → token
    std::int32_t* pair_of;       // [T, top_k]: (token, choice) → pair, or -1 for pads
};

// Rows that are copied: arrays of the device, [count].
struct RowPairs {
    const std::int32_t* from = nullptr;  // -1: no pair
    const std::int32_t* to = nullptr;
    std::int64_t count = 0;
};

// The norm that follows an addition to a row: out [T, D] = norm(row) in out's dtype; exact (may be
// empty) gets it in f32.
struct RowNorm {
    const float* weight = nullptr;  // [D]
    float epsilon = 0.0f;
    Matrix out;
    Matrix exact;
};

// A second product of the same x; none where y has no data.
struct BesideProduct {
    WeightView w{};
    Matrix y{};
};

// One feed-forward network, or a stack of them. gate_up comes from pack_gated(); gate_up_room is
// scratch for [rows, 2·I] f32, gated [rows, I] the input of the down product, out [rows, D] f32 its
// result.
struct FeedForward {
    WeightView gate_up{};
    WeightView down{};
    Matrix gate_up_room{};
    Matrix gated{};
    Matrix out{};
};

// Where a product puts queries: q [T, heads · (width + 64)] f32 has room for them unsplit, the
// other fields are split_queries()'s. Rows beyond those of rope_to get their rotated columns in
// q_act, behind the head's other columns, as decompressed attention reads them.
struct QueryPlaces {
    Matrix q;
    std::int32_t heads = 0;
    std::int64_t width = 0;
    Matrix cos_sin;
    Matrix q_act;
    Matrix rope_to;
    std::int64_t rope_step = 0;
};

// The router's product of normed rows, to logits [T, experts] f32, and where route puts what it
// makes of them.
struct RouterCall {
    WeightView w{};
    Matrix logits;
    const float* bias = nullptr;
    RouterRule rule;
    const std::int32_t* row_of = nullptr;
    ExpertPlan plan{};
};

struct RopeRule {
    std::array<float, 32> inverse_frequency{};  // YaRN applied
    float magnitude = 1.0f;                     // multiplies cos and sin (YaRN's mscale ratio)
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual std::string name() const = 0;  // "cpu avx512_bf16"

    // Weights in this backend's own layout, in the device's memory. What it cannot multiply is an
    // error that names the format.
    virtual Expected<linalg::Weight> pack(Device& device, linalg::WeightStack stack) const = 0;

    // out [T, hidden] f32 = table[tokens[t]].
    virtual void embed(OpContext& context, const std::int32_t* tokens, const EmbeddingTable& table,
                       const Matrix& out) const = 0;
    // out [T, D] = x / sqrt(mean(x²) + epsilon) · weight [D], in out's dtype; exact (may be empty)
    // gets it in f32.
    virtual void rms_norm(OpContext& context, const Matrix& x, const float* weight, float epsilon,
                          const Matrix& out, const Matrix& exact) const = 0;
    // y [T, n] = x [T, k] · Wᵀ.
    virtual void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                         Store store) const = 0;
    // Per head h: y columns [h·y_step, +n) from x columns [h·x_step, +k) with matrix h.
    virtual void stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                                 const WeightView& w, const Matrix& y,
                                 std::int64_t y_step) const = 0;
    // Pairs of expert e: y [pairs, n] from x[source_token[pair]] with matrix e (source_token null:
    // x[pair]).
    virtual void expert_product(OpContext& context, const Matrix& x,
                                const std::int32_t* source_token, const std::int32_t* indptr,
                                const WeightView& w, const Matrix& y) const = 0;
    // cos_sin [T, 64] f32: (cos, sin) pairs of position[t] · inverse_frequency[i], angle formed in
    // f32.
    virtual void rope_angles(OpContext& context, const std::int32_t* position, std::int64_t tokens,
                             const RopeRule& rule, const Matrix& cos_sin) const = 0;
    // Interleaved pairs (2i, 2i+1) rotated: for each head h, to columns [h·to_step, +64) from
    // [h·from_step, +64). from is f32; to has any activation dtype and may be from itself.
    virtual void rope(OpContext& context, const Matrix& from, std::int64_t from_step,
                      std::int32_t heads, const Matrix& cos_sin, const Matrix& to,
                      std::int64_t to_step) const = 0;
    // Copies columns [h·from_step, +width) f32 to [h·to_step, +width) in to's dtype.
    virtual void convert(OpContext& context, const Matrix& from, std::int64_t from_step,
                         std::int32_t heads, std::int64_t width, const Matrix& to,
                         std::int64_t to_step) const = 0;
    // out [rows, I] act = silu(gate) · up, gate_up [rows, 2·I] f32: gate first, then up.
    virtual void swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out) const = 0;
    // logits [T, experts] f32, bias [experts] or null; fills the plan for tokens with row_of[t] ≥
    // 0; a pad gets expert -1, weight 0, pair -1. Ties go to the lower index. A token with a NaN
    // score gets experts 0 … top_k-1 with NaN weights: its own result is NaN, no other token's
    // changes.
    virtual void route(OpContext& context, const Matrix& logits, const float* bias,
                       const RouterRule& rule, const std::int32_t* row_of,
                       const ExpertPlan& plan) const = 0;
    // out [T, D] f32 = (Σ weight · expert_out[pair], ascending expert id) + shared [T, D] (may be
    // empty); 0 for a pad without shared.
    virtual void combine_experts(OpContext& context, const Matrix& expert_out,
                                 const RouterRule& rule, const ExpertPlan& plan,
                                 const Matrix& shared, const Matrix& out) const = 0;
    // residual [T, D] f32 += the sum of all ranks' partial [T, D] f32; one rank's is the sum.
    virtual void reduce_add(OpContext& context, const Matrix& partial,
                            const Matrix& residual) const = 0;
    // out [G, D] = x[index[g]]; a negative index gives zeros.
    virtual void gather_rows(OpContext& context, const Matrix& x, const std::int32_t* index,
                             const Matrix& out) const = 0;
    // out[to[i]] = x[from[i]] for every pair with from[i] ≥ 0. No row is written twice.
    virtual void copy_rows(OpContext& context, const Matrix& x, const RowPairs& pairs,
                           const Matrix& out) const = 0;
    // logits [G, V] f32 → one Draw per node, and its node's alternatives; see ops/sampling.hpp.
    virtual void sample_nodes(OpContext& context, const Matrix& logits,
                              const SamplingBatch& batch) const = 0;
    // logits [G, Vd] f32 of a draft model → children [G, width]; see ops/draft_children.hpp.
    virtual void draft_children(OpContext& context, const Matrix& logits,
                                const SamplingBatch& batch, const DraftVocabulary& vocabulary,
                                const DraftRule& rule, DraftChild* children) const = 0;
    // A level of draft trees: what was found below their frontiers, and the batch of the next; see
    // ops/draft_growth.hpp.
    virtual void grow_trees(OpContext& context, const DraftGrowth& growth,
                            const FoundChildren& found) const = 0;
    virtual void lay_frontiers(OpContext& context, const DraftGrowth& growth,
                               const FrontierBatch& batch, const FrontierDraws& draws) const = 0;

    // Sequences of operations that a GPU runs as one kernel. Defined in composed.cpp as the single
    // operations, whose bits an override must have.

    // As pack(), for gated products: a matrix joins the gate's rows and the up rows.
    virtual Expected<linalg::Weight> pack_gated(Device& device, linalg::WeightStack stack) const;
    // out [T, I] = swiglu(x · Wᵀ), w from pack_gated(). gate_up: room for [T, 2·I] f32.
    virtual void gated_product(OpContext& context, const Matrix& x, const WeightView& w,
                               const Matrix& gate_up, const Matrix& out, Overlap overlap) const;
    // gated_product of an expert_product.
    virtual void gated_expert_product(OpContext& context, const Matrix& x,
                                      const std::int32_t* source_token, const std::int32_t* indptr,
                                      const WeightView& w, const Matrix& gate_up, const Matrix& out,
                                      Overlap overlap) const;
    // product (y = x · Wᵀ) and stacked_product that may overlap their neighbours in the stream.
    virtual void overlapping_product(OpContext& context, const Matrix& x, const WeightView& w,
                                     const Matrix& y, Overlap overlap) const;
    virtual void overlapping_stacked_product(OpContext& context, const Matrix& x,
                                             std::int64_t x_step, const WeightView& w,
                                             const Matrix& y, std::int64_t y_step,
                                             Overlap overlap) const;
    // y = x · Wᵀ and the product beside it.
    virtual void product_pair(OpContext& context, const Matrix& x, const WeightView& w,
                              const Matrix& y, const BesideProduct& beside) const;
    // A product whose results are queries, split; and the product beside it. q may stay unwritten.
    // True: what comes behind starts only when all in front of this has ended (Overlap).
    virtual bool query_product(OpContext& context, const Matrix& x, const WeightView& w,
                               const QueryPlaces& to, const BesideProduct& beside) const;
    // reduce_add, then the norm of the sum.
    virtual void reduce_add_norm(OpContext& context, const Matrix& partial, const Matrix& residual,
                                 const RowNorm& norm) const;
    // reduce_add_norm, then the router's product of norm.exact, then route. Returns what the
    // operation behind may do if it reads norm.out and nothing newer.
    virtual Overlap reduce_add_norm_route(OpContext& context, const Matrix& partial,
                                          const Matrix& residual, const RowNorm& norm,
                                          const RouterCall& router) const;
    // out [T, D] of a network from x: gated_product, then product; overlap is the first one's,
    // down_overlap the second one's.
    virtual void feed_forward(OpContext& context, const Matrix& x, const FeedForward& network,
                              Overlap overlap, Overlap down_overlap) const;
    // out [pairs, D] of the experts from x: gated_expert_product, whose overlap it is, then
    // expert_product.
    virtual void expert_feed_forward(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                                     const FeedForward& experts, Overlap overlap) const;
    // experts.out [pairs, D] from x and the pairs' experts, shared.out [T, D] from x and the shared
    // expert (shared.out empty: there is none). beside_router: what reads x and nothing newer.
    virtual void expert_layer(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                              const FeedForward& experts, const FeedForward& shared,
                              Overlap beside_router) const;
    // combine_experts to partial, or without writing it, then reduce_add_norm. Comes behind an
    // expert product (expert_out's), and the plan was there before that.
    virtual void combine_add_norm(OpContext& context, const Matrix& expert_out,
                                  const RouterRule& rule, const ExpertPlan& plan,
                                  const Matrix& shared, const Matrix& partial,
                                  const Matrix& residual, const RowNorm& norm) const;
    // Splits kv_a [T, D + 64] f32: norm.out [T, D] from its first columns, key_rope [T, 64] f32
    // rotated from the last 64.
    virtual void split_latent(OpContext& context, const Matrix& kv_a, const RowNorm& norm,
                              const Matrix& cos_sin, const Matrix& key_rope) const;
    // Splits every head's query in q [T, heads · (width + 64)] f32: the first `width` columns to
    // the same places of q_act, the other 64 rotated to columns [h·rope_step, +64) of rope_to.
    virtual void split_queries(OpContext& context, const Matrix& q, std::int32_t heads,
                               std::int64_t width, const Matrix& cos_sin, const Matrix& q_act,
                               const Matrix& rope_to, std::int64_t rope_step) const;
    // Arena bytes that any operation within these capacities may take on a pool of `workers`.
    virtual std::size_t scratch_bytes(std::int64_t token_cap, std::int64_t gather_cap,
                                      std::int64_t vocabulary, int workers) const = 0;
    // Arena bytes with which a product of that many rows and inputs is faster; with less it has the
    // same bits.
    virtual std::size_t product_scratch_bytes(std::int64_t, std::int64_t) const { return 0; }
};

// Plain loops over weights as a checkpoint has them (WeightLayout::rows). Products have the bits of
// the CPU's portable variant.
std::unique_ptr<Backend> make_reference_backend();
std::unique_ptr<Backend> make_cpu_backend(CpuVariant variant);

}  // namespace espalier::ops
