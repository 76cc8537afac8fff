// SPDX-License-Identifier: Apache-2.0
// draft_children: the fast version gives what the plain one gives, always; the plain one gives what
// its definition says, by hand; and the first coupled child over the target's own logits is the
// token that the target draws.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "ops/reference_sampling.hpp"
#include "ops/sampling_cases.hpp"

namespace espalier::ops {
namespace {

// A part of the target's vocabulary in any order, with its inverse.
struct DraftMap {
    std::vector<std::int32_t> target_of, draft_of;
    DraftVocabulary view() const {
        if (target_of.empty()) return {};
        return {target_of.data(), draft_of.data()};
    }
};

DraftMap map_of(std::vector<std::int32_t> target_of, std::int64_t vocabulary) {
    DraftMap map{std::move(target_of),
                 std::vector<std::int32_t>(static_cast<std::size_t>(vocabulary), -1)};
    for (std::size_t i = 0; i < map.target_of.size(); ++i)
        map.draft_of[static_cast<std::size_t>(map.target_of[i])] = static_cast<std::int32_t>(i);
    return map;
}

DraftMap random_map(std::mt19937& random, std::int64_t vocabulary) {
    if (random() % 3 == 0) return {};
    std::vector<std::int32_t> ids(static_cast<std::size_t>(vocabulary));
    std::iota(ids.begin(), ids.end(), 0);
    if (random() % 4 != 0) std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(1 + random() % ids.size());
    return map_of(std::move(ids), vocabulary);
}

std::vector<DraftChild> plain_children(const std::vector<float>& logits, std::int64_t vocabulary,
                                       const SamplingNode& node, const DraftMap& map,
                                       const DraftRule& rule) {
    std::vector<DraftChild> children(static_cast<std::size_t>(rule.width),
                                     DraftChild{.score = 78.0, .token = 78, .probability = 78.0f});
    reference_children(logits, vocabulary, map.view().target_of, node, rule.coupled, children);
    return children;
}

void expect_same(std::span<const DraftChild> got, std::span<const DraftChild> wanted,
                 const std::string& where) {
    ASSERT_EQ(got.size(), wanted.size()) << where;
    for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].token, wanted[i].token) << where << ", child " << i;
        ASSERT_TRUE(same_bits(&got[i].score, &wanted[i].score, 1)) << where << ", child " << i;
        ASSERT_TRUE(same_bits(&got[i].probability, &wanted[i].probability, 1))
            << where << ", child " << i;
    }
}

void compare_cases(CpuVariant variant, int cases, std::uint32_t seed, std::int64_t smallest,
                   std::int64_t largest) {
    Sampler whole_node(variant, 1), split_node(variant, 3);
    std::mt19937 random(seed);
    for (int i = 0; i < cases && !testing::Test::HasFatalFailure(); ++i) {
        const std::int64_t vocabulary =
            smallest + static_cast<std::int64_t>(random()) % (largest - smallest + 1);
        const DraftMap map = random_map(random, vocabulary);
        const auto size = map.target_of.empty() ? vocabulary : std::ssize(map.target_of);
        const std::vector<float> logits = random_logits(random, size);
        NodeCase made;
        fill_random(random, vocabulary, made);
        made.node.wanted = kDraw;
        const DraftRule rule{.width = static_cast<std::int32_t>(1 + random() % kMaxDrafts),
                             .coupled = random() % 3 != 0};
        const auto wanted = plain_children(logits, vocabulary, made.node, map, rule);
        const std::string where =
            fmt::format("{} case {}: {} of {} ids, {} children, {}coupled, {}", name_of(variant), i,
                        size, vocabulary, rule.width, rule.coupled ? "" : "un", made.describe());
        expect_same(whole_node.children(logits, vocabulary, {made.node}, map.view(), rule), wanted,
                    where);
        if (i % 8 == 0)
            expect_same(split_node.children(logits, vocabulary, {made.node}, map.view(), rule),
                        wanted, where + ", split");
    }
}

