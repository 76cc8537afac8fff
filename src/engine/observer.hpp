// SPDX-License-Identifier: Apache-2.0
// An observer of a stepper: all that is needed to run the same steps again, as it happens. Called
// on the stepper's thread, so an observer must neither wait nor call back. References are good
// during the call. Without an observer none of this costs anything.
#pragma once

#include <span>
#include <string_view>

#include "accept/walk.hpp"
#include "engine/receiver.hpp"
#include "engine/request.hpp"
#include "engine/step_batch.hpp"
#include "engine/step_report.hpp"
#include "schedule/plan.hpp"
#include "speculate/tree.hpp"

namespace espalier::engine {

// A step before advance(): what was planned and what came of it.
struct WalkedStep {
    const schedule::Plan& plan;
    const StepBatch& batch;                     // has trees only if nothing failed
    std::span<const accept::WalkResult> walks;  // [plan.requests]
    std::string_view failure;                   // why the whole step failed; empty: it did not
};

class StepObserver {
  public:
    virtual ~StepObserver() = default;

    // Between steps, after the scheduler took it. ids: one per choice, with ascending serials.
    virtual void submitted(const CheckedRequest& request, std::span<const schedule::RequestId> ids,
                           schedule::Time now) = 0;
    // Between steps, of a request that is live; its ended() follows.
    virtual void cancelled(const schedule::RequestId& id, schedule::Time now) = 0;
    // A choice is over, within a step or by a cancellation.
    virtual void ended(const schedule::RequestId& id, const Ending& ending,
                       const accept::Usage& usage) = 0;

    // Within a step, in this order.
    // For each running request that asks for drafts: the tree it wants to verify, and who proposed
    // each node. The plan may grant only its first nodes.
    virtual void chosen(const schedule::RequestId& id, const speculate::Tree& tree,
                        std::span<const DraftOrigin> origins) = 0;
    // Not called when the plan is empty.
    virtual void walked(const WalkedStep& step) = 0;
    virtual void stepped(const StepReport& report, const schedule::Gauges& gauges) = 0;
};

}  // namespace espalier::engine
