// SPDX-License-Identifier: Apache-2.0
// A receiver that keeps everything. An update after the end, or a prompt's logprobs twice, is an
// error of the engine's program.
#pragma once

#include <optional>
#include <vector>

#include "base/check.hpp"
#include "engine/receiver.hpp"
#include "lossless/plain_run.hpp"

namespace espalier::lossless {

struct RecordedChoice {
    Output output;
    accept::Usage usage;
    std::int64_t cached_tokens = 0;
    std::optional<engine::Interruption> ended;  // with its interruption, none for its own end
    std::int64_t updates = 0;
};

class Recorder final : public engine::Receiver {
  public:
    explicit Recorder(std::int32_t choices) : choices_(static_cast<std::size_t>(choices)) {}

    void receive(const engine::Update& update) override {
        RecordedChoice& choice = choices_.at(static_cast<std::size_t>(update.choice));
        CHECK(!choice.ended, "choice {} has an update after its end", update.choice);
        ++choice.updates;
        Output& output = choice.output;
        output.append(update.emission);
        choice.usage = update.usage;
        choice.cached_tokens = update.cached_tokens;
        if (update.prompt_logprobs != nullptr) {
            CHECK(prompt_logprobs_.empty(), "the prompt's {} logprobs came twice",
                  prompt_logprobs_.size());
            const auto logprobs = update.prompt_logprobs->logprobs();
            const auto tops = update.prompt_logprobs->tops();
            prompt_logprobs_.assign(logprobs.begin(), logprobs.end());
            prompt_tops_.assign(tops.begin(), tops.end());
        }
        if (!update.ending) return;
        output.finish = update.ending->finish;
        choice.ended = update.ending->interruption;
    }

    const RecordedChoice& choice(std::int32_t index) const {
        return choices_.at(static_cast<std::size_t>(index));
    }
    bool ended() const {
        for (const RecordedChoice& choice : choices_)
            if (!choice.ended) return false;
        return true;
    }
    const std::vector<float>& prompt_logprobs() const { return prompt_logprobs_; }
    const std::vector<accept::TokenLogprob>& prompt_tops() const { return prompt_tops_; }

  private:
    std::vector<RecordedChoice> choices_;
    std::vector<float> prompt_logprobs_;
    std::vector<accept::TokenLogprob> prompt_tops_;
};

}  // namespace espalier::lossless
