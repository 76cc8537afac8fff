// SPDX-License-Identifier: Apache-2.0
// sample_nodes: the fast version draws what the plain one draws, always; the plain one draws from
// the distribution it should; a draw depends on (logits, parameters, seed, position, choice) alone.
#include <gtest/gtest.h>

#include "ops/reference_sampling.hpp"
#include "ops/sampling_cases.hpp"

namespace espalier::ops {
namespace {

void compare_cases(CpuVariant variant, bool adjusted, int cases, std::uint32_t seed,
                   std::int64_t smallest, std::int64_t largest) {
    Sampler whole_node(variant, 1);
    Sampler split_node(variant, 3);
    std::mt19937 random(seed);
    for (int i = 0; i < cases && !testing::Test::HasFailure(); ++i) {
        const std::int64_t vocabulary =
            smallest + static_cast<std::int64_t>(random()) % (largest - smallest + 1);
        const std::vector<float> logits = random_logits(random, vocabulary);
        NodeCase made;
        if (adjusted) {
            fill_random(random, vocabulary, made);
        } else {
            made.node = random_filters(random);
        }
        const std::size_t top_count = random() % 3 == 0 ? random() % (kMaxTopLogprobs + 1) : 0;
        const Outcome wanted = reference_outcome(logits, made.node, top_count);
        const std::string where =
            fmt::format("{} case {}: V {} {}", name_of(variant), i, vocabulary, made.describe());
        expect_same(whole_node.draw_one(logits, made.node, top_count), wanted, where);
        if (i % 8 == 0)
            expect_same(split_node.draw_one(logits, made.node, top_count), wanted,
                        where + ", split");
    }
}

class Sampling : public testing::TestWithParam<CpuVariant> {};
INSTANTIATE_TEST_SUITE_P(Variants, Sampling, testing::ValuesIn(variants()),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(Sampling, EqualsThePlainVersionOnSmallVocabularies) {
    compare_cases(GetParam(), false, 6000, 1, 1, 120);
    compare_cases(GetParam(), true, 12000, 4, 1, 120);
}

// Thousands of ties and several chunks: the narrowing of prefixes and the split over threads.
TEST_P(Sampling, EqualsThePlainVersionOnLargeVocabularies) {
    compare_cases(GetParam(), false, 60, 2, 1500, 50000);
    compare_cases(GetParam(), true, 80, 5, 1500, 50000);
}

TEST_P(Sampling, ManyNodesAtOnceAreManySingleNodes) {
    std::mt19937 random(3);
    constexpr std::int64_t kVocabulary = 3000;
    constexpr std::size_t kNodes = 40;
    std::vector<float> logits;
    std::vector<NodeCase> made(kNodes);
    std::vector<SamplingNode> nodes;
    std::vector<std::size_t> top_counts;
    std::vector<Outcome> wanted;
    for (std::size_t g = 0; g < kNodes; ++g) {
        const std::vector<float> row = random_logits(random, kVocabulary);
        logits.insert(logits.end(), row.begin(), row.end());
        if (g % 4 != 0) fill_random(random, kVocabulary, made[g]);
        nodes.push_back(g % 4 != 0 ? made[g].node : random_filters(random));
        top_counts.push_back(g % 5);
        wanted.push_back(reference_outcome(row, nodes[g], top_counts[g]));
    }
    for (int workers = 1; workers <= 3; ++workers) {
        const std::vector<Outcome> outcomes =
            Sampler(GetParam(), workers).draw(logits, nodes, top_counts);
        for (std::size_t g = 0; g < nodes.size(); ++g)
            expect_same(outcomes[g], wanted[g], fmt::format("node {} with {} workers", g, workers));
    }
}

TEST(SamplingDefinition, FlagsSayWhy) {
    const std::vector<float> nan = {0.0f, std::nanf(""), 1.0f};
    const std::vector<float> infinite = {0.0f, kInfinity};
    const std::vector<float> nothing = {-kInfinity, -kInfinity};
    EXPECT_EQ(reference_draw(nan.data(), 3, {}).flag, DrawFlag::bad_logits);
    EXPECT_EQ(reference_draw(infinite.data(), 2, {}).flag, DrawFlag::bad_logits);
    EXPECT_EQ(reference_draw(nothing.data(), 2, {}).flag, DrawFlag::nothing_left);
    EXPECT_EQ(reference_draw(nothing.data(), 2, {}).token, -1);
}

TEST(SamplingDefinition, GreedyTakesTheLowestOfEqualLogitsAndReportsItsLogprob) {
    const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f};
    SamplingNode node;
    node.temperature = 0.0f;
    const Draw draw = reference_draw(logits.data(), 4, node);
    EXPECT_EQ(draw.token, 1);
    const double sum = std::exp(-2.0) + 2.0 + std::exp(-1.0);
    EXPECT_NEAR(draw.logprob, -std::log(sum),
                1e-7);  // half an ulp of 0.92, plus 4 · 2⁻⁴⁵ of fixed point
}

// Filters by hand: probabilities 0.4, 0.3, 0.2, 0.1.
TEST(SamplingDefinition, FiltersKeepThePrefixTheySay) {
    const std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f),
                                       std::log(0.3f)};
    const auto support = [&](const SamplingNode& proto) {
        std::vector<bool> seen(4);
        for (std::int32_t position = 0; position < 400; ++position) {
            SamplingNode node = proto;
            node.position = position;
            seen[static_cast<std::size_t>(reference_draw(logits.data(), 4, node).token)] = true;
        }
        return seen;
    };
    SamplingNode node;
    EXPECT_EQ(support(node), (std::vector<bool>{true, true, true, true}));
    node.top_k = 2;
    EXPECT_EQ(support(node), (std::vector<bool>{false, true, false, true}));
    node.top_k = 0;
    node.top_p = 0.75f;  // 0.4 + 0.3 < 0.75: the crossing token, 0.2, stays
    EXPECT_EQ(support(node), (std::vector<bool>{true, true, false, true}));
    node.top_k = 2;  // of 0.4 and 0.3, 0.4 is 0.571 and does not reach 0.75
    EXPECT_EQ(support(node), (std::vector<bool>{false, true, false, true}));
    node.top_p = 0.55f;
    EXPECT_EQ(support(node), (std::vector<bool>{false, true, false, false}));
    node = {};
    node.min_p = 0.45f;  // 0.2 / 0.4 = 0.5 stays, 0.25 goes
    EXPECT_EQ(support(node), (std::vector<bool>{true, true, false, true}));
}

