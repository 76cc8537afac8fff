// SPDX-License-Identifier: Apache-2.0
// espalier bench engine with a grammar and with a preset, and a model that has somebody's
// tokenizer.
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "cli/binary.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::test {
namespace {

#if defined(ESPALIER_WITH_GRAMMAR)
TEST(BenchEngine, MeasuresAGrammarAgainstFreeTexts) {
    const TemporaryDirectory directory;
    const std::string schema = (directory.path() / "schema.json").string();
    std::ofstream(schema) << R"({"type": "array", "minItems": 40, "items": {"type": "object",
        "properties": {"identifier": {"enum": ["first", "second"]}}, "required": ["identifier"],
        "additionalProperties": false}})";
    const auto bench = json_of("bench engine " + sapling() +
                               " --requests 3 --concurrency 3 --prompt 16 --output 48 "
                               "--speculate grammar,off --temperature 1 -o json --json-schema " +
                               schema);
    ASSERT_EQ(bench.size(), 4u);
    EXPECT_EQ(bench[0]["configuration"], "3 clients grammar");
    EXPECT_EQ(bench[1]["configuration"], "3 clients grammar, json_schema");
    EXPECT_EQ(bench[0]["output tokens/s against free text"], "-");
    EXPECT_EQ(bench[0]["drafts verified"], 0);
    for (const int held : {1, 3}) {
        EXPECT_TRUE(bench[held]["output tokens/s against free text"].is_number());
        EXPECT_GT(bench[held]["decode: of this masks"].get<double>(), 0.0);
    }
    EXPECT_GT(bench[1]["accepted drafts per step"].get<double>(), 0.0) << bench[1];
}

// A text that ends by itself ends its request.
TEST(BenchEngine, TakesTextsThatEndByThemselves) {
    const auto bench = json_of("bench engine " + sapling() +
                               " --requests 2 --prompt 8 --output 32 --speculate off -o json "
                               "--choice yes --choice no");
    ASSERT_EQ(bench.size(), 2u);
    EXPECT_GT(bench[1]["output tokens/s"].get<double>(), 0.0);
    const BinaryResult refused =
        run_binary("bench engine " + sapling() + " --regex '(' --requests 1");
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.output.find("--regex: "), std::string::npos) << refused.output;
}
#endif

TEST(BenchEngine, MakesItsModel) {
    const auto bench = json_of(
        "bench engine --synthetic tiny-v3 --requests 2 --prompt 300 --output 2 --speculate off "
        "-o json");
    ASSERT_EQ(bench.size(), 1u);
    EXPECT_GT(bench[0]["prompt tokens/s"].get<double>(), 0.0);
    for (const std::string& wrong : {std::string(), sapling() + " --synthetic tiny-v3"})
        EXPECT_EQ(run_binary("bench engine " + wrong).status, 2) << wrong;
}

TEST(MakeModel, TakesSomebodysTokenizer) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "tiny").string();
    const BinaryResult made =
        run_binary("make-model --preset tiny-v3 --tokenizer " + sapling() + " --out " + model);
    ASSERT_EQ(made.status, 0) << made.output;
    EXPECT_EQ(run_binary("tokenize " + model + " --ids -p 'def main():'").output,
              run_binary("tokenize " + sapling() + " --ids -p 'def main():'").output);
    EXPECT_EQ(json_of("generate " + model + " -p x -n 2 --json --ignore-eos")["completion_tokens"],
              2);
    const BinaryResult missing = run_binary("make-model --tokenizer /nowhere --out " + model + "2");
    EXPECT_EQ(missing.status, 1);
    EXPECT_NE(missing.output.find("/nowhere"), std::string::npos) << missing.output;
}

}  // namespace
}  // namespace espalier::test
