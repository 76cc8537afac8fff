// SPDX-License-Identifier: Apache-2.0
// The seam in front of the residual: what o, down and the experts give arrives as terms, never as
// totals, and Operations::add_terms is where they are added. The order is part of the definition,
// so it does not matter who computed a term:
//   1. Σ weight · row over a token's experts, ascending expert id;
//   2. the total of a product's segments, ascending from segment 0, added to 1 (the shared expert
//      comes last);
//   3. that sum, added to the residual.
// One rank has one segment, which is the product's result, and one owner of all rows. A rank that
// added two terms by itself would leave this order. An adapter's product beside o, down or an
// expert would be one more term of this sum.
#pragma once

#include <cstdint>

#include "base/matrix.hpp"
#include "ops/routing.hpp"

namespace espalier::ops {

// Sums of one product whose inputs are cut into segments.
struct SegmentSums {
    Matrix sums;             // [count · T, D] f32: row s·T + t is token t's sum of segment s
    std::int32_t count = 0;  // 0: there is no such product, or on ranks no segment of it here
    // Segments of the whole product on all ranks, of which linalg::part_of says whose they are; 0:
    // `count`, all here.
    std::int32_t whole = 0;
};

// Outputs of experts. A token's i-th choice is expert e = plan.expert[t, i]; its output is row
// plan.pair_of[t, i] (negative: none) among the rows of e's owner.
struct ExpertRows {
    Matrix rows;             // [owners · owner_rows, D] f32; no data: there are no experts
    std::int32_t top_k = 0;  // choices of a token
    ExpertPlan plan{};       // expert, weight, pair_of
    const std::int32_t* owner = nullptr;  // [experts]; null: one owner has all
    std::int64_t owner_rows = 0;          // rows of an owner, with `owner`
    // Rows lie by place and each rank has computed its own; null: all are computed.
    const ExpertDeal* deal = nullptr;
};

struct Terms {
    ExpertRows experts{};
    SegmentSums segments{};
};

// Row of `experts.rows` with the output of a choice (t · top_k + i); -1: none.
constexpr std::int64_t row_of_choice(const ExpertRows& experts, std::int64_t choice) {
    const std::int64_t row = experts.plan.pair_of[choice];
    if (row < 0 || experts.owner == nullptr) return row;
    return experts.owner[experts.plan.expert[choice]] * experts.owner_rows + row;
}

}  // namespace espalier::ops
