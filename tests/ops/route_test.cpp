// SPDX-License-Identifier: Apache-2.0
// Routing against an independent definition that sorts, on random cases with ties, groups, pads and
// NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "base/portable_math.hpp"
#include "ops/support.hpp"

namespace espalier::ops {
namespace {

struct Routed {
    std::map<std::int32_t, float> weights;  // by expert
};

std::vector<std::int32_t> descending(const std::vector<float>& values) {
    std::vector<std::int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
    });
    return order;
}

Routed brute_force(const std::vector<float>& logits, const float* bias, const RouterRule& rule) {
    std::vector<float> scores;
    const float maximum = *std::max_element(logits.begin(), logits.end());
    double sum = 0.0;
    for (const float logit : logits) {
        scores.push_back(rule.score == RouterScore::sigmoid ? portable_sigmoid(logit)
                                                            : portable_exp(logit - maximum));
        sum += scores.back();
    }
    if (rule.score == RouterScore::softmax)
        for (float& score : scores) score /= static_cast<float>(sum);
    std::vector<float> choice = scores;
    if (bias != nullptr)
        for (std::size_t e = 0; e < choice.size(); ++e) choice[e] += bias[e];

    if (rule.group_score != GroupScore::none) {
        const auto size = static_cast<std::ptrdiff_t>(rule.experts / rule.groups);
        std::vector<float> group_scores;
        for (std::ptrdiff_t g = 0; g < rule.groups; ++g) {
            std::vector<float> group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
            std::sort(group.rbegin(), group.rend());
            const bool two = rule.group_score == GroupScore::top_two_sum && size > 1;
            group_scores.push_back(two ? group[0] + group[1] : group[0]);
        }
        const std::vector<std::int32_t> order = descending(group_scores);
        for (std::size_t place = static_cast<std::size_t>(rule.top_groups); place < order.size();
             ++place)
            std::fill_n(choice.begin() + order[place] * size, size,
                        -std::numeric_limits<float>::infinity());
    }
    std::vector<std::int32_t> chosen = descending(choice);
    chosen.resize(static_cast<std::size_t>(rule.top_k));
    Routed routed;
    for (const std::int32_t expert : chosen)
        routed.weights[expert] = scores[static_cast<std::size_t>(expert)];
    float total = 0.0f;
    for (const auto& [expert, weight] : routed.weights) total += weight;
    for (auto& [expert, weight] : routed.weights) {
        if (rule.normalise) weight /= total + 1e-20f;
        weight *= rule.scaling;
    }
    return routed;
}

struct Case {
    RouterRule rule;
    std::vector<float> bias;
    std::int64_t tokens;
    std::vector<float> logits;
    std::vector<std::int32_t> row_of;
    std::vector<bool> broken;  // has a NaN
};

Case random_case(std::mt19937& random) {
    const auto below = [&](std::int32_t limit) {
        return static_cast<std::int32_t>(random() % static_cast<unsigned>(limit));
    };
    Case made;
    RouterRule& rule = made.rule;
    rule.groups = 1 + below(8);
    const std::int32_t size = 1 + below(12);
    rule.experts = rule.groups * size;
    rule.top_groups = 1 + below(rule.groups);
    rule.group_score = static_cast<GroupScore>(below(3));
    const std::int32_t open =
        rule.group_score == GroupScore::none ? rule.experts : rule.top_groups * size;
    rule.top_k = 1 + below(std::min(open, 12));
    rule.score = below(2) == 0 ? RouterScore::softmax : RouterScore::sigmoid;
    rule.normalise = below(2) == 0;
    rule.scaling = below(2) == 0 ? 1.0f : 2.5f;
    std::normal_distribution<float> normal(0.0f, 2.0f);
    const bool ties = below(2) == 0;
    const auto number = [&] { return ties ? static_cast<float>(below(4)) - 1.0f : normal(random); };
    if (below(2) == 0)
        for (std::int32_t e = 0; e < rule.experts; ++e) made.bias.push_back(number());
    made.tokens = 1 + below(9);
    for (std::int64_t t = 0; t < made.tokens; ++t) {
        const bool broken = below(10) == 0;
        const std::size_t first = made.logits.size();
        for (std::int32_t e = 0; e < rule.experts; ++e) made.logits.push_back(number());
        if (broken)
            made.logits[first + static_cast<std::size_t>(below(rule.experts))] = std::nanf("");
        made.broken.push_back(broken);
        made.row_of.push_back(below(5) == 0 ? -1 : below(3));
    }
    return made;
}

