// SPDX-License-Identifier: Apache-2.0
#include "engine/mailbox.hpp"

#include <algorithm>
#include <utility>

namespace espalier::engine {
namespace {

using namespace std::chrono_literals;

void append(accept::Emission& to, const accept::Emission& from) {
    to.text += from.text;
    to.tokens.insert(to.tokens.end(), from.tokens.begin(), from.tokens.end());
    to.top.insert(to.top.end(), from.top.begin(), from.top.end());
}

}  // namespace

// The numbers stay: they are totals.
void ChoiceNews::clear() {
    emission.clear();
    message.clear();
}

Mailbox::Mailbox(std::int32_t choices) {
    pending_.choices.resize(static_cast<std::size_t>(choices));
}

void Mailbox::receive(const Update& update) {
    {
        const std::lock_guard lock(mutex_);
        ChoiceNews& choice = pending_.choices.at(static_cast<std::size_t>(update.choice));
        append(choice.emission, update.emission);
        choice.usage = update.usage;
        choice.cached_tokens = update.cached_tokens;
        if (update.prompt_logprobs != nullptr) pending_.prompt_logprobs = *update.prompt_logprobs;
        if (update.ending) {
            choice.ended = true;
            choice.finish = update.ending->finish;
            choice.interruption = update.ending->interruption;
            choice.message = update.ending->message;
            ++ended_;
        }
        has_news_ = true;
    }
    arrived_.notify_one();
}

void Mailbox::refuse(Interruption why, const std::string& message) {
    {
        const std::lock_guard lock(mutex_);
        for (ChoiceNews& choice : pending_.choices) {
            if (choice.ended) continue;
            choice.ended = true;
            choice.finish = {accept::FinishReason::interrupted, -1};
            choice.interruption = why;
            choice.message = message;
            ++ended_;
        }
        has_news_ = true;
    }
    arrived_.notify_one();
}

bool Mailbox::over() const { return ended_ == pending_.choices.size(); }

// Under the lock.
Mailbox::Answer Mailbox::take(News& news) {
    if (!has_news_) return over() ? Answer::over : Answer::nothing_yet;
    news.choices.resize(pending_.choices.size());
    for (std::size_t i = 0; i < news.choices.size(); ++i) {
        ChoiceNews& kept = pending_.choices[i];
        ChoiceNews& given = news.choices[i];
        given.clear();
        std::swap(given.emission, kept.emission);
        given.usage = kept.usage;
        given.cached_tokens = kept.cached_tokens;
        given.ended = kept.ended;
        given.finish = kept.finish;
        given.interruption = kept.interruption;
        given.message = kept.message;
    }
    news.prompt_logprobs = std::exchange(pending_.prompt_logprobs, std::nullopt);
    has_news_ = false;
    return Answer::news;
}

bool Mailbox::next(News& news) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return has_news_ || over(); });
    return take(news) == Answer::news;
}

Mailbox::Answer Mailbox::next_within(News& news, std::chrono::nanoseconds patience) {
    std::unique_lock lock(mutex_);
    // More would overflow the clock.
    const std::chrono::nanoseconds bounded = std::min<std::chrono::nanoseconds>(patience, 24h);
    arrived_.wait_for(lock, bounded, [this] { return has_news_ || over(); });
    return take(news);
}

}  // namespace espalier::engine
