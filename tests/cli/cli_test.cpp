// SPDX-License-Identifier: Apache-2.0
// The binary as a person uses it: benchmarks, model files, and what it refuses with which exit
// status.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "cli/binary.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::test {
namespace {

TEST(Cli, BenchEngineMeasuresTheSameRequestsInEachConfiguration) {
    const auto bench = json_of("bench engine " + sapling() +
                               " --requests 6 --prompt 70-90 --output 4-8 --shared 64 "
                               "--concurrency 1,4 --speculate ngram,off --rounds 2 -o json");
    ASSERT_EQ(bench.size(), 4u);
    EXPECT_EQ(bench[0]["configuration"], "1 client ngram");
    EXPECT_EQ(bench[3]["configuration"], "4 clients off");
    for (const auto& one : bench) {
        EXPECT_GT(one["output tokens/s"].get<double>(), 0.0);
        EXPECT_GE(one["first token p99 ms"].get<double>(), one["first token p50 ms"].get<double>());
        EXPECT_EQ(one["preemptions"], 0);
        EXPECT_LT(one["% outside model and sampling"].get<double>(), 100.0);
    }
    // The first request's page serves the five after it.
    EXPECT_EQ(bench[0]["prompt tokens from the prefix index"], 5 * 64);
    EXPECT_EQ(bench[1]["prompt tokens from the prefix index"], 5 * 64);
    EXPECT_TRUE(bench[0]["output tokens/s against off"].is_number());
    EXPECT_EQ(bench[1]["output tokens/s against off"], "-");
    EXPECT_EQ(bench[1]["drafts verified"], 0);
}

TEST(Cli, BenchEngineWritesKnownTexts) {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "completions.jsonl").string();
    std::string words;
    for (int i = 0; i < 60; ++i) words += "word" + std::to_string(i * i % 97) + " ";
    std::ofstream(file) << nlohmann::json{{"prompt", words}, {"completion", words}} << "\n";
    const auto bench = json_of("bench engine " + sapling() + " --requests 2 --concurrency 2 " +
                               "--arrival 50 --speculate ngram --grant everything --completions " +
                               file + " -o json");
    ASSERT_EQ(bench.size(), 1u);
    EXPECT_GT(bench[0]["accepted drafts per step"].get<double>(), 1.0) << bench;
    std::ofstream(file) << R"({"prompt": "a"})";
    const BinaryResult refused = run_binary("bench engine " + sapling() + " --completions " + file);
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.output.find("line 1 has no text \"completion\""), std::string::npos)
        << refused.output;
}

// Weights out of the cache give the same text; a directory that cannot be had costs a line alone.
TEST(Cli, TheWeightCacheChangesNoText) {
    const TemporaryDirectory directory;
    const std::string cache = (directory.path() / "kept").string();
    const std::string asked = "generate " + sapling() + " -p 'def f(' -n 8 --temperature 0 --json";
    const auto without = json_of(asked + " --weight-cache off");
    EXPECT_GT(without["packed_bytes"], 0);
    const std::string with = asked + " --weight-cache " + cache;
    BinaryResult beside;
    std::thread other([&] { beside = run_binary(with); });
    const BinaryResult first = run_binary(with);
    other.join();
    EXPECT_EQ(first.status, 0) << first.output;
    EXPECT_EQ(beside.status, 0) << beside.output;
    const std::string both = first.output + beside.output, packed = "packed the weights once";
    EXPECT_NE(both.find(packed), std::string::npos) << both;
    EXPECT_EQ(both.find(packed), both.rfind(packed)) << both;
    const auto mapped = json_of(with), from_disk = json_of(with + " --mmap-experts");
    EXPECT_EQ(mapped["packed_bytes"], 0);
    EXPECT_GT(from_disk["expert_bytes_needed"], 0);
    EXPECT_EQ(mapped["tokens"], without["tokens"]);
    EXPECT_EQ(from_disk["tokens"], without["tokens"]);
    const std::string nowhere = sapling() + "/config.json/kept";  // below a file
    const BinaryResult refused =
        run_binary(asked + " --weight-cache " + nowhere, "2>&1 >/dev/null");
    EXPECT_EQ(refused.status, 0);
    EXPECT_NE(refused.output.find(nowhere), std::string::npos) << refused.output;
    EXPECT_NE(refused.output.find("; the weights are packed in memory alone\n"), std::string::npos)
        << refused.output;
}

