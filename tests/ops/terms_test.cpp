// SPDX-License-Identifier: Apache-2.0
// The seam in front of the residual: terms are added in one order, whoever computed them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>

#include "ops/layer_program.hpp"
#include "ops/support.hpp"
#include "ops/terms_cases.hpp"
#include "ops/two_ranks.hpp"

namespace espalier::ops {
namespace {

// Sums of one term and of several: a product whose result was cut into terms adds what their plain
// ascending sum adds.
TEST(AddTerms, AddsInTheOrderItPromises) {
    CpuDevice device(2);
    Arena arena = make_arena(1 << 16);
    OpContext context{device, arena};
    for (const std::int32_t top_k : {0, 1, 3, 8})
        for (const std::int32_t segments : {0, 1, 2, 3, 8})
            for (const bool dealt : {false, true}) {
                if (top_k + segments == 0) continue;
                const TermsCase made(7, 530, top_k, segments, dealt);
                const auto check = [&](const Backend& backend, double bound) {
                    std::vector<float> sum = made.residual;
                    backend.add_terms(context, made.terms, Matrix::of(sum.data(), 7, 530));
                    for (std::int64_t i = 0; i < std::ssize(sum); ++i)
                        ASSERT_NEAR(sum[static_cast<std::size_t>(i)], made.wanted(i / 530, i % 530),
                                    bound)
                            << backend.name() << ", top " << top_k << ", " << segments
                            << " segments at " << i;
                };
                for (const CpuVariant variant : variants())
                    ASSERT_NO_FATAL_FAILURE(check(*make_cpu_backend(variant), 0.0));
                // 17 terms that add up to at most 17 · 3.5², each rounded once or twice.
                ASSERT_NO_FATAL_FAILURE(
                    check(*make_reference_backend(), 2 * 17 * 0x1p-24 * 17 * 12.25));
            }
}

TEST(AddTerms, RefusesSegmentsOfOtherShape) {
    CpuDevice device(1);
    Arena arena = make_arena(1 << 10);
    OpContext context{device, arena};
    std::vector<float> sums(40), residual(20);
    const Terms terms{.segments = {Matrix::of(sums.data(), 4, 10), 3}};
    for (const auto& backend : {make_cpu_backend(best_cpu_variant()), make_reference_backend()})
        EXPECT_THROW(backend->add_terms(context, terms, Matrix::of(residual.data(), 2, 10)),
                     CheckFailure);
}

struct MixtureShape {
    const char* name;
    RouterRule rule;
    bool bias, shared;
};

RouterRule rule_of(RouterScore score, GroupScore groups, std::int32_t experts, std::int32_t top_k) {
    RouterRule rule;
    rule.score = score;
    rule.group_score = groups;
    rule.experts = experts;
    rule.top_k = top_k;
    if (groups != GroupScore::none) rule.groups = 4, rule.top_groups = 2;
    rule.normalise = score == RouterScore::sigmoid;
    rule.scaling = 2.5f;
    return rule;
}

const MixtureShape kMixtures[] = {
    {"V3", rule_of(RouterScore::sigmoid, GroupScore::top_two_sum, 16, 4), true, true},
    {"V3 without shared", rule_of(RouterScore::sigmoid, GroupScore::top_two_sum, 16, 4), true,
     false},
    {"Kimi", rule_of(RouterScore::sigmoid, GroupScore::none, 12, 3), true, true},
    {"V2", rule_of(RouterScore::softmax, GroupScore::maximum, 16, 6), false, true},
    {"one expert", rule_of(RouterScore::softmax, GroupScore::none, 5, 1), false, false},
};

// A mixture of experts between two norms, from the terms of attention on.
class Mixture {
  public:
    static constexpr std::int64_t kHidden = 192, kInner = 64, kMostTokens = 65;

    Mixture(const Backend& backend, const MixtureShape& shape)
        : backend_(backend),
          shape_(shape),
          router_(pack(20, 1, shape.rule.experts, kHidden, DType::f32)),
          gate_up_(pack(21, shape.rule.experts, 2 * kInner, kHidden, DType::bf16)),
          down_(pack(22, shape.rule.experts, kHidden, kInner, DType::bf16)),
          shared_gate_up_(pack(23, 1, 2 * kInner, kHidden, DType::bf16)),
          shared_down_(pack(24, 1, kHidden, kInner, DType::bf16)),
          bias_(values(25, 0, 1, shape.rule.experts)),
          norm_(values(26, 0, 1, kHidden)) {}

    struct Result {
        std::vector<float> residual;
        std::vector<std::uint16_t> normed;  // for the layer behind
        bool operator==(const Result& other) const {
            return same_bits(residual.data(), other.residual.data(), std::ssize(residual)) &&
                   normed == other.normed;
        }
    };

