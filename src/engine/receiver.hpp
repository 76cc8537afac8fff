// SPDX-License-Identifier: Apache-2.0
// What comes out of the engine for a request, and who takes it. Stepper calls receive() from
// inside a step, so a receiver must neither wait nor call back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "accept/prompt_logprobs.hpp"
#include "accept/request_progress.hpp"
#include "engine/verified_tree.hpp"
#include "schedule/request.hpp"

namespace espalier::engine {

// Why an output was interrupted, where it neither met a stop condition nor failed by its numbers.
enum class Interruption : std::uint8_t {
    none,
    cancelled,
    deadline,        // it passed
    step_failed,     // the model refused the batch, or the engine is out of order
    stopped,         // the engine was stopped
    grammar_failed,  // its own grammar: an error of the grammar's program, which no other notices
};
inline constexpr std::size_t kInterruptions = 6;

struct Ending {
    accept::Finish finish;
    Interruption interruption = Interruption::none;  // set when the reason is interrupted
    std::string_view message;                        // for people; good during receive()
};

// On the engine's clock, in nanoseconds.
struct RequestTimes {
    schedule::Time arrived = 0;                 // submitted
    std::optional<schedule::Time> planned;      // in a batch for the first time
    std::optional<schedule::Time> first_token;  // the step that drew it had ended
    std::optional<schedule::Time> ended;
};

// Updates of one choice since the last update. References are good during receive().
struct Update {
    std::int32_t choice = 0;
    const accept::Emission& emission;  // in order, each token once
    // The prompt's logprobs, once, when they are complete; the same for all choices.
    const accept::PromptLogprobs* prompt_logprobs = nullptr;
    const accept::Usage& usage;
    const RequestTimes& times;
    std::int64_t cached_tokens = 0;            // of the prompt, found in the prefix index
    std::span<const VerifiedTree> trees = {};  // under report_trees
    std::optional<Ending> ending;              // with the last update of the choice
};

class Receiver {
  public:
    virtual ~Receiver() = default;
    virtual void receive(const Update& update) = 0;
};

}  // namespace espalier::engine
