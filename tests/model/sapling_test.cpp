// SPDX-License-Identifier: Apache-2.0
// Sapling as it is shipped, against transformers: the same tokens, and logits within the bf16 rule
// of parity_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/golden_file.hpp"
#include "model/sequence.hpp"
#include "model/tiny_model.hpp"
#include "support/paths.hpp"
#include "text/tokenizer.hpp"

namespace espalier::model {
namespace {

namespace fs = std::filesystem;
const fs::path kSource = test::source_directory();

TEST(Sapling, TokenizesAndComputesAsTransformersDoes) {
    const auto golden = read_golden(kSource / "tests/model/sapling.golden");
    ASSERT_TRUE(golden) << golden.error().message;

    const auto tokenizer = text::Tokenizer::load(kSource / "models/sapling");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    std::string prompts;
    std::ifstream in(kSource / "data/prompts/demo.jsonl");
    for (std::string line; std::getline(in, line);)
        prompts += nlohmann::json::parse(line)["prompt"].get<std::string>();
    auto tokens = tokenizer->encode(prompts);
    ASSERT_TRUE(tokens);
    ASSERT_GE(tokens->size(), golden->prompt.size());
    tokens->resize(golden->prompt.size());
    EXPECT_EQ(*tokens, golden->prompt);

    RunningModel model(kSource / "models/sapling", 2, best_cpu_variant());
    const auto length = static_cast<std::int64_t>(golden->prompt.size());
    auto sequence = Sequence::create(*model, length, length);
    ASSERT_TRUE(sequence);
    std::vector<float> logits;
    std::size_t begin = 0;
    for (const std::int32_t position : golden->positions) {
        const std::size_t end = static_cast<std::size_t>(position) + 1;
        const auto fed =
            sequence->feed(*model, std::span(golden->prompt).subspan(begin, end - begin), true);
        ASSERT_TRUE(fed) << fed.error().message;
        const auto last = copy_logits(fed->logits);
        logits.insert(logits.end(), last.begin(), last.end());
        begin = end;
    }
    ASSERT_EQ(logits.size(), golden->reference.size());
    const auto squared = [&](const std::vector<float>& values) {
        double sum = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
            sum += std::pow(double{values[i]} - double{golden->reference[i]}, 2);
        return sum;
    };
    const double ratio = std::sqrt(squared(logits) / squared(golden->torch_bf16));
    RecordProperty("error_ratio", fmt::format("{:.3f}", ratio));
    EXPECT_LE(ratio, 1.5);
}

}  // namespace
}  // namespace espalier::model
