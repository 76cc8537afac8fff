// SPDX-License-Identifier: Apache-2.0
// Operations that a GPU runs in one launch or beside their neighbours in the stream, with the bits
// that they have one by one. The layer program (layer_program.cpp) puts them together.
#pragma once

#include <cstdint>

#include "base/op_context.hpp"
#include "ops/layer_program.hpp"

namespace espalier::ops::cuda {

// A second product of the same x; none where y has no data.
struct BesideProduct {
    WeightView w{};
    Matrix y{};
};

// Places of queries that a product gives: q [T, heads · (width + 64)] f32 has room for them
// unsplit, the other fields are split_queries()'s. Rows beyond those of rope_to get their rotated
// columns in q_act, behind the head's other columns, as decompressed attention reads them.
struct QueryPlaces {
    Matrix q;
    std::int32_t heads = 0;
    std::int64_t width = 0;
    Matrix cos_sin;
    Matrix q_act;
    Matrix rope_to;
    std::int64_t rope_step = 0;
};

// out [T, I] = swiglu(x · Wᵀ), w from pack_gated(). gate_up: room for [T, 2·I] f32.
void gated_product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& gate_up,
                   const Matrix& out);
// gated_product of an expert_product.
void gated_expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                          const std::int32_t* indptr, const WeightView& w, const Matrix& gate_up,
                          const Matrix& out);
// y = x · Wᵀ and the product beside it.
void product_pair(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                  const BesideProduct& beside);
// A product whose results are queries, split; and the product beside it. q may stay unwritten.
// holds_back: what an operation behind reads early (LaunchNeeds). Returns what a small kernel
// behind the product has written, if one has split them: worth holding back, since it is there
// soon.
Ranges query_product(OpContext& context, const Matrix& x, const WeightView& w,
                     const QueryPlaces& to, const BesideProduct& beside, const Ranges& holds_back);
// gated_product, then product.
void feed_forward(OpContext& context, const Matrix& x, const FeedForward& network,
                  const Ranges& holds_back = {});
// experts.out [pairs, D] from x and the pairs' experts, shared.out [T, D] from x and the shared
// expert (shared.out empty: there is none).
void expert_layer(OpContext& context, const Matrix& x, const RouterCall& router,
                  const FeedForward& experts, const FeedForward& shared);
// residual += partial, norm, the router's product of norm.exact, route. arrived: as in kernels.hpp.
void sum_norm_route(OpContext& context, const Matrix& partial, const Matrix& residual,
                    const RowNorm& norm, const RouterCall& router, std::uint32_t* arrived);

}  // namespace espalier::ops::cuda
