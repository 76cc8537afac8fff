// SPDX-License-Identifier: Apache-2.0
// The steady step loop takes no memory: plain decode and tree decode, after a warm-up.
#include <gtest/gtest.h>

#include "engine/harness.hpp"
#include "lossless/random_drafter.hpp"
#include "speculate/ngram.hpp"
#include "support/allocation_counter.hpp"

namespace espalier::engine {
namespace {

// Counts what arrives and keeps nothing: what a reader does with its updates is its own.
class Counter final : public Receiver {
  public:
    void receive(const Update& update) override {
        tokens += std::ssize(update.emission.tokens);
        drafted = update.usage.drafted;
    }
    std::int64_t tokens = 0, drafted = 0;
};

// Repeats itself, so that the n-gram drafter has trees to offer.
Request repetitive_request(std::uint64_t seed, bool penalties) {
    Request request = plain_request(40, 400, seed);
    for (std::size_t i = 0; i < request.prompt.size(); ++i)
        request.prompt[i] = static_cast<std::int32_t>(100 + i % 5 + seed);
    request.sampling.temperature = 1.0f;
    for (std::int32_t token = 100; token < 106; ++token)
        request.sampling.logit_bias.push_back({token, 12.0f});
    request.output.top_logprobs = 3;
    request.output.stop = {"zq", "qz"};
    if (penalties) request.sampling.frequency_penalty = 0.01f;
    return request;
}

struct Count {
    std::int64_t allocations = 0, tokens = 0, drafted = 0;
};

Count count(NodeGrant grant, Harness::Drafters drafters, bool penalties, int steps) {
    StepperSettings settings = roomy_settings();
    settings.grant = grant;
    Harness harness(tiny_target(Family::v3), settings, std::move(drafters));
    const auto counter = std::make_shared<Counter>();
    for (std::uint64_t seed = 1; seed <= 4; ++seed)
        harness.stepper->submit(harness.check(repetitive_request(seed, penalties)), counter);
    // A measured grant fits its times anew while the first steps are watched.
    for (int step = 0; step < 25; ++step) harness.stepper->step();
    const std::int64_t tokens = counter->tokens;
    const std::int64_t before = allocations_so_far();
    for (int step = 0; step < steps; ++step) harness.stepper->step();
    const std::int64_t after = allocations_so_far();
    EXPECT_EQ(harness.stepper->scheduler().gauges().running, 4);
    return {after - before, counter->tokens - tokens, counter->drafted};
}

Harness::Drafters ngram() {
    Harness::Drafters drafters;
    drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    return drafters;
}

TEST(Allocation, PlainDecodeTakesNone) {
    const Count counted = count(NodeGrant::everything, {}, false, 100);
    EXPECT_EQ(counted.allocations, 0);
    EXPECT_EQ(counted.tokens, 400);
}

TEST(Allocation, PlainDecodeWithPenaltiesTakesNone) {
    EXPECT_EQ(count(NodeGrant::everything, {}, true, 100).allocations, 0);
}

TEST(Allocation, TreeDecodeTakesNone) {
    for (const bool penalties : {false, true}) {
        const Count counted = count(NodeGrant::everything, ngram(), penalties, 30);
        EXPECT_EQ(counted.allocations, 0);
        EXPECT_GT(counted.drafted, 50);
        EXPECT_GT(counted.tokens, 130);
    }
}

TEST(Allocation, AMeasuredGrantTakesNone) {
    EXPECT_EQ(count(NodeGrant::measured, ngram(), false, 30).allocations, 0);
}

}  // namespace
}  // namespace espalier::engine
