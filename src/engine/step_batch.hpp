// SPDX-License-Identifier: Apache-2.0
// A plan laid out as one batch: chunks as they are, running requests as the trees chosen for them.
// Knows where each request's tokens lie in the batch afterwards. Used by Stepper; all
// memory is taken at creation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "accept/walk.hpp"
#include "base/error.hpp"
#include "batch/batch_builder.hpp"
#include "engine/speculation.hpp"
#include "schedule/plan.hpp"
#include "schedule/scheduler.hpp"
#include "speculate/tree.hpp"

namespace espalier::engine {

class StepBatch {
  public:
    explicit StepBatch(const schedule::SchedulerOptions& options);

    // The view borrows from this until the next build.
    Expected<batch::BatchView> build(const schedule::Plan& plan, const Speculation& speculation);

    // What request i of the plan verifies: its tree, or just the last token of its chunk.
    const speculate::Tree& tree(std::size_t request) const { return trees_[request]; }
    accept::TreeView tree_view(std::size_t request) const {
        return {trees_[request].parents(), trees_[request].tokens()};
    }
    // Index in the batch of the first token of plan.rows[row], and of its first gathered one among
    // those.
    std::int64_t first_token(std::size_t row) const { return builder_.first_token(row); }
    std::int64_t first_gather(std::size_t row) const { return builder_.first_gather(row); }

  private:
    Expected<void> add_tree(const schedule::PlannedRow& row, const speculate::Tree& tree);
    Expected<void> add_chunk(const schedule::PlannedRow& row);
    batch::RowSpec base(const schedule::PlannedRow& row) const;

    batch::BatchBuilder builder_;
    std::vector<speculate::Tree> trees_;  // by request of the plan
    std::vector<std::int32_t> counting_;  // 0, 1, 2 …: gather lists are parts of it
};

}  // namespace espalier::engine
