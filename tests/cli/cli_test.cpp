// SPDX-License-Identifier: Apache-2.0
// The binary as a person uses it: what it prints, what it refuses, and with which exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/temporary_directory.hpp"

namespace {

const std::string kSapling = std::string(ESPALIER_SOURCE_DIR) + "/models/sapling";

struct Result {
    int status = -1;
    std::string output;  // standard output and error
};

Result espalier(const std::string& arguments, const std::string& redirect = "2>&1") {
    const std::string command =
        std::string(ESPALIER_BINARY) + " " + arguments + " " + redirect + " < /dev/null";
    Result result;
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> chunk{};
    while (const std::size_t count = fread(chunk.data(), 1, chunk.size(), pipe))
        result.output.append(chunk.data(), count);
    const int status = pclose(pipe);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
}

nlohmann::json json_of(const std::string& arguments) {
    const Result result = espalier(arguments, "2>/dev/null");
    EXPECT_EQ(result.status, 0) << arguments << "\n" << result.output;
    return nlohmann::json::parse(result.output);
}

TEST(Cli, TheTextIsAFunctionOfPromptSeedAndParametersAlone) {
    const std::string common =
        "generate " + kSapling + " -p 'class Timer:' -n 40 --json --temperature 0.8 --top-p 0.95 ";
    const auto first = json_of(common + "--seed 11 --threads 1");
    EXPECT_EQ(first["completion_tokens"], 40);
    EXPECT_EQ(first["seed"], 11);
    for (const char* threads : {"1", "2", "3"})
        EXPECT_EQ(json_of(common + "--seed 11 --threads " + threads)["tokens"], first["tokens"])
            << threads;
    EXPECT_NE(json_of(common + "--seed 12")["tokens"], first["tokens"]);
}

TEST(Cli, AReportedSeedRepeatsTheText) {
    const std::string common =
        "generate " + kSapling + " -p 'import os' -n 24 --json --temperature 1 ";
    const auto drawn = json_of(common);
    EXPECT_EQ(json_of(common + "--seed " + drawn["seed"].dump())["tokens"], drawn["tokens"]);
}

TEST(Cli, TokensAndTextAreEachOther) {
    const Result ids = espalier("tokenize " + kSapling + " -p 'def café(x): return 1' --ids");
    ASSERT_EQ(ids.status, 0) << ids.output;
    std::string list = ids.output;
    list.pop_back();
    std::replace(list.begin(), list.end(), ' ', ',');
    EXPECT_EQ(espalier("tokenize " + kSapling + " --decode " + list).output,
              "def café(x): return 1\n");
}

TEST(Cli, AWrittenModelIsInspectedAndRuns) {
    const espalier::TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    EXPECT_EQ(espalier("make-model --preset tiny-v2 --dtype fp8 --out " + model).status, 0);
    const auto inspected = json_of("inspect " + model + " --json");
    EXPECT_EQ(inspected["architecture"], "DeepSeek-V2");
    EXPECT_EQ(inspected["weight_dtype"], "F8_E4M3");
    EXPECT_EQ(
        json_of("generate " + model + " -p hello -n 5 --ignore-eos --json")["completion_tokens"],
        5);
    const auto bench =
        json_of("bench model " + model + " --depth 0,70 --rows 1,3 --prompt 20 -r 1 -o json");
    ASSERT_EQ(bench.size(), 5u);
    EXPECT_EQ(bench[3]["depth"], 70);
    EXPECT_GT(bench[3]["ms"].get<double>(), 0.0);
    EXPECT_EQ(espalier("make-model --out " + model).status, 1);  // not empty
}

TEST(Cli, SelftestEndsInATable) {
    const Result result =
        espalier("selftest --seconds 0 --variant portable --format bf16 --check bounds --seed 3");
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_NE(result.output.find("3 Bounds"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("seeds 3 to 3"), std::string::npos) << result.output;
}

TEST(Cli, BenchMlaComparesWithPeers) {
    const espalier::TemporaryDirectory directory;
    const std::string shapes = (directory.path() / "shapes.csv").string();
    const std::string out = (directory.path() / "out.csv").string();
    std::ofstream(shapes) << "batch,kv_len,heads,q_len,best_bf16_peer_us\n2,100,4,3,50.0\n";
    const Result result =
        espalier("bench mla -r 1 --threads 1 --mask tree --shapes " + shapes + " --csv " + out);
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_NE(result.output.find("R ≤ 64: 1 shapes"), std::string::npos) << result.output;
    std::ifstream written(out);
    std::string header;
    std::string row;
    std::getline(written, header);
    std::getline(written, row);
    EXPECT_EQ(header.substr(header.size() - 17), "peer us,peer/ours");
    EXPECT_EQ(row.substr(0, 14), "1,2,100,4,3,12");
    std::ofstream(shapes) << "batch,kv_len,heads,q_len\n2,many,4,3\n";
    const Result refused = espalier("bench mla --threads 1 --shapes " + shapes);
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.output.find("line 2: kv_len is 'many'"), std::string::npos) << refused.output;
}

TEST(Cli, RefusalsSaySoAndExitAccordingly) {
    struct Refusal {
        std::string arguments;
        int status;
        const char* sentence;
    };
    for (const Refusal& refusal : {
             Refusal{"", 2, "A subcommand is required"},
             Refusal{"generate " + kSapling + " -p x --temperature -1", 2, "--temperature"},
             Refusal{"generate " + kSapling + " -p x --threads 5000", 1, "between 1 and 1024"},
             Refusal{"generate NOBODY/nothing -p x", 1, "not in the hub cache"},
             Refusal{"inspect " + kSapling + "-eagle3", 1, "is not supported; supported are"},
             Refusal{"bench model " + kSapling + " -o xml", 1, "not one of md, csv, json"},
             Refusal{"selftest --check nonsense", 2, "--check"},
             Refusal{"selftest --device cuda --variant avx2", 1, "chooses among CPU kernels"},
         }) {
        const Result result = espalier(refusal.arguments);
        EXPECT_EQ(result.status, refusal.status) << refusal.arguments;
        EXPECT_NE(result.output.find(refusal.sentence), std::string::npos) << result.output;
    }
}

}  // namespace
