// SPDX-License-Identifier: Apache-2.0
#include "engine/inbox.hpp"

#include <algorithm>
#include <utility>

namespace espalier::engine {
namespace {

using namespace std::chrono_literals;

std::int64_t prompt_tokens(const Request& request) {
    return static_cast<std::int64_t>(request.prompt.size()) * request.choices;
}

}  // namespace

Expected<void> Inbox::submit(Incoming incoming) {
    const Request& request = incoming.request.request;
    {
        const std::lock_guard lock(mutex_);
        if (status_.state == EngineState::failed)
            return fail(ErrorKind::exhausted, "the engine is out of order: {}", status_.failure);
        if (!open() || stop_)
            return fail(ErrorKind::exhausted, "the engine is shutting down and takes no requests");
        if (auto room = check_room(request); !room) {
            status_.sums.refused += request.choices;
            return room;
        }
        status_.queued += request.choices;
        tokens_ += prompt_tokens(request);
        idle_now_ = false;
        requests_.push_back(std::move(incoming));
    }
    work_.notify_one();
    return {};
}

// Under the lock. No single field of the request is at fault.
Expected<void> Inbox::check_room(const Request& request) const {
    const std::int64_t waiting = status_.queued + status_.gauges.waiting + request.choices;
    if (waiting > max_waiting_)
        return fail(ErrorKind::exhausted, "the queue would have {} requests; its limit is {}",
                    waiting, max_waiting_);
    const std::int64_t tokens = tokens_ + status_.gauges.waiting_tokens + prompt_tokens(request);
    if (tokens > max_waiting_tokens_)
        return fail(ErrorKind::exhausted, "the queue would have {} tokens; its limit is {}", tokens,
                    max_waiting_tokens_);
    return {};
}

void Inbox::cancel(std::shared_ptr<Mailbox> mailbox) {
    {
        const std::lock_guard lock(mutex_);
        if (status_.state == EngineState::stopped || status_.state == EngineState::failed) return;
        cancelled_.push_back(std::move(mailbox));
    }
    work_.notify_one();
}

void Inbox::start_draining() {
    const std::lock_guard lock(mutex_);
    if (open()) status_.state = EngineState::draining;
}

void Inbox::start_stopping() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    work_.notify_one();
}

bool Inbox::wait_until_idle(std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    // More would overflow the clock.
    const std::chrono::nanoseconds bounded = std::min<std::chrono::nanoseconds>(timeout, 24h);
    return idle_.wait_for(lock, bounded, [this] { return idle_now_; }) && !unfinished_;
}

EngineStatus Inbox::status() const {
    const std::lock_guard lock(mutex_);
    return status_;
}

void Inbox::take(bool busy, std::chrono::nanoseconds timeout, Taken& taken) {
    taken.requests.clear();
    taken.cancelled.clear();
    std::unique_lock lock(mutex_);
    if (!busy)
        work_.wait_for(lock, timeout,
                       [this] { return stop_ || !requests_.empty() || !cancelled_.empty(); });
    std::swap(taken.requests, requests_);
    std::swap(taken.cancelled, cancelled_);
    taken.stop = stop_;
    taken.choices = status_.queued;
    taken.tokens = tokens_;
}

// Under the lock.
void Inbox::copy_numbers(const schedule::Scheduler& scheduler, const EndCounts& ends) {
    status_.gauges = scheduler.gauges();
    status_.totals = scheduler.totals();
    status_.sums.ends = ends;
    idle_now_ = scheduler.idle() && requests_.empty();
    if (idle_now_) idle_.notify_all();
}

void Inbox::report(Taken& taken, schedule::Time now, const schedule::Scheduler& scheduler,
                   const EndCounts& ends) {
    const std::lock_guard lock(mutex_);
    status_.queued -= std::exchange(taken.choices, 0);
    tokens_ -= std::exchange(taken.tokens, 0);
    status_.heartbeat = now;
    copy_numbers(scheduler, ends);
}

void Inbox::report(const StepReport& step, schedule::Time began, schedule::Time now,
                   const schedule::Scheduler& scheduler, const EndCounts& ends) {
    const std::lock_guard lock(mutex_);
    status_.steps += step.ran ? 1 : 0;
    status_.heartbeat = status_.last_step = now;
    status_.report = step;
    status_.sums.steps += step;
    status_.sums.busy += now - began;
    copy_numbers(scheduler, ends);
}

void Inbox::close(EngineState state, const std::string& failure, const EndCounts& ends) {
    const Interruption why =
        state == EngineState::stopped ? Interruption::stopped : Interruption::step_failed;
    std::vector<Incoming> left;
    {
        const std::lock_guard lock(mutex_);
        status_.state = state;
        status_.failure = failure;
        status_.sums.ends = ends;
        status_.sums.ends.add({accept::FinishReason::interrupted}, why, status_.queued);
        status_.queued = 0;
        status_.gauges = {};
        tokens_ = 0;
        left = std::exchange(requests_, {});
        cancelled_.clear();
        unfinished_ = !idle_now_;
        idle_now_ = true;
    }
    idle_.notify_all();
    for (const Incoming& incoming : left) incoming.mailbox->refuse(why, failure);
}

}  // namespace espalier::engine
