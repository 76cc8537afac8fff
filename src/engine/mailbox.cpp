// SPDX-License-Identifier: Apache-2.0
#include "engine/mailbox.hpp"

#include <algorithm>
#include <utility>

namespace espalier::engine {

using namespace std::chrono_literals;

// The numbers stay: they are totals.
void ChoiceUpdate::clear() {
    emission.clear();
    trees.clear();
    message.clear();
}

Mailbox::Mailbox(std::int32_t choices, std::function<void()> wake, schedule::Time arrived)
    : wake_(std::move(wake)) {
    pending_.choices.resize(static_cast<std::size_t>(choices));
    for (ChoiceUpdate& choice : pending_.choices) choice.times.arrived = arrived;
}

// Outside the lock.
void Mailbox::announce(bool was_empty) {
    arrived_.notify_one();
    if (was_empty && wake_) wake_();
}

void Mailbox::receive(const Update& update) {
    bool was_empty = false;
    {
        const std::lock_guard lock(mutex_);
        ChoiceUpdate& choice = pending_.choices.at(static_cast<std::size_t>(update.choice));
        choice.emission.append(update.emission);
        append_trees(choice.trees, update.trees);
        choice.usage = update.usage;
        choice.times = update.times;
        choice.cached_tokens = update.cached_tokens;
        if (update.prompt_logprobs != nullptr) pending_.prompt_logprobs = *update.prompt_logprobs;
        if (update.ending) {
            choice.ended = true;
            choice.finish = update.ending->finish;
            choice.interruption = update.ending->interruption;
            choice.message = update.ending->message;
            ++ended_;
        }
        was_empty = !std::exchange(has_updates_, true);
    }
    announce(was_empty);
}

void Mailbox::refuse(Interruption why, const std::string& message) {
    bool was_empty = false;
    {
        const std::lock_guard lock(mutex_);
        for (ChoiceUpdate& choice : pending_.choices) {
            if (choice.ended) continue;
            choice.ended = true;
            choice.finish = {accept::FinishReason::interrupted, -1};
            choice.interruption = why;
            choice.message = message;
            ++ended_;
        }
        was_empty = !std::exchange(has_updates_, true);
    }
    announce(was_empty);
}

bool Mailbox::over() const { return ended_ == pending_.choices.size(); }

// Under the lock.
Mailbox::Poll Mailbox::take(Updates& updates) {
    if (!has_updates_) return over() ? Poll::finished : Poll::timed_out;
    updates.choices.resize(pending_.choices.size());
    for (std::size_t i = 0; i < updates.choices.size(); ++i) {
        ChoiceUpdate& kept = pending_.choices[i];
        ChoiceUpdate& given = updates.choices[i];
        given.clear();
        std::swap(given.emission, kept.emission);
        std::swap(given.trees, kept.trees);
        given.usage = kept.usage;
        given.times = kept.times;
        given.cached_tokens = kept.cached_tokens;
        given.ended = kept.ended;
        given.finish = kept.finish;
        given.interruption = kept.interruption;
        given.message = kept.message;
    }
    updates.prompt_logprobs = std::exchange(pending_.prompt_logprobs, std::nullopt);
    has_updates_ = false;
    return Poll::updated;
}

bool Mailbox::next(Updates& updates) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return has_updates_ || over(); });
    return take(updates) == Poll::updated;
}

Mailbox::Poll Mailbox::next_within(Updates& updates, std::chrono::nanoseconds timeout) {
    std::unique_lock lock(mutex_);
    // More would overflow the clock.
    const std::chrono::nanoseconds bounded = std::min<std::chrono::nanoseconds>(timeout, 24h);
    arrived_.wait_for(lock, bounded, [this] { return has_updates_ || over(); });
    return take(updates);
}

}  // namespace espalier::engine