// A packed file is found and mapped, gives the same text, and is held to the model beside it.
TEST(Cli, PackedWeightsGiveTheSameText) {
    const TemporaryDirectory directory;
    const std::string out = (directory.path() / "int4").string();
    const BinaryResult made = run_binary("quantize " + sapling() + " " + out + " --packed");
    ASSERT_EQ(made.status, 0) << made.output;
    EXPECT_NE(made.output.find("packed-panels.espalier: "), std::string::npos) << made.output;
    const std::string asked = "generate " + out + " -p 'def f(' -n 8 --temperature 0 --json";
    const auto mapped = json_of(asked);
    const auto from_disk = json_of(asked + " --mmap-experts");
    EXPECT_EQ(mapped["packed_bytes"], 0);
    EXPECT_FALSE(mapped.contains("expert_bytes_needed"));
    EXPECT_GT(from_disk["expert_bytes_needed"], 0);
    EXPECT_LE(from_disk["expert_bytes_in_memory"], from_disk["expert_bytes_needed"]);
    std::filesystem::remove(directory.path() / "int4" / "packed-panels.espalier");
    const auto at_load = json_of(asked);
    EXPECT_GT(at_load["packed_bytes"], 0);
    EXPECT_EQ(mapped["tokens"], at_load["tokens"]);
    EXPECT_EQ(from_disk["tokens"], at_load["tokens"]);
    const BinaryResult missing = run_binary(asked + " --mmap-experts");
    EXPECT_EQ(missing.status, 1);
    EXPECT_NE(missing.output.find("--mmap-experts: "), std::string::npos) << missing.output;
    EXPECT_NE(missing.output.find("write it with: espalier pack"), std::string::npos);
    ASSERT_EQ(run_binary("pack " + out).status, 0);
    EXPECT_EQ(json_of(asked)["packed_bytes"], 0);
    std::ofstream(directory.path() / "int4" / "packed-panels.espalier", std::ios::binary) << "x";
    const BinaryResult damaged = run_binary(asked);
    EXPECT_EQ(damaged.status, 1);
    EXPECT_NE(damaged.output.find("packed-panels.espalier"), std::string::npos) << damaged.output;
}

// Models from quantize are those of --weights at load; eval sees how far both are from the model.
TEST(Cli, QuantizedModelsAreTheSameFromFilesAndAtLoad) {
    const TemporaryDirectory directory;
    const std::string out = (directory.path() / "int4").string();
    const std::string text = (directory.path() / "text").string();
    std::ofstream(text) << "def add(a, b):\n    return a + b\n\n\nclass Point:\n    pass\n";
    const BinaryResult made = run_binary("quantize " + sapling() + " " + out);
    ASSERT_EQ(made.status, 0) << made.output;
    EXPECT_EQ(run_binary("quantize " + sapling() + " " + out).status, 1);  // not empty
    const std::string eval = " --json --against " + sapling() + " --text " + text;
    const auto files = json_of("eval " + out + eval);
    EXPECT_EQ(files, json_of("eval " + sapling() + eval + " --weights int4"));
    const auto own = json_of("eval " + sapling() + eval);
    EXPECT_NEAR(own["mean_kl_bits"].get<double>(), 0.0, 1e-9);
    EXPECT_EQ(own["top_agreement"], 1.0);
    EXPECT_GT(files["mean_kl_bits"].get<double>(), 1e-6);
    EXPECT_GT(own["bits_per_byte"].get<double>(), 0.1);
    const std::string prompt = " 'def add(a, b):' -n 8 --temperature 0 --json";
    EXPECT_EQ(json_of("generate " + out + prompt)["tokens"],
              json_of("generate " + sapling() + prompt + " --weights int4")["tokens"]);
}