void check_token(const Case& made, const PlanStore& store, std::int64_t t) {
    const RouterRule& rule = made.rule;
    const auto at = static_cast<std::size_t>(t * rule.top_k);
    const auto token = static_cast<std::size_t>(t);
    if (made.row_of[token] < 0) {
        for (std::size_t i = at; i < at + static_cast<std::size_t>(rule.top_k); ++i) {
            EXPECT_EQ(store.expert[i], -1);
            EXPECT_EQ(store.pair_of[i], -1);
        }
        return;
    }
    if (made.broken[token]) {
        for (std::int32_t i = 0; i < rule.top_k; ++i) {
            EXPECT_EQ(store.expert[at + static_cast<std::size_t>(i)], i);
            EXPECT_TRUE(std::isnan(store.weight[at + static_cast<std::size_t>(i)]));
        }
        return;
    }
    const auto begin = made.logits.begin() + t * rule.experts;
    const Routed wanted = brute_force({begin, begin + rule.experts},
                                      made.bias.empty() ? nullptr : made.bias.data(), rule);
    std::size_t i = at;
    for (const auto& [expert, weight] :
         wanted.weights) {  // a map is ascending, and so must the plan be
        EXPECT_EQ(store.expert[i], expert);
        EXPECT_EQ(store.weight[i], weight);
        ++i;
    }
}

// The pairs, once more from the definition: sorted by expert, tokens ascending.
void check_pairs(const Case& made, const PlanStore& store) {
    const RouterRule& rule = made.rule;
    std::int32_t pair = 0;
    for (std::int32_t e = 0; e < rule.experts; ++e) {
        EXPECT_EQ(store.indptr[static_cast<std::size_t>(e)], pair);
        for (std::size_t i = 0; i < store.expert.size(); ++i) {
            if (store.expert[i] != e) continue;
            EXPECT_EQ(store.pair_of[i], pair);
            EXPECT_EQ(store.source_token[static_cast<std::size_t>(pair)],
                      static_cast<std::int32_t>(i) / rule.top_k);
            ++pair;
        }
    }
    EXPECT_EQ(store.indptr[static_cast<std::size_t>(rule.experts)], pair);
}

void check_backend(const Backend& backend) {
    Arena arena = make_arena(1 << 20);
    CpuDevice device(2);
    OpContext context{device, arena};
    std::mt19937 random(5);
    for (int round = 0; round < 2000 && !testing::Test::HasFailure(); ++round) {
        Case made = random_case(random);
        PlanStore store(made.tokens, made.rule);
        backend.route(context, Matrix::of(made.logits.data(), made.tokens, made.rule.experts),
                      made.bias.empty() ? nullptr : made.bias.data(), made.rule, made.row_of.data(),
                      store.plan());
        for (std::int64_t t = 0; t < made.tokens; ++t) check_token(made, store, t);
        check_pairs(made, store);
        EXPECT_FALSE(testing::Test::HasFailure()) << backend.name() << ", case " << round;
    }
}

TEST(Route, ReferenceIsTheDefinition) { check_backend(*make_reference_backend()); }

TEST(Route, EveryVariantIsTheDefinition) {
    for (const CpuVariant variant : variants()) check_backend(*make_cpu_backend(variant));
}

// A case worked by hand, in the shape of V3: the bias steers the choice and stays out of the
// weights.
TEST(Route, BiasChoosesButDoesNotWeigh) {
    RouterRule rule;
    rule.score = RouterScore::sigmoid;
    rule.group_score = GroupScore::top_two_sum;
    rule.experts = 4;
    rule.groups = 2;
    rule.top_groups = 1;
    rule.top_k = 2;
    rule.normalise = true;
    rule.scaling = 2.5f;
    std::vector<float> logits = {2.0f, 1.0f, 0.0f, -1.0f};
    const std::vector<float> bias = {-0.5f, -0.5f, 0.5f, 0.5f};  // group 1 wins: 1.77 against 0.61
    PlanStore store(1, rule);
    Arena arena = make_arena(1 << 20);
    CpuDevice device(1);
    OpContext context{device, arena};
    const std::int32_t row = 0;
    make_cpu_backend(best_cpu_variant())
        ->route(context, Matrix::of(logits.data(), 1, 4), bias.data(), rule, &row, store.plan());
    EXPECT_EQ(store.expert, (std::vector<std::int32_t>{2, 3}));
    const double a = 0.5;
    const double b = 1.0 / (1.0 + std::exp(1.0));
    EXPECT_NEAR(store.weight[0], 2.5 * a / (a + b),
                1e-6);  // 4 roundings of 6e-8 relative on a value of 1.6
    EXPECT_NEAR(store.weight[1], 2.5 * b / (a + b), 1e-6);
}

TEST(Route, ARuleThatCannotBeIsAProgrammersError) {
    Arena arena = make_arena(1 << 20);
    CpuDevice device(1);
    OpContext context{device, arena};
    RouterRule rule;
    rule.group_score = GroupScore::maximum;
    rule.experts = 8;
    rule.groups = 4;
    rule.top_groups = 1;
    rule.top_k = 3;  // the one group kept has two
    std::vector<float> logits(8);
    PlanStore store(1, rule);
    const std::int32_t row = 0;
    EXPECT_THROW(
        make_cpu_backend(best_cpu_variant())
            ->route(context, Matrix::of(logits.data(), 1, 8), nullptr, rule, &row, store.plan()),
        CheckFailure);
}

}  // namespace
}  // namespace espalier::ops
