// SPDX-License-Identifier: Apache-2.0
// The way into the engine: bounded, for any number of threads. Clients put requests and
// cancellations in; the engine's thread takes all of them between two steps. The one owner of the
// queue's limits. It also holds the copy of the engine's status that others may read. Outlives the
// engine as long as a stream refers to it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/mailbox.hpp"
#include "engine/request.hpp"
#include "engine/status.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::engine {

class Inbox {
  public:
    // In choices and prompt tokens that wait, here and at the scheduler. drafters: names, for the
    // status.
    Inbox(std::int64_t max_waiting, std::int64_t max_waiting_tokens,
          std::vector<std::string> drafters = {})
        : max_waiting_(max_waiting), max_waiting_tokens_(max_waiting_tokens) {
        status_.drafters = std::move(drafters);
    }

    struct Incoming {
        CheckedRequest request;
        std::shared_ptr<Mailbox> mailbox;
        schedule::Time arrived = 0;
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
    // False: the time was up first, or the engine stopped or failed and left requests unfinished.
    bool wait_until_idle(std::chrono::nanoseconds timeout);
    EngineStatus status() const;

    // The engine's thread. Unless it is busy anyway, waits for something to do, at most this long.
    void take(bool busy, std::chrono::nanoseconds timeout, Taken& taken);
    // Once what was taken is with the scheduler, which counts it from then on; and after a step.
    void report(Taken& taken, schedule::Time now, const schedule::Scheduler& scheduler,
                const EndCounts& ends);
    void report(const StepReport& step, schedule::Time began, schedule::Time now,
                const schedule::Scheduler& scheduler, const EndCounts& ends);
    // Nothing is taken any more; what is still here ends so.
    void close(EngineState state, const std::string& failure, const EndCounts& ends);

  private:
    bool open() const { return status_.state == EngineState::running; }
    Expected<void> check_room(const Request& request) const;
    void copy_numbers(const schedule::Scheduler& scheduler, const EndCounts& ends);

    const std::int64_t max_waiting_, max_waiting_tokens_;
    mutable std::mutex mutex_;
    std::condition_variable work_;  // for the engine's thread
    std::condition_variable idle_;  // for those who drain
    std::vector<Incoming> requests_;
    std::vector<std::shared_ptr<Mailbox>> cancelled_;
    // Tokens of requests that the scheduler does not count yet; they may have been taken.
    std::int64_t tokens_ = 0;
    bool stop_ = false;
    bool idle_now_ = true;
    bool unfinished_ = false;  // the engine ended with requests that had not
    EngineStatus status_;
};

}  // namespace espalier::engine
