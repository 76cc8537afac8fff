// SPDX-License-Identifier: Apache-2.0
// What tests may see of a scheduler's requests and the engine has no use for.
#pragma once

#include "schedule/scheduler.hpp"

namespace espalier::schedule {

class SchedulerInspection {
  public:
    static const State& state(const Scheduler& scheduler, std::int32_t slot) {
        return scheduler.live_job(slot).state;
    }
    static std::int64_t preemptions(const Scheduler& scheduler, std::int32_t slot) {
        return scheduler.live_job(slot).preemptions;
    }
    // Of max_tokens.
    static std::int64_t tokens_left(const Scheduler& scheduler, std::int32_t slot) {
        const Job& job = scheduler.live_job(slot);
        return job.max_length - job.length();
    }
};

inline const State& state_of(const Scheduler& scheduler, std::int32_t slot) {
    return SchedulerInspection::state(scheduler, slot);
}
inline std::int64_t preemptions_of(const Scheduler& scheduler, std::int32_t slot) {
    return SchedulerInspection::preemptions(scheduler, slot);
}

}  // namespace espalier::schedule
