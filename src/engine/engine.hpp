// SPDX-License-Identifier: Apache-2.0
// The engine: a Stepper on a thread of its own, an inbox before it and a mailbox per request behind
// it. All calls may come from any thread. A newcomer reads Engine::loop(), then Stepper::step().
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "engine/inbox.hpp"
#include "engine/mailbox.hpp"
#include "engine/request.hpp"
#include "engine/status.hpp"
#include "engine/stepper.hpp"

namespace espalier::engine {

// A client's end of a request. For one reader; cancel() may come from any thread. May outlive the
// engine.
class Stream {
  public:
    Stream(std::shared_ptr<Inbox> inbox, std::shared_ptr<Mailbox> mailbox)
        : inbox_(std::move(inbox)), mailbox_(std::move(mailbox)) {}
    Stream(Stream&&) = default;
    Stream& operator=(Stream&&) = delete;
    ~Stream() { cancel(); }  // its reader is gone

    // See Mailbox.
    bool next(Updates& updates) { return mailbox_->next(updates); }
    Mailbox::Poll next_within(Updates& updates, std::chrono::nanoseconds timeout) {
        return mailbox_->next_within(updates, timeout);
    }
    // Ends all choices before the next step, whether they wait or run; the ends come as updates.
    void cancel();

  private:
    std::shared_ptr<Inbox> inbox_;
    std::shared_ptr<Mailbox> mailbox_;
};

class Engine {
  public:
    static Expected<std::unique_ptr<Engine>> create(StepperParts parts,
                                                    const StepperSettings& settings);
    ~Engine() { stop(); }
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // Refuses at once what can never run (ErrorKind::invalid, with the field at fault) and what
    // there is no room for now (ErrorKind::exhausted). wake: for readers without a thread to wait
    // with; see Mailbox.
    Expected<Stream> submit(Request request, std::function<void()> wake = {});
    // Takes nothing new from now on and waits until all that it has is finished; false: the time
    // was up first, and what is left can still be waited for, or stopped; or the engine stopped or
    // failed with requests unfinished.
    bool drain(std::chrono::nanoseconds timeout);
    // Ends every request where it stands, and the thread.
    void stop();

    EngineStatus status() const { return inbox_->status(); }
    // Numbers that speculation has learnt. Only after stop().
    speculate::Memory memory() const;
    // The engine's clock, which deadlines, times and the heartbeat are on.
    schedule::Time now() const { return clock_(); }
    const RequestLimits& request_limits() const { return limits_; }

  private:
    Engine(std::unique_ptr<Stepper> stepper, const text::Tokenizer& tokenizer, Clock clock,
           const schedule::SchedulerOptions& options);
    void run();
    void loop();
    void admit();
    void end_all(EngineState state, Interruption why, const std::string& message);

    const text::Tokenizer& tokenizer_;
    const RequestLimits limits_;
    Clock clock_;
    std::shared_ptr<Inbox> inbox_;
    // Owned by the thread, once it runs.
    std::unique_ptr<Stepper> stepper_;
    Inbox::Taken taken_;
    std::mutex joining_;
    std::thread thread_;
};

}  // namespace espalier::engine