TEST(Cli, EmptyTextsOfFlagsAreRefused) {
    for (const char* flag :
         {"--regex", "--grammar", "--json-schema", "--trace", "--draft", "--logits"}) {
        const BinaryResult result = run_binary("generate " + sapling() + " a -n 1 " + flag + " ''");
        EXPECT_EQ(result.status, 2) << flag;
        EXPECT_NE(result.output.find(std::string(flag) + ": is empty"), std::string::npos)
            << result.output;
    }
    const BinaryResult draft = run_binary("generate " + sapling() + " a -n 1 --draft /nonexist");
    EXPECT_EQ(draft.status, 1);
    EXPECT_NE(draft.output.find("--draft: '/nonexist'"), std::string::npos) << draft.output;
}

TEST(Cli, DecodingNamesWhatIsNoToken) {
    const BinaryResult result = run_binary("tokenize " + sapling() + " --decode 5,99999");
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.output.find("--decode: 99999 is no token"), std::string::npos)
        << result.output;
}

TEST(Cli, LogitsOfAPromptAlone) {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "logits.npy").string();
    const BinaryResult result = run_binary("generate " + sapling() + " abc -n 0 --logits " + file);
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_GT(std::filesystem::file_size(file), 1000u);
}

TEST(Cli, RoundedWeightsAreTracedAndReplayed) {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "run.jsonl").string();
    const BinaryResult made = run_binary(
        "generate " + sapling() + " 'def add(a, b):' -n 8 --seed 3 --weights int8 --trace " + file);
    ASSERT_EQ(made.status, 0) << made.output;
    const BinaryResult again = run_binary("replay " + file);
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("8 tokens of 1 requests are the same"), std::string::npos)
        << again.output;
}

TEST(Cli, SelftestLosslessEndsInATable) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    EXPECT_EQ(run_binary("make-model --preset tiny-v3 --out " + model).status, 0);
    const BinaryResult result = run_binary("selftest lossless " + model + " --seconds 0 --seed 7");
    EXPECT_EQ(result.status, 0) << result.output;
    for (const char* part : {"drafts accepted", "workloads 7 to 7", "the bits it gives alone"})
        EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
}

TEST(Cli, SelftestModelTakesATrainedModel) {
    const BinaryResult result = run_binary("selftest model " + sapling() + " --draft " + sapling() +
                                           "-eagle3 --limit 400 --seconds 0 --seed 7");
    EXPECT_EQ(result.status, 0) << result.output;
    for (const char* part : {"bits per byte of 399 tokens", "0 of 1 (", "0 of 4",
                             "tokens/s with ngram, mtp, eagle3", "products_version"})
        EXPECT_NE(result.output.find(part), std::string::npos) << part << '\n' << result.output;
}

TEST(Cli, SelftestModelRefusesOneThatPredictsNothing) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    ASSERT_EQ(run_binary("make-model --preset tiny-v3 --out " + model).status, 0);
    const BinaryResult result = run_binary("selftest model " + model + " --limit 400 --seconds 0");
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_NE(result.output.find("selftest model: failed: bits per byte"), std::string::npos)
        << result.output;
}

TEST(Cli, TokensAndTextAreEachOther) {
    const BinaryResult ids =
        run_binary("tokenize " + sapling() + " -p 'def café(x): return 1' --ids");
    ASSERT_EQ(ids.status, 0) << ids.output;
    std::string list = ids.output;
    list.pop_back();
    std::replace(list.begin(), list.end(), ' ', ',');
    EXPECT_EQ(run_binary("tokenize " + sapling() + " --decode " + list).output,
              "def café(x): return 1\n");
}

