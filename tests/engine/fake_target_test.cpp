// SPDX-License-Identifier: Apache-2.0
// The stepper on a target without a model (fake_target.hpp): each output must be the chain of
// hashes of its own prefix, whatever the trees, chunks, pages and neighbours were; and what a
// failing device leaves behind.
#include "engine/fake_target.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "engine/harness.hpp"
#include "lossless/random_drafter.hpp"

namespace espalier::engine {
namespace {

constexpr std::int64_t kVocabulary = 512;

struct Fake {
    explicit Fake(std::int64_t page_count = roomy_settings().schedule.page_count)
        : owned(std::make_unique<FakeTarget>(
              kVocabulary,
              model::ModelLimits{.max_tokens = 1024, .max_gather = 512, .max_kv_len = 4096},
              page_count)),
          target(*owned) {}
    Harness harness(const StepperSettings& settings = roomy_settings(),
                    Harness::Drafters drafters = {}) {
        return Harness(std::move(owned), *tiny_target(Family::v2).tokenizer, settings,
                       std::move(drafters));
    }
    // A prompt and what must follow it.
    std::vector<std::int32_t> chain(const Request& request) const {
        std::vector<std::int32_t> text = request.prompt;
        for (std::int64_t i = 0; i < request.output.max_tokens; ++i)
            text.push_back(target.next_token(text));
        return text;
    }

    std::unique_ptr<FakeTarget> owned;
    FakeTarget& target;
};

Harness::Drafters random_drafter(std::vector<std::vector<std::int32_t>> texts, bool truth_last) {
    RandomDrafterOptions options;
    options.truth = 0.5;
    options.silence = 0.1;
    options.truth_last = truth_last;
    Harness::Drafters drafters;
    drafters.push_back(std::make_unique<RandomDrafter>(7, options, std::move(texts),
                                                       std::vector<std::int32_t>{10, 11, 12}));
    return drafters;
}

TEST(FakeTarget, EveryOutputIsTheChainOfItsOwnPrefix) {
    Fake fake(17);
    StepperSettings settings = roomy_settings();
    settings.schedule.page_count = 17;  // 16 for requests that want 30: some are preempted
    std::vector<Request> requests;
    std::vector<std::vector<std::int32_t>> texts;
    for (std::uint64_t i = 0; i < 6; ++i) {
        requests.push_back(plain_request(static_cast<std::size_t>(40 + 60 * i), 100, i + 1));
        texts.push_back(fake.chain(requests.back()));
    }
    Harness harness = fake.harness(settings, random_drafter(texts, true));
    std::vector<std::shared_ptr<Recorder>> recorders;
    for (const Request& request : requests) recorders.push_back(harness.submit(request));
    const StepReport sum = harness.run();
    for (std::size_t i = 0; i < requests.size(); ++i)
        EXPECT_EQ(whole_text(requests[i], recorders[i]->choice(0).output), texts[i]);
    EXPECT_GT(sum.accepted, 100);
    EXPECT_GT(sum.moved, 50);
    EXPECT_GT(harness.stepper->scheduler().totals().preemptions, 0);
}

// The device fails in one step: nothing of that step counts, for anyone who was in it.
TEST(FakeTarget, NothingOfAFailedStepCounts) {
    for (const FakeTarget::Fault fault :
         {FakeTarget::Fault::refuse_launch, FakeTarget::Fault::refuse_wait,
          FakeTarget::Fault::refuse_compact}) {
        Fake fake;
        Request request = plain_request(30, 200, 3);
        request.output.stop = {"qqqqzzzz"};  // text is held back
        const std::vector<std::int32_t> text = fake.chain(request);
        Harness harness = fake.harness(roomy_settings(), random_drafter({text}, true));
        const auto recorder = harness.submit(request);
        const std::int32_t slot = harness.ids[0].slot;
        for (int step = 0; step < 5; ++step) harness.stepper->step();
        fake.target.fault = fault;
        std::size_t before = 0;
        std::int64_t failed = 0;
        while (failed == 0 && !recorder->ended()) {
            before = harness.stepper->scheduler().tokens(slot).size() - request.prompt.size();
            failed = harness.stepper->step().failed;
        }
        const RecordedChoice& choice = recorder->choice(0);
        ASSERT_EQ(failed, 1);
        EXPECT_EQ(choice.ended, Interruption::step_failed);
        EXPECT_EQ(choice.output.finish.reason, accept::FinishReason::interrupted);
        ASSERT_GT(before, 0u);
        EXPECT_EQ(choice.usage.completion_tokens, static_cast<std::int64_t>(before));
        EXPECT_EQ(whole_text(request, choice.output),
                  std::vector(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(
                                                               request.prompt.size() + before)));
        accept::RequestProgress plain(harness.check(request).rules,
                                      *tiny_target(Family::v2).tokenizer, request.prompt);
        accept::Emission expected;
        for (std::size_t i = 0; i < before; ++i)
            plain.commit({.token = text[request.prompt.size() + i]}, {}, expected);
        plain.end(accept::FinishReason::interrupted, expected);
        EXPECT_EQ(choice.output.text, expected.text);
        EXPECT_EQ(harness.stepper->scheduler().gauges().pages.owned, 0);
        // The device is well again, and the engine goes on.
        fake.target.fault = FakeTarget::Fault::none;
        const auto next = harness.submit(request);
        harness.run();
        EXPECT_EQ(whole_text(request, next->choice(0).output), text);
    }
}

// A path of a request that ends within it is moved whole; nobody else notices.
TEST(FakeTarget, AnEndInsideAPathLeavesTheOthersAlone) {
    Fake fake;
    Request first = plain_request(30, 100, 5), second = plain_request(50, 100, 6);
    const std::vector<std::vector<std::int32_t>> texts = {fake.chain(first), fake.chain(second)};
    first.output.stop_token_ids = {texts[0][30 + 40]};
    Harness harness = fake.harness(roomy_settings(), random_drafter(texts, true));
    const auto ends = harness.submit(first);
    const auto goes_on = harness.submit(second);
    harness.run();
    EXPECT_EQ(ends->choice(0).output.finish.reason, accept::FinishReason::stop_token);
    EXPECT_LE(ends->choice(0).output.tokens.size(), 41u);
    EXPECT_EQ(whole_text(second, goes_on->choice(0).output), texts[1]);
}

TEST(FakeTarget, AFlaggedTokenEndsThoseThatCommitItAlone) {
    Fake fake;
    const Request poisoned = plain_request(30, 60, 8), other = plain_request(40, 60, 9);
    const std::vector<std::vector<std::int32_t>> texts = {fake.chain(poisoned), fake.chain(other)};
    fake.target.poison = texts[0][30 + 20];
    ASSERT_EQ(std::count(texts[1].begin(), texts[1].end(), fake.target.poison), 0);
    ASSERT_EQ(std::count(texts[0].begin(), texts[0].begin() + 50, fake.target.poison), 0);
    Harness harness = fake.harness(roomy_settings(), random_drafter(texts, false));
    const auto fails = harness.submit(poisoned);
    const auto lives = harness.submit(other);
    harness.run();
    EXPECT_EQ(fails->choice(0).output.finish.reason, accept::FinishReason::bad_numbers);
    EXPECT_EQ(fails->choice(0).output.tokens.size(), 21u);  // drawn, then found to be bad
    EXPECT_EQ(whole_text(other, lives->choice(0).output), texts[1]);
}

}  // namespace
}  // namespace espalier::engine
