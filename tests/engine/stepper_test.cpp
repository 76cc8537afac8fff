// SPDX-License-Identifier: Apache-2.0
// Single steps: what is committed and where it lies, what fails and who goes on, what drafters are
// told. The lossless test has the texts.
#include "engine/stepper.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "engine/faulty_target.hpp"
#include "engine/harness.hpp"
#include "lossless/random_drafter.hpp"
#include "model/sequence.hpp"
#include "schedule/inspection.hpp"
#include "speculate/ngram.hpp"

namespace espalier::engine {
namespace {

// The cache of slots [0, length) in every layer, by any block table.
std::vector<std::byte> cache_bytes(cache::KvStorage& storage, std::span<const std::int32_t> pages,
                                   std::int64_t length) {
    std::vector<std::byte> bytes;
    const std::int64_t layers = storage.layout().layers(cache::Plane::Of::target);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
        const mla::KvPages kv = storage.target(layer);
        const std::int64_t slot_bytes = kv.page_stride / kv.page_tokens;
        for (std::int64_t slot = 0; slot < length; ++slot) {
            const std::byte* at =
                kv.data + mla::pool_slot(pages.data(), cache::kPageTokens, slot) * slot_bytes;
            bytes.insert(bytes.end(), at, at + slot_bytes);
        }
    }
    return bytes;
}

Harness::Drafters truth_last_drafter(const Request& request, const Output& output) {
    RandomDrafterOptions options;
    options.truth = 0.4;
    options.silence = 0;
    options.truth_last = true;
    Harness::Drafters drafters;
    drafters.push_back(std::make_unique<RandomDrafter>(
        5, options, std::vector<std::vector<std::int32_t>>{whole_text(request, output)},
        std::vector<std::int32_t>{10, 11, 12, 13, 14, 15, kPoisonToken, kQuietPoisonToken}));
    return drafters;
}

// Paths that are never the first branch: after each commit the cache holds the bytes of plain
// decoding, in plain order.
TEST(Stepper, CommitBringsAPathTogetherWhereverItLay) {
    for (const Family family : {Family::v2, Family::v3}) {
        TinyTarget& target = tiny_target(family);
        const Request request = plain_request(100, 60, 3);
        const RequestLimits limits = roomy_limits();
        const auto checked = *check_request(request, limits, *target.tokenizer);
        const Output plain = run_plain(target, checked, 0);
        const std::vector<std::int32_t> text = whole_text(request, plain);
        auto sequence = model::Sequence::create(**target.model, 100, 200);
        ASSERT_TRUE(sequence->feed(**target.model, text, false));

        auto engine_target = make_target(**target.model);
        cache::KvStorage& storage = engine_target->storage();
        Harness harness(std::move(engine_target), *target.tokenizer, roomy_settings(),
                        truth_last_drafter(request, plain));
        const auto recorder = harness.submit(request);
        const RequestSlot slot = harness.ids[0].slot;
        std::int64_t moved = 0;
        while (!recorder->ended()) {
            const StepReport report = harness.stepper->step();
            moved += report.moved;
            if (recorder->ended()) break;
            const auto& state = schedule::state_of(harness.stepper->scheduler(), slot);
            const auto length = std::ssize(harness.stepper->scheduler().tokens(slot)) - 1;
            ASSERT_TRUE(cache_bytes(storage, std::get<schedule::Running>(state).pages.block_table(),
                                    length) ==
                        cache_bytes(sequence->storage(), sequence->block_table(), length))
                << "after " << length << " slots";
        }
        EXPECT_GT(moved, 10);
        EXPECT_EQ(recorder->choice(0).output.tokens, plain.tokens);
        EXPECT_GT(recorder->choice(0).usage.accepted, 20);
    }
}

TEST(Stepper, ASecondEqualPromptComputesItsTailOnly) {
    Harness harness(tiny_target(Family::v3));
    const Request request = plain_request(700, 4, 9);
    const auto first = harness.submit(request);
    EXPECT_EQ(harness.run().tokens.prompt_decompressed, 640);
    const auto second = harness.submit(request);
    const StepReport report = harness.run();
    EXPECT_EQ(report.tokens.prompt_decompressed, 0);
    EXPECT_EQ(report.tokens.prompt_absorbed, 700 - 640);
    EXPECT_EQ(second->choice(0).cached_tokens, 640);
    EXPECT_EQ(second->choice(0).output.tokens, first->choice(0).output.tokens);
}

// lm-eval's echo: the prompt is scored and nothing is drawn. The bits are those of a request that
// goes on, in a step of its own or beside others, and in every choice.
TEST(Stepper, APromptIsScoredWithoutAToken) {
    for (const std::size_t length :
         {std::size_t{1}, std::size_t{2}, std::size_t{64}, std::size_t{65}, std::size_t{700}}) {
        Request request = plain_request(length, 5, 9);
        request.output.prompt_top_logprobs = 2;
        Harness longer(tiny_target(Family::v3));
        const auto whole = longer.submit(request);
        longer.run();
        request.output.max_tokens = 0;
        request.choices = 2;
        Harness harness(tiny_target(Family::v3));
        const auto beside = harness.submit(plain_request(30, 20, 4));
        const auto scored = harness.submit(request);
        harness.run();
        EXPECT_EQ(beside->choice(0).output.tokens.size(), 20u);
        for (const std::int32_t choice : {0, 1}) {
            const RecordedChoice& got = scored->choice(choice);
            EXPECT_EQ(got.output.finish.reason, accept::FinishReason::length);
            EXPECT_EQ(got.ended, Interruption::none);
            EXPECT_TRUE(got.output.tokens.empty() && got.output.text.empty());
            EXPECT_EQ(got.usage.completion_tokens, 0);
            EXPECT_EQ(got.usage.prompt_tokens, static_cast<std::int64_t>(length));
        }
        EXPECT_EQ(scored->prompt_logprobs().size(), length - 1);
        EXPECT_EQ(scored->prompt_logprobs(), whole->prompt_logprobs());
        EXPECT_EQ(scored->prompt_tops(), whole->prompt_tops());
        EXPECT_EQ(harness.stepper->scheduler().gauges().pages.owned, 0);
    }
}

TEST(Stepper, AForcedOutputIsScoredAndDrafted) {
    TinyTarget& target = tiny_target(Family::v3);
    Request request = plain_request(30, 100, 21);
    request.forced_output = random_prompt(20, 22);
    request.forced_output.insert(request.forced_output.end(), request.prompt.begin(),
                                 request.prompt.end());
    Harness plain(target);
    const auto alone = plain.submit(request);
    plain.run();
    std::vector<std::unique_ptr<speculate::Drafter>> drafters;
    drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    Harness harness(target, roomy_settings(), std::move(drafters));
    const auto drafted = harness.submit(request);
    harness.run();
    EXPECT_EQ(alone->choice(0).output.tokens, drafted->choice(0).output.tokens);
    EXPECT_EQ(whole_text({}, drafted->choice(0).output), request.forced_output);
    EXPECT_GT(drafted->choice(0).usage.accepted, 15);  // where it quotes the prompt
    EXPECT_EQ(alone->choice(0).usage.accepted, 0);
}

// Keeps the trees and the tokens of one choice.
class TreeKeeper final : public Receiver {
  public:
    void receive(const Update& update) override {
        for (const accept::CommittedToken& token : update.emission.tokens)
            tokens.push_back(token.token);
        trees.insert(trees.end(), update.trees.begin(), update.trees.end());
        usage = update.usage;
    }
    std::vector<std::int32_t> tokens;
    std::vector<VerifiedTree> trees;
    accept::Usage usage;
};

// Each tree is what its step verified: together they have all drafts that were counted, and their
// paths are the output's tokens in order, each tree from its root's place on.
TEST(Stepper, ARequestThatAsksIsToldItsTrees) {
    Request request = plain_request(30, 60, 21);
    request.forced_output = random_prompt(20, 22);
    request.forced_output.insert(request.forced_output.end(), request.prompt.begin(),
                                 request.prompt.end());
    for (const bool asks : {true, false}) {
        std::vector<std::unique_ptr<speculate::Drafter>> drafters;
        drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
        Harness harness(tiny_target(Family::v3), roomy_settings(), std::move(drafters));
        request.report_trees = asks;
        const auto keeper = std::make_shared<TreeKeeper>();
        harness.stepper->submit(harness.check(request), keeper);
        harness.run();
        EXPECT_GT(keeper->usage.accepted, 0);
        if (!asks) {
            EXPECT_TRUE(keeper->trees.empty());
            continue;
        }
        std::int64_t drafted = 0, accepted = 0;
        auto place = keeper->tokens.begin();
        for (const VerifiedTree& tree : keeper->trees) {
            ASSERT_EQ(tree.tokens.size(), tree.parents.size());
            ASSERT_EQ(tree.tokens.size(), tree.origins.size());
            ASSERT_FALSE(tree.path.empty());
            EXPECT_EQ(tree.parents[0], -1);
            std::vector<std::int32_t> path;
            for (std::size_t i = 0; i < tree.path.size(); ++i) {
                const auto node = static_cast<std::size_t>(tree.path[i]);
                EXPECT_EQ(tree.parents[node], i == 0 ? -1 : tree.path[i - 1]);
                path.push_back(tree.tokens[node]);
            }
            place = std::search(place, keeper->tokens.end(), path.begin(), path.end());
            EXPECT_NE(place, keeper->tokens.end());
            for (std::size_t node = 1; node < tree.origins.size(); ++node)
                EXPECT_TRUE(tree.origins[node].drafted());
            drafted += std::ssize(tree.tokens) - 1;
            accepted += std::ssize(tree.path) - 1;
        }
        EXPECT_EQ(drafted, keeper->usage.drafted);
        EXPECT_EQ(accepted, keeper->usage.accepted);
    }
}

TEST(Stepper, ASecondPromptOf4000TokensCostsLessThanAPage) {
    StepperSettings settings = roomy_settings();
    settings.schedule.max_model_len = 4096;
    Harness harness(tiny_target(Family::v3), settings);
    const Request request = plain_request(4000, 1, 9);
    harness.submit(request);
    EXPECT_EQ(harness.run().tokens.total(), 4000);
    const auto second = harness.submit(request);
    EXPECT_EQ(harness.run().tokens.total(), 4000 % 64);
    EXPECT_EQ(second->choice(0).cached_tokens, 4000 / 64 * 64);
}

TEST(Stepper, ChoicesComputeTheirPromptsPagesOnce) {
    Harness harness(tiny_target(Family::v2));
    Request request = plain_request(150, 6, 12);
    request.sampling.temperature = 1.0f;
    request.choices = 3;
    const auto recorder = harness.submit(request);
    // The pages once, and for each choice the tail that its own first draw needs.
    EXPECT_EQ(harness.run().tokens.prompt_absorbed, 128 + 3 * (150 - 128));
    EXPECT_NE(recorder->choice(0).output.tokens, recorder->choice(1).output.tokens);
    for (std::int32_t choice = 0; choice < 3; ++choice)
        EXPECT_EQ(recorder->choice(choice).output.tokens,
                  run_plain(tiny_target(Family::v2), harness.check(request), choice).tokens);
}

TEST(Stepper, ARequestThatDoesNotSpeculateDraftsNothing) {
    TinyTarget& target = tiny_target(Family::v2);
    Request request = plain_request(20, 20, 4);
    request.speculate = false;
    Harness plain(target);
    const auto expected = plain.submit(request);
    plain.run();
    Harness harness(target, roomy_settings(),
                    truth_last_drafter(request, expected->choice(0).output));
    const auto recorder = harness.submit(request);
    EXPECT_EQ(harness.run().tokens.drafts, 0);
    EXPECT_EQ(recorder->choice(0).usage.drafted, 0);
    EXPECT_EQ(recorder->choice(0).usage.steps, 20);
}

TEST(Stepper, DeadlinesAndCancellationsEndARequestWhereItStands) {
    TinyTarget& target = tiny_target(Family::v2);
    Harness harness(target);
    Request request = plain_request(10, 500, 8);
    const auto cancelled = harness.submit(request);
    const schedule::RequestId id = harness.ids[0];
    for (int step = 0; step < 5; ++step) harness.stepper->step();
    EXPECT_TRUE(harness.stepper->cancel(id));
    EXPECT_FALSE(harness.stepper->cancel(id));
    EXPECT_EQ(cancelled->choice(0).ended, Interruption::cancelled);
    EXPECT_EQ(cancelled->choice(0).output.tokens.size(), 5u);
    EXPECT_TRUE(harness.stepper->idle());

    request.deadline = harness.now + 50'000;  // the clock ticks 1,000 at each look
    const auto late = harness.submit(request);
    harness.run();
    EXPECT_EQ(late->choice(0).ended, Interruption::deadline);
    EXPECT_GT(late->choice(0).output.tokens.size(), 1u);
    EXPECT_LT(late->choice(0).output.tokens.size(), 20u);
    EXPECT_EQ(harness.stepper->scheduler().gauges().pages.owned, 0);
}

TEST(Stepper, AStepThatCannotRunEndsThoseInItAndNobodyElse) {
    FaultyTarget target;
    StepperSettings settings = roomy_settings();
    settings.schedule.max_rows = 1;
    Harness harness(make_target(target.model()), target.tokenizer(), settings);
    const auto first = harness.submit(plain_request(10, 10, 1));
    const auto second = harness.submit(plain_request(10, 10, 2));
    harness.stepper->step();
    target.kernels.fault = FaultyKernels::Fault::refuse_attention;
    EXPECT_EQ(harness.stepper->step().failed, 1);
    target.kernels.fault = FaultyKernels::Fault::none;
    EXPECT_EQ(first->choice(0).ended, Interruption::step_failed);
    EXPECT_EQ(first->choice(0).output.tokens.size(), 1u);
    harness.run();
    EXPECT_EQ(second->choice(0).ended, Interruption::none);
    EXPECT_EQ(second->choice(0).output.tokens.size(), 10u);
    EXPECT_EQ(harness.stepper->scheduler().gauges().pages.owned, 0);
}

TEST(Stepper, APathThatCannotMoveEndsItsRequest) {
    FaultyTarget target;
    const Request request = plain_request(10, 40, 1);
    Harness plain(make_target(target.model()), target.tokenizer());
    const auto expected = plain.submit(request);
    plain.run();
    Harness harness(make_target(target.model()), target.tokenizer(), roomy_settings(),
                    truth_last_drafter(request, expected->choice(0).output));
    const auto recorder = harness.submit(request);
    target.kernels.fault = FaultyKernels::Fault::refuse_compact;
    harness.run();
    EXPECT_EQ(recorder->choice(0).ended, Interruption::step_failed);
    EXPECT_LT(recorder->choice(0).output.tokens.size(), 40u);
}

// A drafter with layers of its own, as far as the engine can tell: it wants every committed token's
// hidden state, once, in order, before the token after it.
class TapDrafter final : public speculate::Drafter {
  public:
    explicit TapDrafter(std::map<RequestSlot, std::vector<std::int32_t>>& seen) : seen_(seen) {}
    speculate::DrafterNeeds needs() const override { return {.hidden_states = true}; }
    void begin(RequestSlot request, std::span<const std::int32_t>, std::int64_t) override {
        seen_[request].clear();
    }
    void end(RequestSlot) override {}
    Expected<void> extend(std::span<const speculate::Extension> extensions) override {
        for (const speculate::Extension& one : extensions) {
            std::vector<std::int32_t>& tokens = seen_[one.request];
            EXPECT_EQ(one.first_position, std::ssize(tokens));
            EXPECT_EQ(one.taps.size(), one.tokens.size());
            EXPECT_GE(std::ssize(one.block_table) * cache::kPageTokens,
                      one.first_position + std::ssize(one.tokens));
            tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
            for (std::size_t i = 1; i < one.taps.size(); ++i)
                EXPECT_LT(one.taps[i - 1], one.taps[i]);
        }
        return {};
    }
    void commit(std::span<const speculate::Commitment>) override {}
    Expected<void> propose(std::span<const speculate::DraftCall>) override { return {}; }

