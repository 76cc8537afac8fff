// SPDX-License-Identifier: Apache-2.0
// A plan laid out as one batch: chunks as they are, running requests as the trees chosen for them.
// Knows where each request's tokens lie in the batch afterwards. Used by Stepper; all
// memory is taken at creation.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "accept/walk.hpp"
#include "base/error.hpp"
#include "batch/batch_builder.hpp"
#include "engine/speculation.hpp"
#include "engine/table_rows.hpp"
#include "engine/target.hpp"
#include "schedule/plan.hpp"
#include "schedule/scheduler.hpp"
#include "speculate/tree.hpp"

namespace espalier::engine {

// The largest step that a scheduler of these options plans.
batch::StepCapacity step_capacity(const schedule::SchedulerOptions& options);

class StepBatch {
  public:
    explicit StepBatch(const schedule::SchedulerOptions& options);

    // Padded as the target wants it. Borrows from this, until the next build, and from the plan.
    Expected<batch::HostBatch> build(const schedule::Plan& plan, const Speculation& speculation,
                                     const Target& target);

    // Nodes that the request verifies: its tree, or just the last token of its chunk.
    const speculate::Tree& tree(PlanIndex request) const { return trees_[request]; }
    accept::TreeView tree_view(PlanIndex request) const {
        const speculate::Tree& tree = trees_[request];
        return {tree.parents(), tree.tokens(),
                std::span(origins_[request]).first(static_cast<std::size_t>(tree.size()))};
    }
    // Index in the batch of the first token of plan.rows[row].
    std::int64_t first_token(std::size_t row) const { return builder_.first_token(row); }

  private:
    Expected<void> add_tree(const schedule::PlannedRow& row, const speculate::Tree& tree);
    Expected<void> add_chunk(const schedule::PlannedRow& row);
    batch::RowSpec base(const schedule::PlannedRow& row);

    batch::BatchBuilder builder_;
    TableRows table_rows_;
    IndexedVector<PlanIndex, speculate::Tree> trees_;
    // Origins of the nodes of each request's tree.
    IndexedVector<PlanIndex, std::array<DraftOrigin, kMaxNodes>> origins_;
};

}  // namespace espalier::engine
