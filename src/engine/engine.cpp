// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.hpp"

#include <exception>
#include <utility>

#include "base/check.hpp"

namespace espalier::engine {
namespace {

// An idle engine's thread comes round this often, so that its heartbeat can be told from a thread
// that hangs.
constexpr std::chrono::seconds kIdleRound{1};

}  // namespace

void Stream::cancel() {
    if (inbox_ && mailbox_->request_cancel()) inbox_->cancel(mailbox_);
}

Expected<std::unique_ptr<Engine>> Engine::create(StepperParts parts,
                                                 const StepperSettings& settings) {
    const text::Tokenizer& tokenizer = parts.tokenizer;
    const Clock clock = parts.clock;
    ESPALIER_ASSIGN_OR_RETURN(std::unique_ptr<Stepper> stepper,
                              Stepper::create(std::move(parts), settings));
    return std::unique_ptr<Engine>(
        new Engine(std::move(stepper), tokenizer, clock, settings.schedule));
}

Engine::Engine(std::unique_ptr<Stepper> stepper, const text::Tokenizer& tokenizer, Clock clock,
               const schedule::SchedulerOptions& options)
    : tokenizer_(tokenizer),
      limits_(stepper->request_limits()),
      clock_(std::move(clock)),
      inbox_(std::make_shared<Inbox>(options.max_waiting, options.max_waiting_tokens,
                                     stepper->speculation().names())),
      stepper_(std::move(stepper)),
      thread_([this] { run(); }) {}

Expected<Stream> Engine::submit(Request request, std::function<void()> wake) {
    ESPALIER_ASSIGN_OR_RETURN(CheckedRequest checked,
                              check_request(std::move(request), limits_, tokenizer_));
    const schedule::Time arrived = clock_();
    const auto mailbox =
        std::make_shared<Mailbox>(checked.request.choices, std::move(wake), arrived);
    ESPALIER_RETURN_IF_ERROR(inbox_->submit({std::move(checked), mailbox, arrived}));
    return Stream(inbox_, mailbox);
}

bool Engine::drain(std::chrono::nanoseconds timeout) {
    inbox_->start_draining();
    return inbox_->wait_until_idle(timeout);
}

void Engine::stop() {
    inbox_->start_stopping();
    const std::lock_guard lock(joining_);
    if (thread_.joinable()) thread_.join();
}

speculate::Memory Engine::memory() const {
    CHECK(!thread_.joinable(), "what speculation has learnt is asked for while the engine runs");
    return stepper_->speculation().memory();
}

// Whatever is thrown here is an error of the program. The requests end, the process goes on, and
// every caller is told.
void Engine::run() {
    std::string failure;
    try {
        return loop();
    } catch (const std::exception& error) {
        failure = error.what();
    } catch (...) {
        failure = "an exception without a description";
    }
    try {
        end_all(EngineState::failed, Interruption::step_failed, failure);
    } catch (...) {  // out of memory even for that
        inbox_->close(EngineState::failed, failure, stepper_->ends());
    }
}

void Engine::loop() {
    for (;;) {
        inbox_->take(!stepper_->idle(), kIdleRound, taken_);
        const schedule::Time began = clock_();
        if (taken_.stop)
            return end_all(EngineState::stopped, Interruption::stopped, "the engine was stopped");
        admit();
        inbox_->report(taken_, began, stepper_->scheduler(), stepper_->ends());
        if (stepper_->idle()) {
            if (const auto beat = stepper_->beat(); !beat)
                return end_all(EngineState::failed, Interruption::step_failed,
                               beat.error().message);
            continue;
        }
        const StepReport step = stepper_->step();
        inbox_->report(step, began, clock_(), stepper_->scheduler(), stepper_->ends());
        if (!step.device_failure.empty())
            return end_all(EngineState::failed, Interruption::step_failed, step.device_failure);
    }
}

void Engine::admit() {
    for (Inbox::Incoming& incoming : taken_.requests)
        incoming.mailbox->ids =
            stepper_->submit(std::move(incoming.request), incoming.mailbox, incoming.arrived);
    for (const std::shared_ptr<Mailbox>& mailbox : taken_.cancelled)
        for (const schedule::RequestId& id : mailbox->ids) stepper_->cancel(id);
}

// First those that run, then those that were on their way to the scheduler, then those in the
// inbox, which is shut by then.
void Engine::end_all(EngineState state, Interruption why, const std::string& message) {
    stepper_->abandon(why, message);
    for (const Inbox::Incoming& incoming : taken_.requests) incoming.mailbox->refuse(why, message);
    inbox_->close(state, message, stepper_->ends());
}

}  // namespace espalier::engine
