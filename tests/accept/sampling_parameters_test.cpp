// SPDX-License-Identifier: Apache-2.0
// Sampling parameters: what is refused, with which words, and what a node gets.
#include "accept/sampling_parameters.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace espalier::accept {
namespace {

constexpr std::int64_t kVocabulary = 1000;

std::string error_of(const std::function<void(SamplingOptions&)>& change) {
    SamplingOptions options;
    change(options);
    const auto made = SamplingParameters::make(options, kVocabulary);
    return made ? "" : made.error().message;
}

struct Limits {
    const char* field;
    float SamplingOptions::*value;
    float least;
    bool least_allowed;
    float most;
};

TEST(SamplingParameters, EveryNumberHasItsLimitsAndTheErrorNamesThem) {
    const Limits all[] = {
        {"temperature", &SamplingOptions::temperature, 0.0f, true, 100.0f},
        {"top_p", &SamplingOptions::top_p, 0.0f, false, 1.0f},
        {"min_p", &SamplingOptions::min_p, 0.0f, true, 1.0f},
        {"repetition_penalty", &SamplingOptions::repetition_penalty, 0.0f, false, 100.0f},
        {"presence_penalty", &SamplingOptions::presence_penalty, -2.0f, true, 2.0f},
        {"frequency_penalty", &SamplingOptions::frequency_penalty, -2.0f, true, 2.0f},
    };
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const Limits& limits : all) {
        const auto error_at = [&](float value) {
            return error_of([&](SamplingOptions& options) { options.*limits.value = value; });
        };
        EXPECT_EQ(error_at(limits.most), "");
        EXPECT_EQ(error_at(std::nextafter(limits.least, kInfinity)), "");
        EXPECT_EQ(error_at(limits.least).empty(), limits.least_allowed) << limits.field;
        for (const float value : {std::nextafter(limits.most, kInfinity), -kInfinity, kInfinity,
                                  std::nextafter(limits.least, -kInfinity), std::nanf("")}) {
            const std::string error = error_at(value);
            EXPECT_TRUE(error.starts_with(std::string(limits.field) + ": ")) << error;
            EXPECT_NE(error.find(fmt::format("{}", value)), std::string::npos) << error;
            EXPECT_NE(error.find(fmt::format("{}", limits.most)), std::string::npos) << error;
        }
    }
    EXPECT_EQ(error_of([](SamplingOptions& options) { options.temperature = -1.0f; }),
              "temperature: -1, not within 0…100");
    EXPECT_EQ(error_of([](SamplingOptions& options) { options.top_p = 0.0f; }),
              "top_p: 0, not above 0 and at most 1");
}

TEST(SamplingParameters, TopKIsOffAtZeroAndMinusOneAndEndsAtTheVocabulary) {
    const auto top_k = [](std::int64_t value) {
        SamplingOptions options;
        options.top_k = value;
        return SamplingParameters::make(options, kVocabulary)->draw().top_k;
    };
    EXPECT_EQ(top_k(0), 0);
    EXPECT_EQ(top_k(-1), 0);
    EXPECT_EQ(top_k(40), 40);
    EXPECT_EQ(top_k(std::numeric_limits<std::int64_t>::max()), kVocabulary);
    EXPECT_EQ(error_of([](SamplingOptions& options) { options.top_k = -2; }),
              "top_k: -2, at least -1");
}

TEST(SamplingParameters, BiasesAreCheckedOneByOne) {
    const auto with = [](std::vector<SamplingOptions::Bias> biases) {
        return error_of([&](SamplingOptions& options) { options.logit_bias = biases; });
    };
    EXPECT_EQ(with({{0, -100.0f}, {999, 100.0f}}), "");
    EXPECT_EQ(with({{1000, 1.0f}}), "logit_bias: 1000 is not an id of the vocabulary of 1000");
    EXPECT_EQ(with({{-1, 1.0f}}), "logit_bias: -1 is not an id of the vocabulary of 1000");
    EXPECT_EQ(with({{std::int64_t{1} << 32, 1.0f}}),
              "logit_bias: 4294967296 is not an id of the vocabulary of 1000");
    EXPECT_EQ(with({{7, 100.5f}}), "logit_bias[7]: 100.5, not within -100…100");
    EXPECT_EQ(with({{7, std::nanf("")}}), "logit_bias[7]: nan, not within -100…100");
    EXPECT_EQ(with({{7, 1.0f}, {3, 0.0f}, {7, 2.0f}}).substr(0, 23), "logit_bias: id 7 twice,");
    EXPECT_EQ(with(std::vector<SamplingOptions::Bias>(1025)),
              "logit_bias: 1025 entries, at most 1024");
}

TEST(SamplingParameters, ANodeGetsAllOfThem) {
    SamplingOptions options;
    options.temperature = 0.5f;
    options.top_p = 0.9f;
    options.top_k = 7;
    options.min_p = 0.1f;
    options.seed = 42;
    options.logit_bias = {{9, 1.0f}, {2, -1.0f}};
    auto first = SamplingParameters::make(options, kVocabulary);
    ASSERT_TRUE(first);
    EXPECT_FALSE(first->counts_tokens());
    const SamplingParameters moved = std::move(*first);
    const ops::DrawParameters& node = moved.draw();
    EXPECT_EQ(node.temperature, 0.5f);
    EXPECT_EQ(node.top_p, 0.9f);
    EXPECT_EQ(node.top_k, 7);
    EXPECT_EQ(node.min_p, 0.1f);
    EXPECT_EQ(node.seed, 42u);
    ASSERT_EQ(moved.logit_bias().size(), 2u);
    EXPECT_EQ(moved.logit_bias()[0], (ops::LogitBias{2, -1.0f}));
    EXPECT_EQ(moved.logit_bias()[1], (ops::LogitBias{9, 1.0f}));

    for (const auto penalty :
         {&SamplingOptions::repetition_penalty, &SamplingOptions::presence_penalty,
          &SamplingOptions::frequency_penalty}) {
        SamplingOptions penalised;
        penalised.*penalty = 1.5f;
        EXPECT_TRUE(SamplingParameters::make(penalised, kVocabulary)->counts_tokens());
    }
}

}  // namespace
}  // namespace espalier::accept
