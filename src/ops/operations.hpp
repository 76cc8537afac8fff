// SPDX-License-Identifier: Apache-2.0
// The operations a backend offers besides attention (mla/contract.hpp), each by itself: the
// definition. T is the batch's token capacity, a host number that is fixed for a captured step; pad
// tokens are computed like any other and mean nothing, except in the mixture of experts, which
// skips tokens whose row_of is negative. "act" below is the activation dtype: bf16 for bf16 and FP8
// weights, f32 otherwise. Sums are f32.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/block_format.hpp"
#include "base/check.hpp"
#include "base/error.hpp"
#include "base/matrix.hpp"
#include "base/op_context.hpp"
#include "linalg/store.hpp"
#include "linalg/weight.hpp"
#include "ops/draft_children.hpp"
#include "ops/draft_growth.hpp"
#include "ops/query_scaling.hpp"
#include "ops/routing.hpp"
#include "ops/sampling_batch.hpp"
#include "ops/terms.hpp"

namespace espalier::ops {

using linalg::Store;
using linalg::WeightView;

// Rows of an embedding as the checkpoint holds them: [vocabulary, hidden] f32, f16, bf16, or on a
// CPU blocks.
struct EmbeddingTable {
    const std::byte* data = nullptr;  // of the device
    DType dtype = DType::f32;
    std::int64_t vocabulary = 0;
    std::int64_t hidden = 0;
    BlockCode block = BlockCode::none;  // where there is one, in place of dtype
};

// Rows that are copied: arrays of the device, [count].
struct RowPairs {
    const std::int32_t* from = nullptr;  // -1: no pair
    const std::int32_t* to = nullptr;
    std::int64_t count = 0;
};

struct RopeRule {
    std::array<float, 32> inverse_frequency{};  // YaRN applied
    float magnitude = 1.0f;                     // multiplies cos and sin (YaRN's mscale ratio)
};

class Operations {
  public:
    virtual ~Operations() = default;
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
    // out [T, D] f32 = (x − mean) / sqrt(variance + epsilon) · weight + bias, for the keys of an
    // indexer, which a backend without it refuses (mla::Kernels::check_indexer); sums in double.
    virtual void layer_norm(OpContext& context, const Matrix& x, const float* weight,
                            const float* bias, float epsilon, const Matrix& out) const;
    // y [T, n] = x [T, k] · Wᵀ.
    virtual void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                         Store store) const = 0;
    // The same for a weight cut into segments, without their last sum: sums [segments · T, n] f32,
    // of segment s and row t at s · T + t. For backends whose ranks exchange terms (terms.hpp).
    virtual void segment_sums(OpContext&, const Matrix&, const WeightView&, const Matrix&) const {
        CHECK(false, "{} keeps no segments apart", name());
    }
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
    // Pairs (i, i + 32) rotated, otherwise as rope: the indexers of DeepSeek. Where layer_norm is.
    virtual void rope_halves(OpContext& context, const Matrix& from, std::int64_t from_step,
                             std::int32_t heads, const Matrix& cos_sin, const Matrix& to,
                             std::int64_t to_step) const;
    // queries [T, n] f32 *= scaling.at(position[t]). Only where scales_queries(): a model that
    // needs it meets that before its weights are read.
    virtual bool scales_queries() const { return false; }
    virtual void scale_queries(OpContext&, const std::int32_t*, const QueryScaling&,
                               const Matrix&) const {
        CHECK(false, "{} scales no queries", name());
    }
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
    // residual [T, D] f32 += the sum of the terms, in the order that terms.hpp defines.
    virtual void add_terms(OpContext& context, const Terms& terms,
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

    // Arena bytes that any operation within these capacities may take on a pool of `workers`.
    virtual std::size_t scratch_bytes(std::int64_t token_cap, std::int64_t gather_cap,
                                      std::int64_t vocabulary, int workers) const = 0;
    // Arena bytes with which a product of that many rows and inputs is faster; with less it has the
    // same bits.
    virtual std::size_t product_scratch_bytes(std::int64_t, std::int64_t) const { return 0; }
};

}  // namespace espalier::ops
