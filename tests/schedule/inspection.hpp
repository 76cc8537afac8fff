// SPDX-License-Identifier: Apache-2.0
// What tests may see of a scheduler's requests and the engine has no use for.
#pragma once

#include <iterator>

#include "schedule/scheduler.hpp"

namespace espalier::schedule {

class SchedulerInspection {
  public:
    static const State& state(const Scheduler& scheduler, RequestSlot slot) {
        return scheduler.live_job(slot).state;
    }
    static std::int64_t preemptions(const Scheduler& scheduler, RequestSlot slot) {
        return scheduler.live_job(slot).preemptions;
    }
    // Rest of max_tokens.
    static std::int64_t tokens_left(const Scheduler& scheduler, RequestSlot slot) {
        const Job& job = scheduler.live_job(slot);
        return job.max_length - job.length();
    }
    static std::int64_t free_slots(const Scheduler& scheduler) {
        return std::ssize(scheduler.free_slots_);
    }
};

// Questions of the engine's edge and queue before they submit: does the request fit alone, and is
// there room for it now?
inline bool edge_takes(const Scheduler& scheduler, const Request& request) {
    const SchedulerOptions& options = scheduler.options();
    const Gauges gauges = scheduler.gauges();
    const std::int64_t prompt = std::ssize(request.prompt);
    return request.max_tokens <= options.max_model_len - prompt &&
           cache::pages_for(written_slots(prompt, request.max_tokens)) <= gauges.pages.total &&
           gauges.waiting + request.choices <= options.max_waiting &&
           gauges.waiting_tokens + prompt * request.choices <= options.max_waiting_tokens &&
           request.choices <= SchedulerInspection::free_slots(scheduler);
}

inline const State& state_of(const Scheduler& scheduler, RequestSlot slot) {
    return SchedulerInspection::state(scheduler, slot);
}
inline std::int64_t preemptions_of(const Scheduler& scheduler, RequestSlot slot) {
    return SchedulerInspection::preemptions(scheduler, slot);
}

}  // namespace espalier::schedule
