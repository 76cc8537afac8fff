// SPDX-License-Identifier: Apache-2.0
// A stepper on a tiny model with everything a test usually wants: plain requests, a clock that
// ticks, and the plain run to compare with.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "engine/model_target.hpp"
#include "engine/stepper.hpp"
#include "engine/tiny_target.hpp"
#include "lossless/plain_run.hpp"
#include "lossless/random_drafter.hpp"
#include "lossless/recorder.hpp"

namespace espalier::engine {

using lossless::Output;
using lossless::RandomDrafter;
using lossless::RandomDrafterOptions;
using lossless::RecordedChoice;
using lossless::Recorder;

inline Output run_plain(const TinyTarget& target, const CheckedRequest& checked,
                        std::int32_t choice) {
    auto output = lossless::PlainRunner(target.target()).run(checked, choice);
    if (!output) throw std::runtime_error(output.error().message);
    return std::move(*output);
}

inline std::vector<std::int32_t> random_prompt(std::size_t length, std::uint64_t seed) {
    Random random(seed);
    std::vector<std::int32_t> tokens(length);
    for (std::int32_t& token : tokens) token = random.between(2, kQuietPoisonToken - 1);
    return tokens;
}

inline Request plain_request(std::size_t prompt_length, std::int64_t max_tokens,
                             std::uint64_t seed) {
    Request request;
    request.prompt = random_prompt(prompt_length, seed);
    request.sampling.temperature = 0.0f;
    request.sampling.seed = seed;
    request.sampling.logit_bias = {{kPoisonToken, -100.0f}, {kQuietPoisonToken, -100.0f}};
    request.output.max_tokens = max_tokens;
    request.output.ignore_eos = true;
    return request;
}

inline StepperSettings roomy_settings() {
    StepperSettings settings;
    settings.grant = NodeGrant::everything;
    settings.schedule.page_count = 65;
    settings.schedule.max_model_len = 1024;
    settings.schedule.max_rows = 8;
    settings.schedule.max_step_tokens = kTinyMaxTokens;
    settings.schedule.max_step_gather = kTinyMaxGather;
    return settings;
}

// Limits that such a stepper holds requests against.
inline RequestLimits roomy_limits() {
    return {
        .vocabulary = kTinyVocabulary, .sizes = roomy_settings().schedule, .eos_token_ids = {1}};
}

inline std::unique_ptr<ModelTarget> make_target(
    model::DeepseekModel& model, std::int64_t page_count = roomy_settings().schedule.page_count) {
    auto made = ModelTarget::create(model, page_count);
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

inline auto target_maker(TinyTarget& tiny) {
    return
        [&tiny](std::int64_t page_count) { return ModelTarget::create(**tiny.model, page_count); };
}

class Harness {
  public:
    using Drafters = std::vector<std::unique_ptr<speculate::Drafter>>;
    Harness(std::unique_ptr<Target> target, const text::Tokenizer& tokenizer,
            const StepperSettings& settings = roomy_settings(), Drafters drafters = {},
            Clock clock = {}, const model::Taps& taps = {}) {
        if (!clock) clock = [this] { return now += 1000; };
        StepperParts parts{std::move(target), tokenizer, std::move(drafters), std::move(clock)};
        parts.taps = taps;
        auto made = Stepper::create(std::move(parts), settings);
        if (!made) throw std::runtime_error(made.error().message);
        stepper = std::move(*made);
        tokenizer_ = &tokenizer;
    }
    explicit Harness(TinyTarget& tiny, const StepperSettings& settings = roomy_settings(),
                     Drafters drafters = {}, Clock clock = {})
        : Harness(make_target(**tiny.model, settings.schedule.page_count), *tiny.tokenizer,
                  settings, std::move(drafters), std::move(clock)) {}

    CheckedRequest check(const Request& request) const {
        auto checked = check_request(request, stepper->request_limits(), *tokenizer_);
        if (!checked) throw std::runtime_error(checked.error().message);
        return std::move(*checked);
    }
    std::shared_ptr<Recorder> submit(const Request& request) {
        const auto recorder = std::make_shared<Recorder>(request.choices);
        ids = stepper->submit(check(request), recorder, now);
        return recorder;
    }
    // Steps until everything has ended; the sum of what they did.
    StepReport run() {
        StepReport sum;
        for (int step = 0; step < 10000 && !stepper->idle(); ++step) {
            const StepReport report = stepper->step();
            sum.accepted += report.accepted;
            sum.moved += report.moved;
            sum.committed += report.committed;
            sum.failed += report.failed;
            sum.tokens.drafts += report.tokens.drafts;
            sum.tokens.prompt_absorbed += report.tokens.prompt_absorbed;
            sum.tokens.prompt_decompressed += report.tokens.prompt_decompressed;
        }
        EXPECT_TRUE(stepper->idle());
        return sum;
    }

    schedule::Time now = 0;
    std::unique_ptr<Stepper> stepper;
    std::vector<schedule::RequestId> ids;  // of the last request

  private:
    const text::Tokenizer* tokenizer_ = nullptr;
};

// The tokens of a prompt and its output.
inline std::vector<std::int32_t> whole_text(const Request& request, const Output& output) {
    std::vector<std::int32_t> text = request.prompt;
    for (const accept::CommittedToken& token : output.tokens) text.push_back(token.token);
    return text;
}

}  // namespace espalier::engine
