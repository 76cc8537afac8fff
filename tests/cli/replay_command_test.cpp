// SPDX-License-Identifier: Apache-2.0
// espalier replay: traces of this binary and of earlier ones.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "base/text_identity.hpp"
#include "cli/binary.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::test {
namespace {

// A trace of a short text, in a folder of its own.
class CliReplay : public ::testing::Test {
  protected:
    CliReplay() {
        const BinaryResult made =
            run_binary("generate " + sapling() +
                       " -p 'def add(a, b):' -n 24 --seed 3 --temperature 0.7 "
                       "--trace " +
                       file_);
        EXPECT_EQ(made.status, 0) << made.output;
    }
    std::string text() const {
        std::ifstream in(file_);
        return {std::istreambuf_iterator<char>(in), {}};
    }
    void expect_refused(const std::string& command, const std::string& why) const {
        const BinaryResult result = run_binary(command);
        EXPECT_EQ(result.status, 1) << result.output;
        EXPECT_NE(result.output.find(why), std::string::npos) << result.output;
    }

    const TemporaryDirectory directory_;
    const std::string file_ = (directory_.path() / "run.jsonl").string();
};

TEST_F(CliReplay, RunsATraceAgain) {
    for (const std::string& model : {std::string(), sapling()}) {
        const BinaryResult again = run_binary("replay " + file_ + " " + model);
        EXPECT_EQ(again.status, 0) << again.output;
        EXPECT_NE(again.output.find("24 tokens of 1 requests are the same"), std::string::npos)
            << again.output;
    }
    EXPECT_EQ(run_binary("replay " + file_ + " --threads 1").status, 0);
}

TEST_F(CliReplay, RefusesWhatDiffersByName) {
    const std::string whole = text();
    const std::size_t drawn = whole.rfind("\"drawn\":[") + 9;
    std::ofstream(file_) << whole.substr(0, drawn) << '1' << whole.substr(drawn);  // another token
    expect_refused("replay " + file_, "drawn[0] (request 0): the trace has 1");
    std::ofstream(file_) << whole.substr(0, whole.find('\n') + 1) << "{}\n";
    expect_refused("replay " + file_, "run.jsonl, line 2: 'kind' is missing");
    std::ofstream(file_) << whole;
    const std::string other = (directory_.path() / "tiny").string();
    ASSERT_EQ(run_binary("make-model --preset tiny-v3 --out " + other).status, 0);
    expect_refused("replay " + file_ + " " + other, "tokenizer: the trace has ");
    expect_refused("replay " + file_ + ".none", "cannot be opened");
    EXPECT_EQ(run_binary("replay " + file_ + " " + other + " --chrome x").status, 2);
}

// Each field of the header's identity alone makes replay refuse the trace, before weights are read.
TEST_F(CliReplay, RefusesAnotherIdentityFieldByField) {
    const std::string whole = text();
    const std::size_t end = whole.find('\n');
    const auto header = nlohmann::ordered_json::parse(whole.substr(0, end));
    ASSERT_EQ(header["identity"].size(), listed(TextIdentity{}).size());
    for (const auto& [name, value] : header["identity"].items()) {
        auto changed = header;
        if (value.is_string())
            changed["identity"][name] = value.get<std::string>() + "x";
        else
            changed["identity"][name] = value.get<int>() + 1;
        std::ofstream(file_) << changed.dump() << whole.substr(end);
        expect_refused("replay " + file_, fmt::format("{}: the trace has ", name));
    }
    auto released = header;
    released["version"] = "9.9.9";  // says nothing about texts
    std::ofstream(file_) << released.dump() << whole.substr(end);
    EXPECT_EQ(run_binary("replay " + file_).status, 0);
}

TEST_F(CliReplay, DrawsATimelineWithoutAModel) {
    const std::string out = (directory_.path() / "timeline.json").string();
    const BinaryResult drawn = run_binary("replay " + file_ + " --chrome " + out);
    EXPECT_EQ(drawn.status, 0) << drawn.output;
    std::ifstream in(out);
    const auto timeline = nlohmann::json::parse(in);
    EXPECT_GT(timeline["traceEvents"].size(), 100u);
}

TEST_F(CliReplay, ABenchIsTracedToo) {
    const std::string bench = "bench engine " + sapling() +
                              " --requests 4 --prompt 8-16 --output 4-8 --concurrency 2 --trace " +
                              file_;
    const BinaryResult made = run_binary(bench);
    ASSERT_EQ(made.status, 0) << made.output;
    const BinaryResult again = run_binary("replay " + file_);
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("of 4 requests are the same"), std::string::npos) << again.output;
    expect_refused(bench + " --rounds 2", "--trace writes one run, but");
}

// Traces in the tree, of the portable kernels (tools/make_traces.sh): their format, the fingerprint
// of their models and every token in them still hold. tiny-v2 in f32 at temperature 0.7 with
// preemptions, and with trees on texts that repeat themselves; tiny-v3 in FP8, greedy.
TEST(EarlierTraces, ReplayToTheSameTokens) {
    const TemporaryDirectory directory;
    ASSERT_EQ(::setenv("ESPALIER_CPU_VARIANT", "portable", 1), 0);
    const std::string v2 = (directory.path() / "v2").string();
    const std::string v3 = (directory.path() / "v3").string();
    EXPECT_EQ(run_binary("make-model --preset tiny-v2 --dtype f32 --out " + v2).status, 0);
    EXPECT_EQ(run_binary("make-model --preset tiny-v3 --dtype fp8 --seed 7 --out " + v3).status, 0);
    const std::string traces = std::string(source_directory()) + "/tests/replay/data/";
    struct Case {
        std::string file, model, says;
    };
    for (const auto& [file, model, says] :
         {Case{"tiny_v2_sampled.jsonl", v2, "1010 tokens of 10 requests are the same"},
          Case{"tiny_v2_trees.jsonl", v2, "724 tokens of 8 requests are the same"},
          Case{"tiny_v3_greedy.jsonl", v3, "428 tokens of 10 requests are the same"}}) {
        const BinaryResult again = run_binary("replay " + traces + file + " " + model);
        EXPECT_EQ(again.status, 0) << again.output;
        EXPECT_NE(again.output.find(says), std::string::npos) << again.output;
    }
    // Recorded by version 0.1.0, when o and down had one chain of sums each.
    const BinaryResult first = run_binary("replay " + traces + "first_format.jsonl " + v3);
    EXPECT_EQ(first.status, 1) << first.output;
    EXPECT_NE(first.output.find("products_version: the trace has 1, this run 2"), std::string::npos)
        << first.output;
    ASSERT_EQ(::unsetenv("ESPALIER_CPU_VARIANT"), 0);
}

}  // namespace
}  // namespace espalier::test
