// SPDX-License-Identifier: Apache-2.0
// A layer program whose experts are dealt to two pretended ranks in one process: each computes the
// rows of its own experts in its own memory, the rows are copied to where both can read them, and
// the seam adds (ops/terms.hpp).
#pragma once

#include <algorithm>
#include <vector>

#include "ops/layer_program.hpp"

namespace espalier::ops {

class TwoRanks final : public LayerProgram {
  public:
    static constexpr std::int32_t kRanks = 2;

    // owner: [experts], 0 or 1.
    TwoRanks(const Operations& operations, std::vector<std::int32_t> owner)
        : LayerProgram(operations), owner_(std::move(owner)) {}

    Terms experts(OpContext& context, const Matrix& x, const RouterCall& router,
                  const FeedForward& experts, const FeedForward& shared) const override {
        const std::int64_t pairs = experts.out.rows, width = experts.out.cols;
        pair_of_.assign(router.plan.pair_of, router.plan.pair_of + pairs);
        rows_.assign(static_cast<std::size_t>(kRanks * pairs * width), kUnread);
        const Matrix rows = Matrix::of(rows_.data(), kRanks * pairs, width);
        for (std::int32_t rank = 0; rank < kRanks; ++rank) {
            const std::vector<float> own = run_rank(context, rank, x, router, experts);
            std::ranges::copy(own, rows.row<float>(rank * pairs));
        }
        Terms terms{.experts = {rows, router.rule.top_k, router.plan, owner_.data(), pairs}};
        terms.experts.plan.pair_of = pair_of_.data();
        if (shared.out.data != nullptr) terms.segments = feed_forward(context, x, shared).segments;
        return terms;
    }

  private:
    static constexpr float kUnread = 1e30f;

    // Rows of one rank's experts, in the order of its own list; pair_of_ of these choices.
    std::vector<float> run_rank(OpContext& context, std::int32_t rank, const Matrix& x,
                                const RouterCall& router, const FeedForward& experts) const {
        const ExpertPlan& plan = router.plan;
        std::vector<std::int32_t> indptr = {0}, source_token, own_row(pair_of_.size(), -1);
        for (std::size_t e = 0; e < owner_.size(); ++e) {
            for (std::int32_t pair = plan.indptr[e]; pair < plan.indptr[e + 1]; ++pair) {
                if (owner_[e] != rank) continue;
                own_row[static_cast<std::size_t>(pair)] =
                    static_cast<std::int32_t>(source_token.size());
                source_token.push_back(plan.source_token[pair]);
            }
            indptr.push_back(static_cast<std::int32_t>(source_token.size()));
        }
        for (std::size_t i = 0; i < pair_of_.size(); ++i)
            if (const std::int32_t pair = plan.pair_of[i]; pair >= 0)
                if (const std::int32_t row = own_row[static_cast<std::size_t>(pair)]; row >= 0)
                    pair_of_[i] = row;
        return expert_rows(context, x, indptr, source_token, experts);
    }

    std::vector<float> expert_rows(OpContext& context, const Matrix& x,
                                   const std::vector<std::int32_t>& indptr,
                                   const std::vector<std::int32_t>& source_token,
                                   const FeedForward& experts) const {
        const auto rows = static_cast<std::int64_t>(source_token.size());
        const std::int64_t inner = experts.gated.cols, width = experts.out.cols;
        const DType act = experts.gated.dtype;
        std::vector<float> gate_up(static_cast<std::size_t>(rows * 2 * inner)),
            out(static_cast<std::size_t>(rows * width));
        std::vector<std::byte> gated(static_cast<std::size_t>(rows * inner) * bytes_of(act));
        const Matrix room = Matrix::of(gate_up.data(), rows, 2 * inner);
        const Matrix between{gated.data(), act, rows, inner, inner};
        operations().expert_product(context, x, source_token.data(), indptr.data(), experts.gate_up,
                                    room);
        operations().swiglu(context, room, between);
        operations().expert_product(context, between, nullptr, indptr.data(), experts.down,
                                    Matrix::of(out.data(), rows, width));
        return out;
    }

    std::vector<std::int32_t> owner_;
    mutable std::vector<std::int32_t> pair_of_;
    mutable std::vector<float> rows_;
};

}  // namespace espalier::ops
