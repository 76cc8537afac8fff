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
    Fake& asynchronous(bool is = true) {
        if (is) target.be_asynchronous();
        return *this;
    }
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

void hold_outputs_to_their_chains(bool asynchronous) {
    Fake fake(17);
    fake.asynchronous(asynchronous);
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

TEST(FakeTarget, EveryOutputIsTheChainOfItsOwnPrefix) {
    for (const bool asynchronous : {false, true}) hold_outputs_to_their_chains(asynchronous);
}

// The device fails in one step: nothing of that step counts, for anyone who was in it.
void fail_one_step(FakeTarget::Fault fault, bool asynchronous) {
    Fake fake;
    fake.asynchronous(asynchronous);
    Request request = plain_request(30, 200, 3);
    request.output.stop = {"qqqqzzzz"};  // text is held back
    const std::vector<std::int32_t> text = fake.chain(request);
    Harness harness = fake.harness(roomy_settings(), random_drafter({text}, true));
    const auto recorder = harness.submit(request);
    const RequestSlot slot = harness.ids[0].slot;
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
    accept::RequestProgress plain(harness.check(request).rules, *tiny_target(Family::v2).tokenizer,
                                  request.prompt);
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

TEST(FakeTarget, NothingOfAFailedStepCounts) {
    for (const FakeTarget::Fault fault :
         {FakeTarget::Fault::refuse_run, FakeTarget::Fault::refuse_wait,
          FakeTarget::Fault::refuse_compact})
        for (const bool asynchronous : {false, true}) fail_one_step(fault, asynchronous);
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

// Keeps what every update said.
class UpdateLog final : public Receiver {
  public:
    void receive(const Update& update) override {
        ended = update.ending.has_value();
        tokens += update.emission.tokens.size();
        times = update.times;
        updates.push_back(tokens);
    }
    std::vector<std::size_t> updates;  // tokens so far
    std::size_t tokens = 0;
    RequestTimes times;
    bool ended = false;
};

struct LoggedRequest {
    LoggedRequest(Harness& harness, const Request& request)
        : id(harness.stepper->submit(harness.check(request), log, harness.now).front()) {}
    std::shared_ptr<UpdateLog> log = std::make_shared<UpdateLog>();
    schedule::RequestId id;
};

// A request of an asynchronous target, and how many tokens its receiver had heard of when the last
// step ran and when it was waited for.
struct WatchedRequest {
    explicit WatchedRequest(std::int32_t output_tokens)
        : one(harness, plain_request(30, output_tokens, 3)) {
        fake.target.at_run = [this] { at_run = one.log->tokens; };
        fake.target.at_wait = [this] { at_wait = one.log->tokens; };
    }
    Fake fake;
    Harness harness = fake.asynchronous().harness();
    LoggedRequest one;
    std::size_t at_run = 0, at_wait = 0;
};

// The next step does not depend on them; an end does not wait for a step that may never come.
TEST(FakeTarget, UpdatesGoOutWhileTheNextStepRunsAndEndsAtOnce) {
    WatchedRequest watched(4);
    const UpdateLog& log = *watched.one.log;
    for (std::size_t step = 0; step < 3; ++step) {
        watched.harness.stepper->step();
        EXPECT_EQ(watched.at_wait, step);
        EXPECT_EQ(log.tokens, step);
    }
    watched.harness.stepper->step();
    EXPECT_EQ(watched.at_wait, 3u);
    EXPECT_TRUE(log.ended);
    EXPECT_EQ(log.updates, (std::vector<std::size_t>{1, 2, 3, 4}));
}

TEST(FakeTarget, UpdatesDoNotWaitForAStepThatTakesAWhileToQueue) {
    WatchedRequest watched(9);
    for (int step = 0; step < 3; ++step) watched.harness.stepper->step();
    EXPECT_EQ(watched.at_run, 1u);
    watched.fake.target.recorded = false;
    watched.harness.stepper->step();
    EXPECT_EQ(watched.at_run, 3u);
}

TEST(FakeTarget, ATargetThatComputesInItsCallsHoldsNoUpdateBack) {
    Fake fake;
    Harness harness = fake.harness();
    const LoggedRequest one(harness, plain_request(30, 4, 3));
    for (std::size_t step = 1; step <= 4; ++step) {
        harness.stepper->step();
        EXPECT_EQ(one.log->tokens, step);
    }
}

TEST(FakeTarget, TimesDoNotDependOnWhenUpdatesGoOut) {
    std::vector<RequestTimes> times;
    for (const bool asynchronous : {false, true}) {
        Fake fake;
        Harness harness = fake.asynchronous(asynchronous).harness();
        const LoggedRequest one(harness, plain_request(30, 4, 3));
        harness.run();
        times.push_back(one.log->times);
    }
    EXPECT_TRUE(times[0].first_token.has_value());
    EXPECT_EQ(times[0].first_token, times[1].first_token);
    EXPECT_EQ(times[0].ended, times[1].ended);
}

// Tokens of a step go out with whatever ends the request before the next one.
TEST(FakeTarget, AnEndBetweenTwoStepsTakesWhatWasNotDelivered) {
    const auto check = [](const auto& end) {
        Fake fake;
        Harness harness = fake.asynchronous().harness();
        const LoggedRequest one(harness, plain_request(30, 100, 3));
        for (int step = 0; step < 5; ++step) harness.stepper->step();
        EXPECT_EQ(one.log->tokens, 4u);
        end(harness, one.id);
        EXPECT_TRUE(one.log->ended);
        EXPECT_EQ(one.log->tokens, 5u);
        EXPECT_EQ(one.log->updates.size(), 5u);
    };
    check([](Harness& harness, schedule::RequestId id) { harness.stepper->cancel(id); });
    check([](Harness& harness, schedule::RequestId) {
        harness.stepper->abandon(Interruption::stopped, "");
    });
}

// A newcomer may have the place of the cancelled one by the time that updates go out.
TEST(FakeTarget, ANewcomerGetsNothingOfTheRequestWhosePlaceItHas) {
    Fake fake;
    Harness harness = fake.asynchronous().harness();
    const LoggedRequest cancelled(harness, plain_request(30, 100, 3));
    for (int step = 0; step < 3; ++step) harness.stepper->step();
    harness.stepper->cancel(cancelled.id);
    const Request request = plain_request(20, 6, 4);
    const auto recorder = harness.submit(request);
    EXPECT_EQ(harness.ids[0].slot, cancelled.id.slot);
    harness.run();
    EXPECT_EQ(whole_text(request, recorder->choice(0).output), fake.chain(request));
    EXPECT_EQ(recorder->choice(0).updates, 6);
    EXPECT_EQ(cancelled.log->tokens, 3u);
}

}  // namespace
}  // namespace espalier::engine
