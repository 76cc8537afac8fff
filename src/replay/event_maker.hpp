// SPDX-License-Identifier: Apache-2.0
// Turns what an engine shows its observer into events of a trace. The recorder of a
// trace and the replayer that compares with one both derive from it, so both see the same.
#pragma once

#include "engine/observer.hpp"
#include "trace/step.hpp"

namespace espalier::replay {

class EventMaker : public engine::StepObserver {
  public:
    void submitted(const engine::CheckedRequest& request, std::span<const schedule::RequestId> ids,
                   schedule::Time now) final;
    void cancelled(const schedule::RequestId& id, schedule::Time now) final;
    void ended(const schedule::RequestId& id, const engine::Ending& ending,
               const accept::Usage& usage) final;
    void chosen(const schedule::RequestId& id, const speculate::Tree& tree,
                std::span<const DraftOrigin> origins) final;
    void walked(const engine::WalkedStep& step) final;
    void stepped(const engine::StepReport& report, const schedule::Gauges& gauges) final;

  protected:
    virtual void take(trace::Submission submission, std::span<const schedule::RequestId> ids) = 0;
    virtual void take(trace::Cancellation cancellation) = 0;
    // May take its lists; they are cleared for the next step.
    virtual void take(trace::Step& step) = 0;
    virtual void note_end(const schedule::RequestId&) {}

  private:
    trace::Step step_;
};

}  // namespace espalier::replay
