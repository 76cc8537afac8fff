// SPDX-License-Identifier: Apache-2.0
// Calls that a decoder layer is made of: seven that join operations and attention. The class
// defines each by single operations; a backend overrides those that it fuses, with the same bits,
// and knows alone what runs beside what on its device.
#pragma once

#include <cstdint>

#include "linalg/weight.hpp"
#include "mla/contract.hpp"
#include "ops/operations.hpp"

namespace espalier::ops {

// The norm of rows: out [T, D] = norm(row) in out's dtype; exact (may be empty) gets it in f32.
struct RowNorm {
    const float* weight = nullptr;  // [D]; null: no norm
    float epsilon = 0.0f;
    Matrix out;
    Matrix exact;
};

// One feed-forward network, or a stack of them. gate_up comes from pack_gated(); gate_up_room is
// scratch for [rows, 2·I] f32, gated [rows, I] the input of the down product, out [rows, D] f32 its
// result. On ranks a network has the rows of gate and up that the down product's segments here read
// (none: no data), and out is [segments · rows, D].
struct FeedForward {
    WeightView gate_up{};
    WeightView down{};
    Matrix gate_up_room{};
    Matrix gated{};
    Matrix out{};
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
    const ExpertDeal* deal = nullptr;  // of the plan and of the experts' stacks; null: not dealt
};

// Reads the residual once terms are added: a norm, and a router behind it (which reads norm.exact).
struct AfterTerms {
    RowNorm norm{};                      // without a weight: nothing
    const RouterCall* router = nullptr;  // with a norm
};

// Index keys of T tokens: the layer norm of input · wkᵀ, whose first 64 columns are rotated, into
// the batch's slots of their plane.
struct IndexKeysCall {
    WeightView w{};                      // wk; without data: the layer has no indexer
    Matrix keys;                         // room for [T, width] f32
    const float* norm_weight = nullptr;  // [width]
    const float* norm_bias = nullptr;
    float epsilon = 0.0f;
    bool interleaved = false;  // rope's pairs: (2i, 2i + 1), or (i, i + 32)
    mla::AppendCall append{};  // but for latent
};

// The choice of keys by the A absorbed tokens of a layer with an indexer.
struct IndexCall {
    WeightView q{};        // wq_b, of the normed low-rank queries; without data: nothing is chosen
    WeightView weights{};  // weights_proj, f32
    Matrix input;          // [A, hidden] f32: the layer's normed input, not rounded
    Matrix queries;        // room for [A, heads · width] f32
    Matrix q_act;          // [A, heads · width] act
    Matrix head_weights;   // [A, heads] f32
    bool interleaved = false;
    mla::SelectCall select{};  // but for q and weights
};

// Keys of T tokens: input · kv_aᵀ, whose latent columns (512 of DeepSeek) are normed and the 64
// behind them rotated, into the batch's slots of the cache.
struct KeysCall {
    WeightView w{};          // kv_a
    Matrix kv_a;             // [T, latent + 64] f32: room for the product
    RowNorm norm;            // out: room for [T, latent] f32
    Matrix cos_sin;          // [T, 64] f32
    Matrix key_rope;         // room for [T, 64] f32
    mla::AppendCall append;  // but for latent and rope, which the program fills in
    IndexKeysCall index{};
};

// Attention of T tokens, of which the first A are absorbed, the others decompressed.
struct AttentionCall {
    // A product of lower rank in front of the queries' and its norm; `low` without data: none.
    struct LowRank {
        WeightView low{};
        Matrix product;  // [T, q_lora] f32
        RowNorm norm;
    };
    LowRank low_rank{};
    IndexCall index{};
    WeightView q{};
    Matrix queries;  // room for [T, H·(nope + 64)] f32
    QueryScaling scaling{};
    const std::int32_t* position = nullptr;  // [T], with scaling
    Matrix cos_sin;                          // [T, 64] f32
    Matrix q_act;  // [T, H·(nope + 64)] act: nope and, decompressed, rotated rope
    WeightView absorb_key{};
    WeightView up_value{};
    Matrix q_absorbed;  // [A, H·(latent + 64)] act
    Matrix out_latent;  // [A, H·latent] act
    mla::AbsorbedCall absorbed;
    mla::DecompressedCall decompressed;
    Matrix out;  // [T, H·value] act
    WeightView o{};
    Matrix sums;  // [T, D] f32: of o; on ranks [segments · T, D]
    // On ranks whose heads are not the inputs of o's segments here: room for every head's output,
    // [T, H·value of all ranks] act.
    Matrix all_out{};

    std::int32_t heads() const { return absorbed.heads; }
    const KeyDims& key_dims() const { return absorbed.kv.dims; }
    std::int64_t nope() const { return q_act.cols / heads() - key_dims().rope; }
    // Rotated columns of the absorbed queries, one head's every key_dims().key().
    Matrix rope_to() const {
        return q_absorbed.columns(key_dims().latent, q_absorbed.cols - key_dims().latent);
    }
};

// On ranks (OpContext::ranks) terms are what this rank has computed, and add() exchanges them first
// (rank_terms.hpp).
class LayerProgram {
  public:
    explicit LayerProgram(const Operations& operations) : operations_(operations) {}
    virtual ~LayerProgram() = default;

    // Operations::pack for gated products: a matrix joins the gate's rows and the up rows.
    virtual Expected<linalg::Weight> pack_gated(Device& device, linalg::WeightStack stack) const;
    // True if decompressed attention reads both up-projections as one weight, which
    // pack_up_projection() makes. Otherwise each is packed like any other.
    virtual bool joins_up_projections() const { return false; }
    // A stack of `heads` matrices that lie one after another in `rows`, bf16: of every head the key
    // rows, then the value rows.
    virtual Expected<linalg::Weight> pack_up_projection(Device& device,
                                                        const linalg::WeightSource& rows,
                                                        std::int64_t heads) const;

    // With an indexer both are as the class has them: a backend that fuses them refuses such
    // models.
    virtual Expected<void> write_keys(OpContext& context, const mla::Kernels& kernels,
                                      const Matrix& input, const KeysCall& keys) const;
    // Over keys that are in the cache. Returns the terms of o.
    virtual Expected<Terms> attend(OpContext& context, const mla::Kernels& kernels,
                                   const Matrix& input, const AttentionCall& call) const;
    // write_keys, then attend, of one input.
    virtual Expected<Terms> write_keys_and_attend(OpContext& context, const mla::Kernels& kernels,
                                                  const Matrix& input, const KeysCall& keys,
                                                  const AttentionCall& call) const;
    // The terms of network.down, from x [T, D].
    virtual Terms feed_forward(OpContext& context, const Matrix& x,
                               const FeedForward& network) const;
    // The terms of the experts, whose plan add() has made, and of the shared expert (shared.out
    // empty: there is none), from x [T, D].
    virtual Terms experts(OpContext& context, const Matrix& x, const RouterCall& router,
                          const FeedForward& experts, const FeedForward& shared) const;
    // add_terms to the residual, then what comes after. The call behind attend, feed_forward or
    // experts.
    virtual void add(OpContext& context, const Terms& terms, const Matrix& residual,
                     const AfterTerms& after) const;

  protected:
    const Operations& operations() const { return operations_; }

  private:
    Terms dealt_experts(OpContext& context, const Matrix& x, const RouterCall& router,
                        const FeedForward& experts, Terms terms) const;
    SegmentSums sums_of(OpContext& context, const Matrix& x, const WeightView& w,
                        const Matrix& sums) const;

    const Operations& operations_;
};

}  // namespace espalier::ops
