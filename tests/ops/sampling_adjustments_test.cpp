// SPDX-License-Identifier: Apache-2.0
// What a request may ask of a draw beside filters, by hand: numbers that can be checked on paper,
// for the plain version and for every variant (sampling_test.cpp holds them equal at random).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "ops/reference_sampling.hpp"
#include "ops/sampling_cases.hpp"

namespace espalier::ops {
namespace {

// The same by the plain version and by each variant, whole and split.
Outcome outcome_of(const std::vector<float>& logits, const SamplingNode& node,
                   std::size_t top_count = 0) {
    const Outcome wanted = reference_outcome(logits, node, top_count);
    for (const CpuVariant variant : variants())
        for (const int workers : {1, 3})
            expect_same(Sampler(variant, workers).draw_one(logits, node, top_count), wanted,
                        std::string(name_of(variant)));
    return wanted;
}

SamplingNode greedy() {
    SamplingNode node;
    node.temperature = 0.0f;
    return node;
}

std::int32_t greedy_token(const std::vector<float>& logits, const SamplingNode& node) {
    const Outcome outcome = outcome_of(logits, node);
    EXPECT_EQ(outcome.draw.flag, DrawFlag::fine);
    return outcome.draw.token;
}

TEST(SamplingAdjustments, BiasMovesTheChoiceButNotTheLogprob) {
    const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
    const std::array<LogitBias, 2> biases = {LogitBias{2, 1.5f}, LogitBias{1, 0.25f}};
    SamplingNode node = greedy();
    node.biases = biases;  // 1, 3.25, 3.5
    const Draw draw = outcome_of(logits, node).draw;
    EXPECT_EQ(draw.token, 2);
    SamplingNode plain;
    plain.wanted = 2;
    EXPECT_EQ(draw.logprob, outcome_of(logits, plain).draw.logprob);
}

TEST(SamplingAdjustments, RepetitionDividesPositiveAndMultipliesOtherLogits) {
    const std::array<TokenCount, 2> counts = {
        TokenCount{.token = 0, .in_output = 0, .in_prompt = true},
        TokenCount{.token = 1, .in_output = 5, .in_prompt = false}};
    SamplingNode node = greedy();
    node.committed = counts;
    node.repetition_penalty = 2.0f;
    EXPECT_EQ(greedy_token({4.0f, 4.0f, 2.5f}, node), 2);     // 2, 2, 2.5: prompt and output alike
    EXPECT_EQ(greedy_token({4.0f, 6.0f, 2.5f}, node), 1);     // 2, 3, 2.5: however often
    EXPECT_EQ(greedy_token({-1.0f, -1.0f, -1.5f}, node), 2);  // -2, -2, -1.5
    EXPECT_EQ(greedy_token({0.0f, -1.0f, -0.5f}, node), 0);   // 0 stays 0
}

TEST(SamplingAdjustments, PresenceAndFrequencyCountTheOutputOnly) {
    const std::array<TokenCount, 3> counts = {
        TokenCount{.token = 0, .in_output = 0, .in_prompt = true},
        TokenCount{.token = 1, .in_output = 1, .in_prompt = true},
        TokenCount{.token = 2, .in_output = 3, .in_prompt = false}};
    SamplingNode node = greedy();
    node.committed = counts;
    node.presence_penalty = 1.0f;
    EXPECT_EQ(greedy_token({2.0f, 2.9f, 2.9f}, node), 0);  // 2, 1.9, 1.9
    EXPECT_EQ(greedy_token({2.0f, 2.9f, 3.1f}, node), 2);  // 2, 1.9, 2.1
    node.presence_penalty = 0.0f;
    node.frequency_penalty = 1.0f;
    EXPECT_EQ(greedy_token({2.0f, 3.5f, 5.0f}, node), 1);  // 2, 2.5, 2
    node.presence_penalty = -1.0f;
    EXPECT_EQ(greedy_token({2.0f, 1.5f, 5.25f}, node), 2);  // 2, 1.5, 3.25
}

// Bias, then repetition, then the others: every other order would choose token 1.
TEST(SamplingAdjustments, StepsFollowTheirOrder) {
    const std::array<TokenCount, 1> counts = {
        TokenCount{.token = 0, .in_output = 1, .in_prompt = false}};
    const std::array<LogitBias, 1> biases = {LogitBias{0, 6.0f}};
    SamplingNode node = greedy();
    node.committed = counts;
    node.repetition_penalty = 0.5f;
    node.biases = biases;
    // (-2 + 6) / 0.5 = 8; repetition first would give -1 + 6 = 5.
    EXPECT_EQ(greedy_token({-2.0f, 7.0f}, node), 0);
    node.presence_penalty = 1.0f;
    // 8 - 1 = 7 ties with 7: the lower id. Presence before repetition gives 6.
    EXPECT_EQ(greedy_token({-2.0f, 6.5f}, node), 0);
    EXPECT_EQ(greedy_token({-2.0f, 7.0f}, node), 0);
    EXPECT_EQ(greedy_token({-2.0f, 7.5f}, node), 1);
}

TEST(SamplingAdjustments, ChangedCountsReplaceCommittedOnes) {
    const std::array<TokenCount, 2> committed = {
        TokenCount{.token = 0, .in_output = 3, .in_prompt = false},
        TokenCount{.token = 1, .in_output = 1, .in_prompt = false}};
    const std::array<TokenCount, 2> changed = {
        TokenCount{.token = 1, .in_output = 2, .in_prompt = false},
        TokenCount{.token = 2, .in_output = 1, .in_prompt = false}};
    SamplingNode node = greedy();
    node.frequency_penalty = 1.0f;
    node.committed = committed;
    EXPECT_EQ(greedy_token({6.0f, 5.0f, 3.5f}, node), 1);  // 3, 4, 3.5
    node.changed = changed;
    EXPECT_EQ(greedy_token({6.0f, 5.5f, 4.25f}, node), 1);  // 3, 3.5, 3.25; not 5.5 - 1 - 2
    EXPECT_EQ(greedy_token({6.0f, 5.0f, 4.5f}, node), 2);   // 3, 3, 3.5
}

TEST(SamplingAdjustments, BannedAndForbiddenTokensAreNeverDrawn) {
    std::vector<float> logits(70, 0.0f);
    logits[69] = 50.0f;
    logits[3] = 40.0f;
    const std::array<std::int32_t, 3> banned = {69, 3, 69};
    std::array<std::uint32_t, 3> allowed = {0xffffffffu, 0u, 0xffffffffu};  // beyond 70: nobody
    for (std::int32_t position = 0; position < 200; ++position) {
        SamplingNode node;
        node.position = position;
        node.banned = banned;
        node.allowed = allowed.data();
        const Draw draw = outcome_of(logits, node).draw;
        EXPECT_EQ(draw.flag, DrawFlag::fine);
        EXPECT_TRUE(draw.token < 32 ? draw.token != 3 : draw.token >= 64 && draw.token < 69)
            << draw.token;
    }
    SamplingNode node = greedy();
    allowed = {1u << 3, 0u, 1u << 5};
    node.allowed = allowed.data();
    EXPECT_EQ(greedy_token(logits, node), 69);
    node.banned = banned;
    EXPECT_EQ(outcome_of(logits, node, 2).draw.flag, DrawFlag::nothing_left);
    EXPECT_EQ(outcome_of(logits, node, 2).draw.token, -1);
    EXPECT_EQ(outcome_of(logits, node, 2).top[0].token, 69);  // reports are of the raw logits
    allowed = {0u, 0u, 0xffffffc0u};                          // bits 70 and on alone
    node.banned = {};
    EXPECT_EQ(outcome_of(logits, node).draw.flag, DrawFlag::nothing_left);
}

// A ban is not a bad logit, and a bad logit stays one behind a ban and a mask.
TEST(SamplingAdjustments, ABadRawLogitIsFoundWhateverHidesIt) {
    const std::array<std::int32_t, 1> banned = {1};
    const std::array<std::uint32_t, 1> allowed = {1u};
    for (const float bad : {kInfinity, std::nanf("")}) {
        const std::vector<float> logits = {1.0f, bad, 2.0f};
        SamplingNode node;
        node.banned = banned;
        node.allowed = allowed.data();
        EXPECT_EQ(outcome_of(logits, node, 2).draw.flag, DrawFlag::bad_logits);
        node.wanted = 0;
        const Outcome outcome = outcome_of(logits, node, 2);
        EXPECT_EQ(outcome.draw.flag, DrawFlag::bad_logits);
        EXPECT_EQ(outcome.draw.token, -1);
        EXPECT_EQ(outcome.top[0], (TokenLogprob{-1, -kInfinity}));
    }
}

// Penalties can leave the range of f32; a finite logit stays drawable and an impossible one
// impossible.
TEST(SamplingAdjustments, FiniteStaysFiniteAndMinusInfinityStays) {
    const std::array<TokenCount, 3> counts = {
        TokenCount{.token = 0, .in_output = 2000000000, .in_prompt = true},
        TokenCount{.token = 1, .in_output = 1, .in_prompt = true},
        TokenCount{.token = 2, .in_output = 1, .in_prompt = true}};
    const std::array<LogitBias, 1> biases = {LogitBias{2, 3e38f}};
    SamplingNode node = greedy();
    node.committed = counts;
    node.biases = biases;
    node.repetition_penalty = 100.0f;
    EXPECT_EQ(greedy_token({-3e38f, -3.1e38f, -kInfinity}, node), 0);  // both end at the smallest
    EXPECT_EQ(greedy_token({-kInfinity, -3e38f, -kInfinity}, node), 1);
    node.repetition_penalty = 1e-38f;
    EXPECT_EQ(greedy_token({-1.0f, 5.0f, -kInfinity}, node), 1);  // 5e38 is the largest
    EXPECT_EQ(greedy_token({6.0f, 5.0f, -kInfinity}, node), 0);   // as is 6e38: the lower id
    node.frequency_penalty = 3e38f;
    EXPECT_EQ(greedy_token({-kInfinity, 5.0f, -kInfinity}, node), 1);
    EXPECT_EQ(outcome_of({-kInfinity, -kInfinity, -kInfinity}, node).draw.flag,
              DrawFlag::nothing_left);
}

TEST(SamplingReports, AlternativesAreTheLargestRawLogitsTiesToTheLowerId) {
    const std::vector<float> logits = {1.0f, 2.0f, 2.0f, -kInfinity, 2.0f, 3.0f};
    const std::array<LogitBias, 1> biases = {LogitBias{0, 100.0f}};
    SamplingNode node = greedy();
    node.biases = biases;
    const Outcome outcome = outcome_of(logits, node, 6);
    EXPECT_EQ(outcome.draw.token, 0);
    const std::vector<std::int32_t> order = {5, 1, 2, 4, 0, -1};
    const double sum = 1.0 + 3.0 * std::exp(-1.0) + std::exp(-2.0);
    for (std::size_t i = 0; i < order.size(); ++i) {
        EXPECT_EQ(outcome.top[i].token, order[i]);
        if (order[i] < 0) {
            EXPECT_EQ(outcome.top[i].logprob, -kInfinity);
            continue;
        }
        const double logit = logits[static_cast<std::size_t>(order[i])];
        // Half an ulp of a number below 4 and what fixed point drops.
        EXPECT_NEAR(outcome.top[i].logprob, logit - 3.0 - std::log(sum), 2e-7);
    }
    EXPECT_EQ(outcome.draw.logprob, outcome.top[4].logprob);
}

// More ties than places, across blocks and chunks.
TEST(SamplingReports, TiesAcrossAVocabularyGoToTheLowestIds) {
    std::vector<float> logits(40000, 0.5f);
    logits[39999] = logits[20000] = 1.0f;
    const Outcome outcome = outcome_of(logits, greedy(), kMaxTopLogprobs);
    EXPECT_EQ(outcome.top[0].token, 20000);
    EXPECT_EQ(outcome.top[1].token, 39999);
    for (std::int32_t i = 2; i < kMaxTopLogprobs; ++i)
        EXPECT_EQ(outcome.top[static_cast<std::size_t>(i)].token, i - 2);
    // Ascending: every logit enters the list.
    for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i) * 1e-3f;
    EXPECT_EQ(outcome_of(logits, greedy(), 3).top[2].token, 39997);
}

TEST(SamplingReports, AWantedTokenIsReportedAndNothingIsDrawn) {
    const std::vector<float> logits = {0.0f, 1.0f, -kInfinity};
    const std::array<std::int32_t, 1> banned = {0};
    SamplingNode node;
    node.banned = banned;  // of no concern to what is in the prompt already
    node.wanted = 0;
    const Outcome outcome = outcome_of(logits, node, 1);
    EXPECT_EQ(outcome.draw.token, 0);
    EXPECT_EQ(outcome.draw.flag, DrawFlag::fine);
    EXPECT_NEAR(outcome.draw.logprob, -std::log1p(std::exp(1.0)), 1.2e-7);  // half an ulp of 1.3
    EXPECT_EQ(outcome.top[0].token, 1);
    node.wanted = 2;
    EXPECT_EQ(outcome_of(logits, node).draw.logprob, -kInfinity);
    EXPECT_EQ(outcome_of({-kInfinity, -kInfinity},
                         [] {
                             SamplingNode all;
                             all.wanted = 1;
                             return all;
                         }())
                  .draw.flag,
              DrawFlag::nothing_left);
}

TEST(SamplingReports, ALogprobThatNobodyAsksForIsNoNumber) {
    const std::vector<float> logits = {0.0f, 1.0f, 0.5f};
    SamplingNode node;
    node.top_p = 0.9f;
    const Draw told = outcome_of(logits, node).draw;
    node.logprob = false;
    const Draw untold = outcome_of(logits, node).draw;
    EXPECT_EQ(untold.token, told.token);
    EXPECT_EQ(untold.flag, DrawFlag::fine);
    EXPECT_TRUE(std::isnan(untold.logprob));
    EXPECT_EQ(outcome_of(logits, node, 1).draw.logprob, told.logprob);
    node.wanted = told.token;
    EXPECT_EQ(outcome_of(logits, node).draw.logprob, told.logprob);
}

// A caller's mistakes are found before memory is touched.
TEST(SamplingReports, MistakesOfTheCallerAreNamed) {
    const std::vector<float> logits = {0.0f, 1.0f};
    const std::array<std::int32_t, 1> banned = {2};
    const std::array<LogitBias, 1> outside = {LogitBias{-1, 0.0f}};
    const std::array<LogitBias, 1> infinite = {LogitBias{0, kInfinity}};
    const std::array<TokenCount, 1> counts = {TokenCount{.token = 2, .in_output = 1}};
    const std::vector<TokenCount> many(kMaxDrafts + 1);
    const auto refuses = [&](auto&& change, std::size_t top_count = 0) {
        SamplingNode node;
        change(node);
        for (const CpuVariant variant : variants())
            EXPECT_THROW(Sampler(variant, 1).draw_one(logits, node, top_count), std::exception);
    };
    refuses([&](SamplingNode& node) { node.banned = banned; });
    refuses([&](SamplingNode& node) { node.biases = outside; });
    refuses([&](SamplingNode& node) { node.biases = infinite; });
    refuses([&](SamplingNode& node) { node.changed = many; });
    refuses([&](SamplingNode& node) { node.wanted = 2; });
    refuses([&](SamplingNode& node) { node.repetition_penalty = 0.0f; });
    refuses([&](SamplingNode& node) { node.presence_penalty = std::nanf(""); });
    refuses([&](SamplingNode& node) {
        node.presence_penalty = 1.0f;
        node.committed = counts;
    });
    refuses([&](SamplingNode& node) {
        node.presence_penalty = 1.0f;
        node.changed = counts;
    });
    refuses([](SamplingNode&) {}, kMaxTopLogprobs + 1);
}

}  // namespace
}  // namespace espalier::ops