TEST(Cli, AWrittenModelIsInspectedAndRuns) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    EXPECT_EQ(run_binary("make-model --preset tiny-v2 --dtype fp8 --out " + model).status, 0);
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
    EXPECT_EQ(run_binary("make-model --out " + model).status, 1);  // not empty
}

TEST(Cli, SequencesAreTimedTogether) {
    const auto bench = json_of(
        "bench model --synthetic tiny-v3 --depth 70 --sequences 1,3 --rows 1,2 --prompt 20 -r 1 -o "
        "json");
    ASSERT_EQ(bench.size(), 5u);
    EXPECT_EQ(bench[3]["sequences"], 3);
    EXPECT_EQ(bench[3]["tokens"], 6);
    EXPECT_GT(bench[3]["ms"].get<double>(), 0.0);
}

TEST(Cli, APresetIsTimedWithoutBeingKept) {
    const auto bench = json_of(
        "bench model --synthetic tiny-glm --dtype int4 --depth 0 --rows 1 --prompt 300 -r 1 -o "
        "json");
    ASSERT_EQ(bench.size(), 2u);
    EXPECT_EQ(bench[1]["tokens"], 300);
    EXPECT_GT(bench[1]["ms"].get<double>(), 0.0);
}

TEST(Cli, SelftestEndsInATable) {
    const BinaryResult result =
        run_binary("selftest --seconds 0 --variant portable --format bf16 --check bounds --seed 3");
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_NE(result.output.find("3 Bounds"), std::string::npos) << result.output;
    EXPECT_NE(result.output.find("seeds 3 to 3"), std::string::npos) << result.output;
}

TEST(Cli, BenchMlaComparesWithPeers) {
    const TemporaryDirectory directory;
    const std::string shapes = (directory.path() / "shapes.csv").string();
    const std::string out = (directory.path() / "out.csv").string();
    std::ofstream(shapes) << "machine,batch,kv_len,heads,q_len,best_bf16_peer_us\n"
                             "\"H200, 1 of 8\",2,100,4,3,50.0\n";
    const BinaryResult result =
        run_binary("bench mla -r 1 --threads 1 --mask tree --shapes " + shapes + " --csv " + out);
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
    const BinaryResult refused = run_binary("bench mla --threads 1 --shapes " + shapes);
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.output.find("line 2: kv_len is 'many'"), std::string::npos) << refused.output;
    std::ofstream(shapes) << "batch,kv_len,heads,q_len\n2,100,4,\"3\n";
    const BinaryResult open_quote = run_binary("bench mla --threads 1 --shapes " + shapes);
    EXPECT_EQ(open_quote.status, 1);
    EXPECT_NE(open_quote.output.find("line 2: a quoted cell does not end"), std::string::npos)
        << open_quote.output;
}

TEST(Cli, ASlipGetsAdvice) {
    const auto said = [](const std::string& line) {
        const BinaryResult result = run_binary(line);
        EXPECT_EQ(result.status, 2) << line;
        return result.output;
    };
    for (const auto& [line, meant] : std::vector<std::pair<std::string, std::string>>{
             {"genrate x", "'genrate': did you mean generate?"},
             {"bench egnine", "'egnine': did you mean engine?"},
             {"generate --max-tokns=3 x", "'--max-tokns': did you mean --max-tokens?"}})
        EXPECT_NE(said(line).find(meant), std::string::npos) << line << ": " << said(line);
    EXPECT_EQ(said("--nothing-like-it").find("did you mean"), std::string::npos);
}