class Children : public testing::TestWithParam<CpuVariant> {};
INSTANTIATE_TEST_SUITE_P(Variants, Children, testing::ValuesIn(variants()),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST_P(Children, EqualThePlainVersionOnSmallVocabularies) {
    compare_cases(GetParam(), 8000, 1, 1, 120);
}

// Several blocks and chunks, thousands of ties.
TEST_P(Children, EqualThePlainVersionOnLargeVocabularies) {
    compare_cases(GetParam(), 120, 2, 500, 50000);
}

// Ids decide where scores are so large that noise is rounded away, and under a map the lower id
// may come later: at every size of the logits from 2⁰ to 2⁶⁰.
TEST_P(Children, TiesByRoundingGoToTheLowerTargetId) {
    Sampler sampler(GetParam(), 1);
    std::mt19937 random(3);
    constexpr std::int64_t kVocabulary = 2000;
    std::vector<std::int32_t> descending(kVocabulary);
    std::iota(descending.rbegin(), descending.rend(), 0);
    const DraftMap map = map_of(descending, kVocabulary);
    for (int power = 0; power <= 60; ++power) {
        SamplingNode node;
        node.seed = random();
        const std::vector<float> logits(kVocabulary,
                                        std::ldexp(power % 2 == 0 ? 1.5f : -1.5f, power));
        const DraftRule rule{.width = 40};
        expect_same(sampler.children(logits, kVocabulary, {node}, map.view(), rule),
                    plain_children(logits, kVocabulary, node, map, rule),
                    fmt::format("logits of 2^{}", power));
    }
}

TEST(ChildrenDefinition, ScoresAndProbabilitiesByHand) {
    const std::vector<float> logits = {1.0f, 3.0f, -kInfinity, 2.0f};
    SamplingNode node;
    node.temperature = 2.0f;
    const auto uncoupled = plain_children(logits, 4, node, {}, {.width = 5, .coupled = false});
    const double sum = std::exp(0.5) + std::exp(1.5) + std::exp(1.0);
    EXPECT_EQ(uncoupled[0].token, 1);
    EXPECT_EQ(uncoupled[0].score, 1.5);
    EXPECT_NEAR(uncoupled[0].probability, std::exp(1.5) / sum, 6e-8);  // an ulp of a half
    EXPECT_EQ(uncoupled[1].token, 3);
    EXPECT_EQ(uncoupled[2].token, 0);
    EXPECT_EQ(uncoupled[3].token, -1);  // -inf is nobody's child
    EXPECT_EQ(uncoupled[3].score, -kInfinity);
    EXPECT_EQ(uncoupled[3].probability, 0.0f);
    for (const DraftChild& child : plain_children(logits, 4, node, {}, {.width = 3})) {
        const auto token = static_cast<std::size_t>(child.token);
        EXPECT_EQ(child.score, static_cast<double>(logits[token]) * 0.5 +
                                   gumbel(node.seed, node.position, child.token, node.choice));
        EXPECT_NEAR(child.probability, std::exp(logits[token] / 2) / sum, 6e-8);
    }
    node.temperature = 0.0f;  // greedy: the logits themselves, coupled or not
    const auto greedy = plain_children(logits, 4, node, {}, {.width = 2});
    EXPECT_EQ(greedy[0].score, 3.0);
    EXPECT_EQ(greedy[1].score, 2.0);
    EXPECT_NEAR(greedy[0].probability, 1.0 / (1.0 + std::exp(-1.0) + std::exp(-2.0)), 6e-8);
}

// Biases, penalties, bans, masks and noise go by the target's ids.
TEST(ChildrenDefinition, AMapNamesEverythingByTheTargetsIds) {
    const DraftMap map = map_of({70, 3, 40}, 80);
    const std::vector<float> logits = {1.0f, 1.0f, 1.0f};
    SamplingNode node;
    node.temperature = 0.0f;
    const auto tokens = [&] {
        std::vector<std::int32_t> found;
        for (const DraftChild& child : plain_children(logits, 80, node, map, {.width = 3}))
            found.push_back(child.token);
        return found;
    };
    EXPECT_EQ(tokens(), (std::vector<std::int32_t>{3, 40, 70}));     // ties to the lower target id
    const std::vector<LogitBias> biases = {{70, 1.0f}, {0, 50.0f}};  // 0 is not the draft's first
    node.biases = biases;
    EXPECT_EQ(tokens(), (std::vector<std::int32_t>{70, 3, 40}));
    const std::vector<TokenCount> counts = {{.token = 3, .in_output = 1, .in_prompt = false}};
    node.committed = counts;
    node.presence_penalty = 0.5f;
    EXPECT_EQ(tokens(), (std::vector<std::int32_t>{70, 40, 3}));
    const std::vector<std::int32_t> banned = {70, 1};
    node.banned = banned;
    EXPECT_EQ(tokens(), (std::vector<std::int32_t>{40, 3, -1}));
    const std::vector<std::uint32_t> mask = {1u << 3, 0u, 1u << 6};
    node.allowed = mask.data();
    EXPECT_EQ(tokens(), (std::vector<std::int32_t>{3, -1, -1}));
}

TEST(ChildrenDefinition, BadLogitsAndNothingLeftGiveNone) {
    const std::vector<std::int32_t> everything = {0, 1, 2};
    const auto none = [](const std::vector<DraftChild>& children) {
        return std::all_of(children.begin(), children.end(), [](const DraftChild& child) {
            return child.token == -1 && child.score == -kInfinity && child.probability == 0.0f;
        });
    };
    SamplingNode node;
    for (const float bad : {kInfinity, std::nanf("")})
        EXPECT_TRUE(none(plain_children({1.0f, bad, 2.0f}, 3, node, {}, {.width = 2})));
    node.banned = everything;
    EXPECT_TRUE(none(plain_children({1.0f, 3.0f, 2.0f}, 3, node, {}, {.width = 2})));
}

// Filters apart, a drafter with the target's own logits proposes what the target draws.
TEST(ChildrenDefinition, TheFirstCoupledChildOfTheTargetsLogitsIsItsDraw) {
    std::mt19937 random(9);
    for (int i = 0; i < 2000; ++i) {
        const std::int64_t vocabulary = 1 + static_cast<std::int64_t>(random() % 60);
        const std::vector<float> logits = random_logits(random, vocabulary);
        NodeCase made;
        fill_random(random, vocabulary, made);
        made.node.wanted = kDraw;
        made.node.min_p = 0.0f;
        made.node.top_p = 1.0f;
        made.node.top_k = 0;
        const auto children = plain_children(logits, vocabulary, made.node, {}, {.width = 1});
        EXPECT_EQ(children[0].token, reference_draw(logits.data(), vocabulary, made.node).token)
            << made.describe();
    }
}

TEST(ChildrenRefusals, MistakesOfTheCallerAreNamed) {
    Sampler sampler(best_cpu_variant(), 1);
    const std::vector<float> logits = {0.0f, 1.0f};
    const DraftMap map = map_of({4, 2}, 5);
    const auto children = [&](std::int64_t vocabulary, const DraftVocabulary& draft, int width) {
        return sampler.children(logits, vocabulary, {SamplingNode{}}, draft, {.width = width});
    };
    EXPECT_NO_THROW(children(5, map.view(), 2));
    EXPECT_THROW(children(5, map.view(), 0), std::exception);
    EXPECT_THROW(children(5, map.view(), kMaxDrafts + 1), std::exception);
    EXPECT_THROW(children(5, {map.target_of.data(), nullptr}, 2), std::exception);
    EXPECT_THROW(children(5, {}, 2), std::exception);          // two logits for five ids
    EXPECT_THROW(children(1, map.view(), 2), std::exception);  // more of them than ids
}

}  // namespace
}  // namespace espalier::ops