double chi_square(const std::vector<std::int64_t>& counts,
                  const std::vector<double>& probabilities) {
    std::int64_t total = 0;
    for (const std::int64_t count : counts) total += count;
    double sum = 0.0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
        const double expected = probabilities[i] * static_cast<double>(total);
        const double difference = static_cast<double>(counts[i]) - expected;
        sum += difference * difference / expected;
    }
    return sum;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
    std::vector<double> p;
    double sum = 0.0;
    for (const float logit : logits)
        sum += p.emplace_back(std::exp(static_cast<double>(logit) / temperature));
    for (double& value : p) value /= sum;
    return p;
}

// Under the right distribution χ² with 7 degrees of freedom exceeds 40.52 once in 10⁶; seeds are
// fixed, so a pass stays a pass. Every way of advancing the counter must be as good: positions,
// choices, seeds.
TEST(SamplingDefinition, DrawsFollowTheSoftmax) {
    const std::vector<float> logits = {0.3f, -1.2f, 2.0f, 0.0f, 1.1f, -0.4f, 0.9f, 1.7f};
    for (int axis = 0; axis < 3; ++axis) {
        std::vector<std::int64_t> counts(8);
        for (std::int32_t i = 0; i < 100000; ++i) {
            SamplingNode node;
            node.temperature = 1.3f;
            node.seed = axis == 2 ? static_cast<std::uint64_t>(i) << 20 : 99;
            node.position = axis == 0 ? i : 12;
            node.choice = axis == 1 ? i : 0;
            ++counts[static_cast<std::size_t>(reference_draw(logits.data(), 8, node).token)];
        }
        EXPECT_LT(chi_square(counts, softmax(logits, 1.3f)), 40.52) << "axis " << axis;
    }
}

// Pairs of draws at neighbouring positions, choices and seeds are independent: 16 cells, 15 degrees
// of freedom, once in 10⁶ above 56.49.
TEST(SamplingDefinition, NeighbouringDrawsAreIndependent) {
    const std::vector<float> logits = {0.3f, -0.5f, 1.0f, 0.0f};
    const std::vector<double> p = softmax(logits, 1.0);
    std::vector<double> joint;
    for (const double a : p)
        for (const double b : p) joint.push_back(a * b);
    for (int axis = 0; axis < 3; ++axis) {
        std::vector<std::int64_t> counts(16);
        for (std::int32_t i = 0; i < 50000; ++i) {
            SamplingNode first;
            first.seed = 4242;
            first.position = 2 * i;
            SamplingNode second = first;
            if (axis == 0) ++second.position;
            if (axis == 1) ++second.choice;
            if (axis == 2) ++second.seed;
            const std::int32_t a = reference_draw(logits.data(), 4, first).token;
            const std::int32_t b = reference_draw(logits.data(), 4, second).token;
            ++counts[static_cast<std::size_t>(4 * a + b)];
        }
        EXPECT_LT(chi_square(counts, joint), 56.49) << "axis " << axis;
    }
}

// The noise belongs to a token id: a token that cannot win changes nobody's draw.
TEST(SamplingDefinition, ATokenOutOfReachDoesNotChangeTheDraw) {
    std::vector<float> logits = {0.3f, -0.5f, 1.0f, -100.0f, 0.0f};
    for (std::int32_t position = 0; position < 200; ++position) {
        SamplingNode node;
        node.position = position;
        logits[3] = -100.0f;
        const std::int32_t before = reference_draw(logits.data(), 5, node).token;
        logits[3] = -kInfinity;
        EXPECT_EQ(reference_draw(logits.data(), 5, node).token, before);
    }
}

}  // namespace
}  // namespace espalier::ops