TEST(Cli, RefusalsSaySoAndExitAccordingly) {
    struct Refusal {
        std::string arguments;
        int status;
        const char* sentence;
    };
    for (const Refusal& refusal : {
             Refusal{"", 2, "A subcommand is required"},
             Refusal{"generate " + sapling() + " -p x --temperature -1", 1,
                     "temperature: -1, not within 0…100"},
             Refusal{"generate " + sapling() + " -p x --choices 0", 1,
                     "--choices: 0, not within 1…128"},
             Refusal{"generate " + sapling() + " -p x -n 0", 1, "--max-tokens: 0, at least 1"},
             Refusal{"generate " + sapling() + " -p x --choices 129", 1,
                     "--choices: 129, not within 1…128"},
             Refusal{"generate " + sapling() + " -p x --seed -1", 2, "--seed"},
             Refusal{"generate " + sapling() + " -p x --seed 18446744073709551616", 2, "--seed"},
             Refusal{"generate " + sapling() + " -p x --seed 1e23", 2, "--seed"},
             Refusal{"generate " + sapling() + " -p x --seed 010", 2,
                     "010 is not a decimal integer"},
             Refusal{"generate " + sapling() + " -p x --pages 999999999", 1, "--pages: 999999999"},
             Refusal{"generate " + sapling() + " -p x --prompt-logprobs 1", 2, "--json"},
             Refusal{"generate " + sapling() + " -p x --logits /nowhere/logits.npy", 1,
                     "--logits: '/nowhere/logits.npy' cannot be written"},
             Refusal{"generate " + sapling() + " -p x --trace /nowhere/trace", 1,
                     "--trace: /nowhere/trace: cannot be written"},
             Refusal{"generate " + sapling() + " -p x --logit-bias 7", 1, "not ID:BIAS"},
             Refusal{"generate " + sapling() + " -p x --speculate luck", 2, "--speculate"},
             Refusal{"generate " + sapling() + " -p x --draft-depth 99", 1,
                     "--draft-depth: 99, not within 0…63"},
             Refusal{"bench engine " + sapling() + " --speculate mtp:x", 1,
                     "--speculate mtp:x: not NAMES"},
             Refusal{"generate " + sapling() + " -p x --logprobs 2", 2, "--json"},
             Refusal{"bench engine " + sapling() + " --prompt 9-3", 1,
                     "--prompt 9-3: not a number"},
             Refusal{"bench engine " + sapling() + " --arrival soon", 1, "--arrival soon"},
             Refusal{"bench engine " + sapling() + " --prompt 4000", 1,
                     "the model's context is 2048"},
             Refusal{"selftest lossless", 2, "model is required"},
             Refusal{"generate " + sapling() + " -p x --threads 5000", 1,
                     "--threads: 5000, not within 1…1024"},
             Refusal{"generate " + sapling() + " -p x --device cuda", 1,
                     "this build has no CUDA backend"},
             Refusal{"bench model " + sapling() + " --device cuda", 1,
                     "this build has no CUDA backend"},
             Refusal{"selftest lossless " + sapling() + " --speculate eagle3", 1,
                     "no EAGLE3 draft is named"},
             Refusal{"generate NOBODY/nothing -p x", 1, "not in the hub cache"},
             Refusal{"inspect " + sapling() + "-eagle3", 1, "is not supported; supported are"},
             Refusal{"bench model " + sapling() + " -o xml", 1, "not one of md, csv, json"},
             Refusal{"bench model", 2, "--synthetic"},
             Refusal{"bench model " + sapling() + " --synthetic tiny-v3", 2, "--synthetic"},
             Refusal{"bench model --synthetic huge", 2, "--synthetic"},
             Refusal{"bench model " + sapling() + " --dtype int4", 2, "--dtype"},
             Refusal{"selftest --check nonsense", 2, "--check"},
             Refusal{"selftest --device cuda --variant avx2", 1, "chooses among CPU kernels"},
         }) {
        const BinaryResult result = run_binary(refusal.arguments);
        EXPECT_EQ(result.status, refusal.status) << refusal.arguments;
        EXPECT_NE(result.output.find(refusal.sentence), std::string::npos) << result.output;
    }
}

}  // namespace
}  // namespace espalier::test
