// SPDX-License-Identifier: Apache-2.0
// The way out of the engine for one request: the engine's thread puts updates in, one reader takes
// them out. A slow reader delays no other: what it has not read coalesces, and is at most the
// request's own output (max_tokens tokens, each once). The lock is held only to append or to swap.
// A reader that has no thread to wait with is woken by a call and polls.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accept/prompt_logprobs.hpp"
#include "accept/request_progress.hpp"
#include "engine/receiver.hpp"
#include "schedule/request.hpp"

namespace espalier::engine {

// A reader's view of one choice: all that is new since it last asked.
struct ChoiceUpdate {
    accept::Emission emission;
    std::vector<VerifiedTree> trees;  // under report_trees; the last kReportedTrees
    accept::Usage usage;              // so far
    RequestTimes times;
    std::int64_t cached_tokens = 0;  // of the prompt, found in the prefix index
    bool ended = false;              // then finish says how, and nothing more comes
    accept::Finish finish;
    Interruption interruption = Interruption::none;
    std::string message;

    void clear();
};

struct Updates {
    std::vector<ChoiceUpdate> choices;
    std::optional<accept::PromptLogprobs> prompt_logprobs;  // once
};

class Mailbox final : public Receiver {
  public:
    // wake, if there is one, is called after an update that finds the mailbox empty: on the
    // engine's thread, outside the lock, once between two reads. It must neither wait nor throw,
    // and may come once more after the reader is gone.
    explicit Mailbox(std::int32_t choices, std::function<void()> wake = {},
                     schedule::Time arrived = 0);

    // The engine's side.
    void receive(const Update& update) override;
    // Ends every choice that has not ended: the request never ran.
    void refuse(Interruption why, const std::string& message);
    // Touched by the engine's thread alone.
    std::vector<schedule::RequestId> ids;

    // True for the first who asks.
    bool request_cancel() { return !cancelling_.exchange(true); }

    // The reader's side. Waits for an update and takes all of it (into memory that `updates` keeps
    // from call to call); false: all choices have ended and everything was read.
    bool next(Updates& updates);
    enum class Poll : std::uint8_t { updated, finished, timed_out };
    // A timeout of 0 asks without waiting.
    Poll next_within(Updates& updates, std::chrono::nanoseconds timeout);

  private:
    bool over() const;
    Poll take(Updates& updates);
    void announce(bool was_empty);

    const std::function<void()> wake_;

    std::atomic<bool> cancelling_ = false;
    std::mutex mutex_;
    std::condition_variable arrived_;
    Updates pending_;
    bool has_updates_ = false;
    std::size_t ended_ = 0;
};

}  // namespace espalier::engine