  private:
    std::map<RequestSlot, std::vector<std::int32_t>>& seen_;
};

TEST(Stepper, DraftersThatWantHiddenStatesGetThoseOfEveryCommittedToken) {
    TinyTarget& target = tiny_target(Family::v3);
    const Request request = plain_request(300, 40, 21);  // two forms: two rows in a chunk
    Harness plain(target);
    const auto expected = plain.submit(request);
    plain.run();
    const Output& output = expected->choice(0).output;
    Harness::Drafters drafters = truth_last_drafter(request, output);
    std::map<RequestSlot, std::vector<std::int32_t>> seen;
    drafters.push_back(std::make_unique<TapDrafter>(seen));
    Harness harness(target, roomy_settings(), std::move(drafters));
    const auto recorder = harness.submit(request);
    const RequestSlot slot = harness.ids[0].slot;
    // A phase of its own: a tick, and two around what the drafter takes.
    EXPECT_EQ(harness.stepper->step().spent(Phase::extend), 3000);
    harness.run();
    EXPECT_EQ(plain.stepper->step().spent(Phase::extend), 0);
    EXPECT_EQ(recorder->choice(0).output.tokens, output.tokens);
    std::vector<std::int32_t> text = whole_text(request, output);
    text.pop_back();  // drawn last, never computed
    EXPECT_EQ(seen[slot], text);
}

TEST(Stepper, RefusesLimitsThatTheModelWasNotMadeFor) {
    TinyTarget& target = tiny_target(Family::v2);
    StepperSettings settings = roomy_settings();
    settings.schedule.max_step_gather = kTinyMaxGather + 1;
    StepperParts parts{
        make_target(**target.model), *target.tokenizer, {}, [] { return schedule::Time{1}; }};
    const auto made = Stepper::create(std::move(parts), settings);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().message, "max_step_gather is 513, but the model was set up for 512");
}

TEST(Stepper, RefusesMorePagesThanTheTargetHas) {
    TinyTarget& target = tiny_target(Family::v2);
    StepperSettings settings = roomy_settings();
    settings.schedule.page_count = 66;
    StepperParts parts{
        make_target(**target.model), *target.tokenizer, {}, [] { return schedule::Time{1}; }};
    const auto made = Stepper::create(std::move(parts), settings);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().message, "page_count is 66, but the model was set up for 65");
}

TEST(ModelTarget, RefusesACacheOfMorePagesThanThereAreIds) {
    const auto made = ModelTarget::create(**tiny_target(Family::v2).model, std::int64_t{1} << 31);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().message,
              "a cache of 2147483648 pages: at least 2 and at most 2147483647 are possible");
}

}  // namespace
}  // namespace espalier::engine