    // Every seventh token is a pad.
    Result run(const LayerProgram& program, std::int64_t tokens) {
        const RouterRule& rule = shape_.rule;
        const std::int64_t pairs = tokens * rule.top_k;
        std::vector<float> attention = values(30, 0, tokens, kHidden);
        Result result{values(31, 0, tokens, kHidden), {}};
        result.normed.resize(result.residual.size());
        std::vector<std::int32_t> row_of;
        for (std::int64_t t = 0; t < tokens; ++t) row_of.push_back(t % 7 == 3 ? -1 : 0);
        PlanStore store(tokens, rule);
        const auto f32 = [&](std::vector<float>& memory, std::int64_t rows, std::int64_t cols) {
            memory.assign(static_cast<std::size_t>(rows * cols), 0.0f);
            return Matrix::of(memory.data(), rows, cols);
        };
        const auto act = [&](std::vector<std::uint16_t>& memory, std::int64_t rows,
                             std::int64_t cols) {
            memory.assign(static_cast<std::size_t>(rows * cols), 0);
            return Matrix::of(reinterpret_cast<Bf16*>(memory.data()), rows, cols);
        };
        std::vector<float> exact, logits, pair_gate_up, pair_out, gate_up, out;
        std::vector<std::uint16_t> normed, pair_gated, gated;
        const Matrix x = act(normed, tokens, kHidden);
        const Matrix residual = Matrix::of(result.residual.data(), tokens, kHidden);
        const RouterCall router{.w = router_.view(),
                                .logits = f32(logits, tokens, rule.experts),
                                .bias = shape_.bias ? bias_.data() : nullptr,
                                .rule = rule,
                                .row_of = row_of.data(),
                                .plan = store.plan()};
        program.add(
            context_, {.segments = {Matrix::of(attention.data(), tokens, kHidden), 1}}, residual,
            {.norm = {norm_.data(), 1e-6f, x, f32(exact, tokens, kHidden)}, .router = &router});
        FeedForward shared;
        if (shape_.shared)
            shared = {shared_gate_up_.view(), shared_down_.view(), f32(gate_up, tokens, 2 * kInner),
                      act(gated, tokens, kInner), f32(out, tokens, kHidden)};
        const Terms terms =
            program.experts(context_, x, router,
                            {gate_up_.view(), down_.view(), f32(pair_gate_up, pairs, 2 * kInner),
                             act(pair_gated, pairs, kInner), f32(pair_out, pairs, kHidden)},
                            shared);
        program.add(context_, terms, residual,
                    {.norm = {norm_.data(), 1e-6f, act(result.normed, tokens, kHidden), {}}});
        return result;
    }

  private:
    linalg::Weight pack(std::uint32_t stream, std::int64_t count, std::int64_t n, std::int64_t k,
                        DType dtype) {
        std::vector<float> wide = values(stream, 0, count * n, k);
        for (float& value : wide) value /= std::sqrt(static_cast<float>(k));
        std::vector<Bf16> narrow;
        for (const float value : wide) narrow.push_back(to_bf16(value));
        std::vector<linalg::WeightSource> sources(static_cast<std::size_t>(count));
        std::vector<std::span<const linalg::WeightSource>> stack;
        for (std::size_t i = 0; i < sources.size(); ++i) {
            const auto at = static_cast<std::int64_t>(i) * n * k;
            sources[i] = {
                .data = dtype == DType::f32
                            ? reinterpret_cast<const std::byte*>(wide.data() + at)
                            : reinterpret_cast<const std::byte*>(narrow.data() + at),
                .format = {.code = dtype == DType::f32 ? WeightCode::f32 : WeightCode::bf16},
                .n = n,
                .k = k,
                .row_stride = k};
            stack.push_back({&sources[i], 1});
        }
        return backend_.pack(device_, stack).value();
    }

    CpuDevice device_{2};
    Arena arena_ = make_arena(1 << 16);
    OpContext context_{device_, arena_};
    const Backend& backend_;
    MixtureShape shape_;
    linalg::Weight router_, gate_up_, down_, shared_gate_up_, shared_down_;
    std::vector<float> bias_, norm_;
};

// Maps of experts to two ranks.
std::vector<std::pair<std::string, std::vector<std::int32_t>>> owner_maps(std::int32_t experts) {
    std::mt19937 random(7);
    std::vector<std::pair<std::string, std::vector<std::int32_t>>> maps = {{"ranges", {}},
                                                                           {"modulo", {}},
                                                                           {"random", {}},
                                                                           {"all on rank 0", {}},
                                                                           {"all on rank 1", {}}};
    for (std::int32_t e = 0; e < experts; ++e) {
        maps[0].second.push_back(e < experts / 2 ? 1 : 0);
        maps[1].second.push_back(e % 2);
        maps[2].second.push_back(static_cast<std::int32_t>(random() % 2));
        maps[3].second.push_back(0);
        maps[4].second.push_back(1);
    }
    return maps;
}

class TwoRanksTest : public testing::TestWithParam<bool> {};

TEST_P(TwoRanksTest, GiveTheBitsOfOne) {
    const auto backend =
        GetParam() ? make_reference_backend() : make_cpu_backend(best_cpu_variant());
    for (const MixtureShape& shape : kMixtures) {
        Mixture mixture(*backend, shape);
        for (const std::int64_t tokens : {1, 2, 3, 5, 8, 16, 33, 64, 65}) {
            if (GetParam() && tokens > 8) continue;
            const Mixture::Result one = mixture.run(backend->program(), tokens);
            for (const auto& [name, owner] : owner_maps(shape.rule.experts))
                ASSERT_TRUE(mixture.run(TwoRanks(*backend, owner), tokens) == one)
                    << shape.name << ", " << name << ", " << tokens << " tokens";
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Of, TwoRanksTest, testing::Bool(), [](const auto& given) {
    return std::string(given.param ? "TheReference" : "TheCpu");
});

}  // namespace
}  // namespace espalier::ops
