// SPDX-License-Identifier: Apache-2.0
// Routing on a GPU gives the reference's plan, bit for bit, and sums of experts stand alone: random
// rules with ties, groups, pads and NaN, up to 1,024 experts and 700 tokens.
#include <limits>
#include <random>

#include "ops/cuda/gpu.hpp"
#include "ops/support.hpp"

namespace espalier::ops {
namespace {

struct Case {
    RouterRule rule;
    std::vector<float> bias, logits;
    std::vector<std::int32_t> row_of;
    std::int64_t tokens() const { return std::ssize(row_of); }
};

Case random_case(std::mt19937& random, std::int32_t most_experts, std::int32_t most_tokens) {
    const auto below = [&](std::int32_t limit) {
        return static_cast<std::int32_t>(random() % static_cast<unsigned>(limit));
    };
    Case made;
    RouterRule& rule = made.rule;
    rule.groups = 1 + below(8);
    const std::int32_t size = 1 + below(most_experts / 8);
    rule.experts = rule.groups * size;
    rule.top_groups = 1 + below(rule.groups);
    rule.group_score = static_cast<GroupScore>(below(3));
    const std::int32_t open =
        rule.group_score == GroupScore::none ? rule.experts : rule.top_groups * size;
    rule.top_k = 1 + below(std::min(open, kMaxTopK));
    rule.score = below(2) == 0 ? RouterScore::softmax : RouterScore::sigmoid;
    rule.normalise = below(2) == 0;
    rule.scaling = below(2) == 0 ? 1.0f : 2.5f;
    std::normal_distribution<float> normal(0.0f, 2.0f);
    const bool ties = below(2) == 0;
    const auto number = [&] { return ties ? static_cast<float>(below(4)) - 1.0f : normal(random); };
    if (below(2) == 0)
        for (std::int32_t e = 0; e < rule.experts; ++e) made.bias.push_back(number());
    const std::int32_t tokens = 1 + below(most_tokens);
    for (std::int32_t t = 0; t < tokens; ++t) {
        const std::size_t first = made.logits.size();
        for (std::int32_t e = 0; e < rule.experts; ++e) made.logits.push_back(number());
        if (below(20) == 0)
            made.logits[first + static_cast<std::size_t>(below(rule.experts))] =
                below(2) == 0 ? std::nanf("") : std::numeric_limits<float>::infinity();
        made.row_of.push_back(below(5) == 0 ? -1 : below(3));
    }
    return made;
}

class GpuRoute : public testing::Test {
  protected:
    // The plan of both, and whether they are the same.
    void compare(Case made) {
        PlanStore wanted(made.tokens(), made.rule), got(made.tokens(), made.rule);
        const float* bias = made.bias.empty() ? nullptr : made.bias.data();
        reference->route(context, Matrix::of(made.logits.data(), made.tokens(), made.rule.experts),
                         bias, made.rule, made.row_of.data(), wanted.plan());
        OnGpu<float> logits(gpu, made.logits), biases(gpu, made.bias), weight(gpu, got.weight);
        OnGpu<std::int32_t> rows(gpu, made.row_of), expert(gpu, got.expert),
            indptr(gpu, got.indptr), source(gpu, got.source_token), pair_of(gpu, got.pair_of);
        const ExpertPlan plan{expert.data(), weight.data(), indptr.data(), source.data(),
                              pair_of.data()};
        gpu.backend->route(gpu.context, logits.matrix(made.tokens(), made.rule.experts),
                           bias == nullptr ? nullptr : biases.data(), made.rule, rows.data(), plan);
        ASSERT_EQ(expert.values(), wanted.expert);
        const std::vector<float> weights = weight.values();
        ASSERT_TRUE(same_bits(weights.data(), wanted.weight.data(), std::ssize(weights)));
        ASSERT_EQ(indptr.values(), wanted.indptr);
        ASSERT_EQ(pair_of.values(), wanted.pair_of);
        std::vector<std::int32_t> sources = source.values();
        const auto pairs = static_cast<std::size_t>(wanted.indptr.back());
        sources.resize(pairs);
        wanted.source_token.resize(pairs);
        ASSERT_EQ(sources, wanted.source_token);
        combine(made, wanted, plan);
    }

    void combine(const Case& made, PlanStore& store, const ExpertPlan& plan) {
        constexpr std::int64_t kWidth = 65;
        std::vector<float> out = values(11, 0, std::ssize(store.expert), kWidth);
        std::vector<float> shared = values(12, 0, made.tokens(), kWidth), wanted(shared.size());
        OnGpu<float> experts(gpu, out), beside(gpu, shared);
        for (const bool with_shared : {true, false}) {
            const std::int64_t pairs = std::ssize(store.expert), tokens = made.tokens();
            std::fill(wanted.begin(), wanted.end(), 0.0f);
            OnGpu<float> sum(gpu, wanted);
            const auto terms = [&](const Matrix& rows, const ExpertPlan& by, const Matrix& last) {
                return Terms{.experts = {rows, made.rule.top_k, by},
                             .segments = {last, with_shared ? 1 : 0}};
            };
            reference->add_terms(context,
                                 terms(Matrix::of(out.data(), pairs, kWidth), store.plan(),
                                       Matrix::of(shared.data(), tokens, kWidth)),
                                 Matrix::of(wanted.data(), tokens, kWidth));
            gpu.backend->add_terms(
                gpu.context,
                terms(experts.matrix(pairs, kWidth), plan, beside.matrix(tokens, kWidth)),
                sum.matrix(tokens, kWidth));
            const std::vector<float> got = sum.values();
            for (std::size_t i = 0; i < got.size(); ++i) {
                if (std::isnan(wanted[i]))
                    ASSERT_TRUE(std::isnan(got[i])) << i;
                else
                    ASSERT_NEAR(got[i], wanted[i], 1e-4) << i;  // ≤ 65 terms of up to 10
            }
        }
    }

    Gpu gpu;
    CpuDevice host{1};
    Arena arena = make_arena(1 << 20);
    OpContext context{host, arena};
    std::unique_ptr<Backend> reference = make_reference_backend();
};

TEST_F(GpuRoute, IsTheReferencesPlan) {
    std::mt19937 random(5);
    for (int round = 0; round < 300 && !HasFatalFailure(); ++round) {
        compare(random_case(random, 96, 9));
        EXPECT_FALSE(HasFatalFailure()) << "case " << round;
    }
    // Many tokens with few choices, which one block places.
    for (int round = 0; round < 60 && !HasFatalFailure(); ++round) {
        Case made = random_case(random, 1024, 256);
        made.rule.top_k =
            std::min(made.rule.top_k, std::int32_t{256} / std::int32_t(made.tokens()));
        compare(std::move(made));
        EXPECT_FALSE(HasFatalFailure()) << "case of few choices " << round;
    }
    for (int round = 0; round < 12 && !HasFatalFailure(); ++round) {
        compare(random_case(random, 384, 700));
        EXPECT_FALSE(HasFatalFailure()) << "large case " << round;
    }
}

}  // namespace
}  // namespace espalier::ops
