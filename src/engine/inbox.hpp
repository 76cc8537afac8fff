// SPDX-License-Identifier: Apache-2.0
// The way into the engine: bounded, for any number of threads. Clients put requests and
// cancellations in; the engine's thread takes all of them between two steps. It also holds what
// the engine tells about itself. Outlives the engine as long as a stream refers to it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "engine/mailbox.hpp"
#include "engine/request.hpp"
#include "engine/stepper.hpp"
#include "schedule/plan.hpp"

namespace espalier::engine {

enum class EngineState : std::uint8_t {
    running,
    draining,  // takes nothing new, finishes what it has
    stopped,
    failed,  // by an error of the program: takes nothing, has ended all it had
};

// Sums over all steps. Times in nanoseconds.
struct EngineTotals {
    std::int64_t requests = 0;       // in each step, summed
    std::int64_t drawing_steps = 0;  // of requests: output tokens are these and the accepted drafts
    std::int64_t accepted = 0;       // drafts
    std::int64_t moved = 0;          // slots
    // busy: the engine's thread, whenever it had a request: the steps and all between them.
    schedule::Time busy = 0, planning = 0, model = 0, sampling = 0;

    void add(const StepReport& step);
};

struct EngineStatus {
    EngineState state = EngineState::running;
    std::string failure;  // of state failed
    std::int64_t steps = 0;
    schedule::Time last_step = 0;  // on the engine's clock, when it ended: a heartbeat
    std::int64_t queued = 0;       // choices in the inbox, not yet with the scheduler
    schedule::Gauges gauges;
    schedule::Totals totals;
    StepReport report;  // of the last step
    EngineTotals sums;
};

class Inbox {
  public:
    // In choices and prompt tokens that wait, here and at the scheduler.
    Inbox(std::int64_t max_waiting, std::int64_t max_waiting_tokens)
        : max_waiting_(max_waiting), max_waiting_tokens_(max_waiting_tokens) {}

    struct Incoming {
        CheckedRequest request;
        std::shared_ptr<Mailbox> mailbox;
    };
    struct Taken {
        std::vector<Incoming> requests;
        std::vector<std::shared_ptr<Mailbox>> cancelled;
        std::int64_t choices = 0, tokens = 0;  // of the requests, until they are reported
        bool stop = false;
    };

    // Any thread. A refusal names both numbers, or the state.
    Expected<void> submit(Incoming incoming);
    void cancel(std::shared_ptr<Mailbox> mailbox);
    void start_draining();
    void start_stopping();
    // False: the time was up before the engine had finished all.
    bool wait_until_idle(std::chrono::nanoseconds timeout);
    EngineStatus status() const;

    // The engine's thread. Waits for something to do unless it is busy anyway.
    void take(bool busy, Taken& taken);
    // Once what was taken is with the scheduler, which counts it from then on; and after a step.
    void report(Taken& taken, const schedule::Scheduler& scheduler);
    void report(const StepReport& step, schedule::Time began, schedule::Time now,
                const schedule::Scheduler& scheduler);
    // Nothing is taken any more; what is still here ends so.
    void close(EngineState state, const std::string& failure);

  private:
    bool open() const { return status_.state == EngineState::running; }
    void copy_numbers(const schedule::Scheduler& scheduler);

    const std::int64_t max_waiting_, max_waiting_tokens_;
    mutable std::mutex mutex_;
    std::condition_variable work_;  // for the engine's thread
    std::condition_variable idle_;  // for those who drain
    std::vector<Incoming> requests_;
    std::vector<std::shared_ptr<Mailbox>> cancelled_;
    // Of requests that the scheduler does not count yet; they may have been taken.
    std::int64_t tokens_ = 0;
    bool stop_ = false;
    bool idle_now_ = true;
    EngineStatus status_;
};

}  // namespace espalier::engine
