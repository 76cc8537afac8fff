// SPDX-License-Identifier: Apache-2.0
// The exchange between ranks inside a layer, in front of the sum (terms.hpp): every rank gathers
// the terms that the others have computed and adds all of them in the one-rank order. Only bytes
// travel, so bits do not depend on the number of ranks or on who computed what.
//
// Calls here are collectives over memory that the host reads: all ranks make them in the same order
// with the same shapes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/matrix.hpp"
#include "base/op_context.hpp"
#include "ops/operations.hpp"
#include "ops/routing.hpp"

namespace espalier::ops {

// Null where one rank has the whole model.
parallel::Ranks* ranks_of(const OpContext& context);
int rank_of(const OpContext& context);

// Sorts a plan's pairs, and its indptr, by the experts' places.
void deal_pairs(const ExpertDeal& deal, const RouterRule& rule, std::int64_t tokens,
                const ExpertPlan& plan);

// residual [T, D] += the terms of all ranks.
void add_rank_terms(const Operations& operations, OpContext& context, const Terms& terms,
                    const Matrix& residual);

// all [T, C · ranks] = the ranks' mine [T, C] side by side, ascending. Rows lie without gaps.
void gather_columns(OpContext& context, const Matrix& mine, const Matrix& all);

// y [T, n] f32 = x · Wᵀ of a weight whose n outputs are dealt (linalg::outputs_of); w has this
// rank's, mine [T, w.n] f32 is room. Without ranks: the plain product.
void dealt_product(const Operations& operations, OpContext& context, const Matrix& x,
                   const WeightView& w, const Matrix& mine, const Matrix& y);

// Arena bytes that these calls take. widest: bytes of one row (token) of what is gathered.
std::size_t rank_scratch_bytes(std::int64_t widest);

}  // namespace espalier::ops
