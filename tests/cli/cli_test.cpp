// SPDX-License-Identifier: Apache-2.0
// The binary as a person uses it: what it prints, what it refuses, and with which exit status.
#include <gtest/gtest.h>
#include <sys/wait.h>

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
#include <vector>

#include "base/random.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"

namespace {

const std::string kSapling = std::string(espalier::test::source_directory()) + "/models/sapling";

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

// As transformers reads it; flags win.
TEST(Cli, GenerationConfigStandsForFlagsThatAreNotGiven) {
    const espalier::TemporaryDirectory directory;
    const std::string model = (directory.path() / "tiny").string();
    ASSERT_EQ(espalier("make-model --preset tiny-v3 --out " + model).status, 0);
    const auto tokens = [&](const std::string& flags, const char* config) {
        std::ofstream(model + "/generation_config.json") << config;
        return json_of("generate " + model + " -p abc -n 24 --ignore-eos --json --seed 3 " +
                       flags)["tokens"];
    };
    const std::string sampled = "--temperature 0.7 --top-k 5 ";
    const std::string penalty = "--repetition-penalty 1.5 ";
    const char* full =
        R"({"do_sample": true, "temperature": 0.7, "top_k": 5, "repetition_penalty": 1.5})";
    EXPECT_EQ(tokens("", full), tokens(sampled + penalty, "{}"));
    EXPECT_EQ(tokens("--repetition-penalty 1", full), tokens(sampled, "{}"));
    EXPECT_NE(tokens(sampled + penalty, "{}"), tokens(sampled, "{}"));
    EXPECT_EQ(tokens("", R"({"do_sample": true})"), tokens("--temperature 1", "{}"));
    EXPECT_EQ(tokens("", R"({"temperature": 0.7, "top_k": -1})"), tokens("--temperature 0", "{}"));
    EXPECT_EQ(tokens("", "{}"), tokens("--temperature 0", "{}"));
}

TEST(Cli, AReportedSeedRepeatsTheText) {
    const std::string common =
        "generate " + kSapling + " -p 'import os' -n 24 --json --temperature 1 ";
    const auto drawn = json_of(common);
    EXPECT_EQ(json_of(common + "--seed " + drawn["seed"].dump())["tokens"], drawn["tokens"]);
}

// A list that goes on as it began: what drafts from the text's own past are for.
const std::string kRepeating =
    "'first = load(\"first\")\nsecond = load(\"second\")\nthird = load(\"third\")\nfirst = "
    "load(\"first\")\nsecond = load(\"second\")\nthird ='";

TEST(Cli, DraftsChangeTheSpeedAndNothingElse) {
    const std::string common =
        "generate " + kSapling + " " + kRepeating + " -n 60 --json --logprobs 2 --ignore-eos ";
    for (const char* sampling : {"--temperature 0 ", "--temperature 0.7 --seed 3 ",
                                 "--temperature 1 --seed 4 --repetition-penalty 1.1 "
                                 "--presence-penalty 0.2 --frequency-penalty 0.1 --min-p 0.05 "}) {
        const auto drafted = json_of(common + sampling + "--speculate ngram");
        const auto plain = json_of(common + sampling + "--speculate off");
        EXPECT_EQ(drafted["tokens"], plain["tokens"]) << sampling;
        EXPECT_EQ(drafted["logprobs"], plain["logprobs"]) << sampling;
        EXPECT_EQ(drafted["text"], plain["text"]) << sampling;
        EXPECT_EQ(plain["accepted_tokens"], 0);
        EXPECT_EQ(plain["steps"], 60);
        EXPECT_EQ(drafted["steps"].get<int>() + drafted["accepted_tokens"].get<int>(), 60);
        EXPECT_EQ(drafted["accepted_from"]["ngram"], drafted["accepted_tokens"]);
        EXPECT_GE(drafted["drafts"].size(), drafted["accepted_tokens"].get<std::size_t>());
    }
    // How many drafts are verified depends on measured times, unless all are.
    const auto greedy = json_of(common + "--temperature 0 --grant everything");
    EXPECT_GT(greedy["acceptance_length"].get<double>(), 0.5) << greedy;
    EXPECT_EQ(greedy["logprobs"].size(), 60u);
    EXPECT_EQ(greedy["logprobs"][0]["top"].size(), 2u);
}

#if defined(ESPALIER_WITH_GRAMMAR)
TEST(Cli, GenerateHoldsItsTextToWhatIsAskedFor) {
    const espalier::TemporaryDirectory directory;
    const std::string schema = (directory.path() / "schema.json").string();
    std::ofstream(schema)
        << R"({"type": "object", "required": ["name", "count"], "additionalProperties": false,
               "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8},
                              "count": {"type": "integer", "minimum": 1, "maximum": 99}}})";
    const std::string ebnf = (directory.path() / "tag.ebnf").string();
    std::ofstream(ebnf) << R"(root ::= "<" [a-z] [0-9]? ">")";
    const std::string common =
        "generate " + kSapling + " -p 'record = ' -n 400 --temperature 2 --json ";
    for (const char* seed : {"--seed 1 ", "--seed 2 "}) {
        const auto drafted = json_of(common + seed + "--json-schema " + schema);
        const auto plain = json_of(common + seed + "--speculate off --json-schema " + schema);
        EXPECT_EQ(drafted["tokens"], plain["tokens"]);
        EXPECT_EQ(drafted["finish_reason"], "stop");
        const auto record = nlohmann::json::parse(drafted["text"].get<std::string>());
        EXPECT_GE(record["count"], 1);
        EXPECT_LE(record["count"], 99);
        EXPECT_LE(record["name"].get<std::string>().size(), 32u);
        EXPECT_EQ(record.size(), 2u);
    }
    const auto text = [&](const std::string& flags) {
        return json_of(common + "--seed 3 " + flags)["text"].get<std::string>();
    };
    EXPECT_TRUE(
        std::regex_match(text("--regex '[0-9]{3}-[a-f]+x'"), std::regex("[0-9]{3}-[a-f]+x")));
    const std::string chosen = text("--choice 'yes, it does' --choice no");
    EXPECT_TRUE(chosen == "yes, it does" || chosen == "no") << chosen;
    EXPECT_TRUE(std::regex_match(text("--grammar " + ebnf), std::regex("<[a-z][0-9]?>")));

    const auto refused = [](const std::string& flags, const char* says) {
        const Result result = espalier("generate " + kSapling + " -p x " + flags);
        EXPECT_NE(result.status, 0) << flags;
        EXPECT_NE(result.output.find(says), std::string::npos) << result.output;
    };
    refused("--regex a --choice b", "one of --json-schema");
    refused("--regex '(a'", "--regex");
    refused("--choice a --min-tokens 3", "--min-tokens");
    refused("--choice a --ignore-eos", "--ignore-eos");
    refused("--json-schema /nowhere.json", "/nowhere.json");
}
#endif

TEST(Cli, GenerateTellsStepsDraftsAndSpeed) {
    const Result result =
        espalier("generate " + kSapling + " " + kRepeating + " -n 30 --temperature 0");
    EXPECT_EQ(result.status, 0) << result.output;
    for (const char* part : {"third = load", " steps, ", " accepted drafts per step", "tokens/s"})
        EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
}

TEST(Cli, ChoicesStopsAndLimitsAreTheEngines) {
    const std::string common = "generate " + kSapling + " 'import os' --json --temperature 1 ";
    const auto choices = json_of(common + "-n 12 --choices 3 --seed 5 --ignore-eos");
    ASSERT_EQ(choices["choices"].size(), 3u);
    EXPECT_EQ(choices["completion_tokens"], 36);
    EXPECT_NE(choices["choices"][0]["tokens"], choices["choices"][1]["tokens"]);
    const auto alone = json_of(common + "-n 12 --seed 5 --ignore-eos");
    EXPECT_EQ(choices["choices"][0]["tokens"], alone["tokens"]);

    const std::string text = alone["text"];
    const std::string stop = text.substr(text.size() / 2, 3);
    const auto stopped = json_of(common + "-n 12 --seed 5 --ignore-eos --stop \"" + stop + "\"");
    EXPECT_EQ(stopped["finish_reason"], "stop");
    EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
    const std::string token = alone["tokens"][4].dump();
    EXPECT_LE(json_of(common + "-n 12 --seed 5 --stop-token-id " + token)["tokens"].size(), 5u);
    EXPECT_NE(json_of(common + "-n 12 --seed 5 --ignore-eos --logit-bias " +
                      alone["tokens"][0].dump() + ":-100")["tokens"][0],
              alone["tokens"][0]);
}

TEST(Cli, ThePromptsLogprobsAreTheLogitsOwn) {
    const espalier::TemporaryDirectory directory;
    const std::string file = (directory.path() / "logits.npy").string();
    const std::string common = "generate " + kSapling + " 'def add(a, b):' --json ";
    const auto scored =
        json_of(common + "-n 0 --prompt-logprobs 2 --speculate off --logits " + file);
    EXPECT_EQ(scored["completion_tokens"], 0);
    EXPECT_EQ(scored["finish_reason"], "length");
    EXPECT_EQ(scored["text"], "");
    const auto& prompt = scored["prompt_logprobs"];
    ASSERT_EQ(prompt.size(), scored["prompt_tokens"].get<std::size_t>());
    EXPECT_TRUE(prompt[0]["logprob"].is_null());
    EXPECT_EQ(prompt[1]["top"].size(), 2u);
    EXPECT_EQ(json_of(common + "-n 3 --prompt-logprobs 2")["prompt_logprobs"], prompt);

    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    const std::size_t header = 10 + static_cast<unsigned char>(bytes.at(8)) +
                               256u * static_cast<unsigned char>(bytes.at(9));
    const std::size_t vocabulary = (bytes.size() - header) / 4 / prompt.size();
    ASSERT_EQ(bytes.size(), header + 4 * prompt.size() * vocabulary);
    EXPECT_NE(bytes.find("(" + std::to_string(prompt.size()) + ", " + std::to_string(vocabulary)),
              std::string::npos);
    std::vector<float> row(vocabulary);
    for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
        std::memcpy(row.data(), bytes.data() + header + 4 * i * vocabulary, 4 * vocabulary);
        double sum = 0;
        for (const float logit : row) sum += std::exp(static_cast<double>(logit));
        const auto token = prompt[i + 1]["token"].get<std::size_t>();
        EXPECT_NEAR(prompt[i + 1]["logprob"].get<double>(), row.at(token) - std::log(sum), 1e-4);
    }
}

TEST(Cli, SpecialTokensArePlainTextUnlessAskedFor) {
    const std::string special = "'<｜User｜>x'";
    const std::string common = "generate " + kSapling + " -n 1 --json " + special;
    const int plain = json_of(common)["prompt_tokens"];
    const int parsed = json_of(common + " --special")["prompt_tokens"];
    EXPECT_LT(parsed, plain);
}

TEST(Cli, EngineFlagsChangeTheWorkAndNotTheText) {
    const std::string common =
        "generate " + kSapling + " " + kRepeating + " -n 20 --json --temperature 0.7 --seed 3 ";
    const auto plain = json_of(common);
    for (const char* flags :
         {"--rows 3 --pages 40 --step-tokens 1 --max-waiting 5", "--max-model-len 500",
          "--prefix-cache off", "--grant everything", "--prefill-segment 0", "--reuse-generated"})
        EXPECT_EQ(json_of(common + flags)["tokens"], plain["tokens"]) << flags;
    EXPECT_GT(json_of(common + "--grant everything")["accepted_tokens"].get<int>(), 0);
}

TEST(Cli, ACacheOfFp8IsTracedAndReplayed) {
    const espalier::TemporaryDirectory directory;
    const std::string file = (directory.path() / "run.jsonl").string();
    const Result made =
        espalier("generate " + kSapling +
                 " 'def add(a, b):' -n 8 --seed 3 --kv-format fp8_token --trace " + file);
    if (made.status == 1) {  // a model whose activations are f32 has no such cache
        EXPECT_NE(made.output.find("fp8_token"), std::string::npos) << made.output;
        return;
    }
    ASSERT_EQ(made.status, 0) << made.output;
    const Result again = espalier("replay " + file);
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("8 tokens of 1 requests are the same"), std::string::npos)
        << again.output;
}

TEST(Cli, ErrorsGoToStandardErrorAndTheRestToStandardOutput) {
    const Result refused = espalier("generate " + kSapling + " x --temperature -1", "2>/dev/null");
    EXPECT_EQ(refused.status, 1);
    EXPECT_EQ(refused.output, "");
    const Result wrong = espalier("generate", "2>/dev/null");
    EXPECT_EQ(wrong.status, 2);
    EXPECT_EQ(wrong.output, "");
    const Result text = espalier("generate " + kSapling + " 'import os' -n 2", "2>/dev/null");
    EXPECT_EQ(text.output.find("tokens/s"), std::string::npos) << text.output;
    EXPECT_TRUE(text.output.starts_with("import os")) << text.output;
}

// Whatever the flags are, the answer is a text and 0, or a sentence and 1 or 2; never a signal.
TEST(Cli, RandomFlagsNeverCrash) {
    const std::vector<std::string> words = {"generate",
                                            "bench",
                                            "engine",
                                            "--json",
                                            "-n",
                                            "0",
                                            "-1",
                                            "1e9",
                                            "--seed",
                                            "010",
                                            "--stop",
                                            "''",
                                            "--rows",
                                            "99999999999",
                                            "--pages",
                                            "--choices",
                                            "--temperature",
                                            "nan",
                                            "--prefix-cache",
                                            "on",
                                            "--logit-bias",
                                            "1:inf",
                                            "--trace",
                                            "/nowhere/x",
                                            "--help",
                                            "--threads",
                                            "3",
                                            kSapling};
    espalier::Random random(11);
    for (int i = 0; i < 30; ++i) {
        std::string arguments = "generate " + kSapling + " x -n 1";
        for (int count = random.between(1, 5); count > 0; --count)
            arguments += " " + words[random.bits() % words.size()];
        const Result result = espalier(arguments);
        EXPECT_TRUE(result.status == 0 || result.status == 1 || result.status == 2)
            << arguments << "\n"
            << result.output;
        if (result.status != 0) {
            EXPECT_FALSE(result.output.empty()) << arguments;
        }
    }
}

TEST(Cli, BenchEngineMeasuresTheSameRequestsInEachConfiguration) {
    const auto bench = json_of("bench engine " + kSapling +
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
    const espalier::TemporaryDirectory directory;
    const std::string file = (directory.path() / "completions.jsonl").string();
    std::string words;
    for (int i = 0; i < 60; ++i) words += "word" + std::to_string(i * i % 97) + " ";
    std::ofstream(file) << nlohmann::json{{"prompt", words}, {"completion", words}} << "\n";
    const auto bench = json_of("bench engine " + kSapling + " --requests 2 --concurrency 2 " +
                               "--arrival 50 --speculate ngram --grant everything --completions " +
                               file + " -o json");
    ASSERT_EQ(bench.size(), 1u);
    EXPECT_GT(bench[0]["accepted drafts per step"].get<double>(), 1.0) << bench;
    std::ofstream(file) << R"({"prompt": "a"})";
    const Result refused = espalier("bench engine " + kSapling + " --completions " + file);
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.output.find("line 1 has no text \"completion\""), std::string::npos)
        << refused.output;
}

// A packed file is found and mapped, gives the same text, and is held to the model beside it.
TEST(Cli, PackedWeightsGiveTheSameText) {
    const espalier::TemporaryDirectory directory;
    const std::string out = (directory.path() / "int4").string();
    const Result made = espalier("quantize " + kSapling + " " + out + " --packed");
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
    const Result missing = espalier(asked + " --mmap-experts");
    EXPECT_EQ(missing.status, 1);
    EXPECT_NE(missing.output.find("--mmap-experts: "), std::string::npos) << missing.output;
    EXPECT_NE(missing.output.find("write it with: espalier pack"), std::string::npos);
    ASSERT_EQ(espalier("pack " + out).status, 0);
    EXPECT_EQ(json_of(asked)["packed_bytes"], 0);
    std::ofstream(directory.path() / "int4" / "packed-panels.espalier", std::ios::binary) << "x";
    const Result damaged = espalier(asked);
    EXPECT_EQ(damaged.status, 1);
    EXPECT_NE(damaged.output.find("packed-panels.espalier"), std::string::npos) << damaged.output;
}

// What quantize writes is what --weights makes at load; eval sees how far both are from the model.
TEST(Cli, QuantizedModelsAreTheSameFromFilesAndAtLoad) {
    const espalier::TemporaryDirectory directory;
    const std::string out = (directory.path() / "int4").string();
    const std::string text = (directory.path() / "text").string();
    std::ofstream(text) << "def add(a, b):\n    return a + b\n\n\nclass Point:\n    pass\n";
    const Result made = espalier("quantize " + kSapling + " " + out);
    ASSERT_EQ(made.status, 0) << made.output;
    EXPECT_EQ(espalier("quantize " + kSapling + " " + out).status, 1);  // not empty
    const std::string eval = " --json --against " + kSapling + " --text " + text;
    const auto files = json_of("eval " + out + eval);
    EXPECT_EQ(files, json_of("eval " + kSapling + eval + " --weights int4"));
    const auto own = json_of("eval " + kSapling + eval);
    EXPECT_NEAR(own["mean_kl_bits"].get<double>(), 0.0, 1e-9);
    EXPECT_EQ(own["top_agreement"], 1.0);
    EXPECT_GT(files["mean_kl_bits"].get<double>(), 1e-6);
    EXPECT_GT(own["bits_per_byte"].get<double>(), 0.1);
    const std::string prompt = " 'def add(a, b):' -n 8 --temperature 0 --json";
    EXPECT_EQ(json_of("generate " + out + prompt)["tokens"],
              json_of("generate " + kSapling + prompt + " --weights int4")["tokens"]);
}

TEST(Cli, RoundedWeightsAreTracedAndReplayed) {
    const espalier::TemporaryDirectory directory;
    const std::string file = (directory.path() / "run.jsonl").string();
    const Result made = espalier("generate " + kSapling +
                                 " 'def add(a, b):' -n 8 --seed 3 --weights int8 --trace " + file);
    ASSERT_EQ(made.status, 0) << made.output;
    const Result again = espalier("replay " + file);
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("8 tokens of 1 requests are the same"), std::string::npos)
        << again.output;
}

TEST(Cli, SelftestLosslessEndsInATable) {
    const espalier::TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    EXPECT_EQ(espalier("make-model --preset tiny-v3 --out " + model).status, 0);
    const Result result = espalier("selftest lossless " + model + " --seconds 0 --seed 7");
    EXPECT_EQ(result.status, 0) << result.output;
    for (const char* part : {"drafts accepted", "workloads 7 to 7", "the bits it gives alone"})
        EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
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

TEST(Cli, APresetIsTimedWithoutBeingKept) {
    const auto bench = json_of(
        "bench model --synthetic tiny-glm --dtype int4 --depth 0 --rows 1 --prompt 300 -r 1 -o "
        "json");
    ASSERT_EQ(bench.size(), 2u);
    EXPECT_EQ(bench[1]["tokens"], 300);
    EXPECT_GT(bench[1]["ms"].get<double>(), 0.0);
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
             Refusal{"generate " + kSapling + " -p x --temperature -1", 1,
                     "temperature: -1, not within 0…100"},
             Refusal{"generate " + kSapling + " -p x --choices 0", 1,
                     "--choices: 0, not within 1…128"},
             Refusal{"generate " + kSapling + " -p x -n 0", 1, "--max-tokens: 0, at least 1"},
             Refusal{"generate " + kSapling + " -p x --choices 129", 1,
                     "--choices: 129, not within 1…128"},
             Refusal{"generate " + kSapling + " -p x --seed -1", 2, "--seed"},
             Refusal{"generate " + kSapling + " -p x --seed 18446744073709551616", 2, "--seed"},
             Refusal{"generate " + kSapling + " -p x --seed 1e23", 2, "--seed"},
             Refusal{"generate " + kSapling + " -p x --seed 010", 2,
                     "010 is not a decimal integer"},
             Refusal{"generate " + kSapling + " -p x --pages 999999999", 1, "--pages: 999999999"},
             Refusal{"generate " + kSapling + " -p x --prompt-logprobs 1", 2, "--json"},
             Refusal{"generate " + kSapling + " -p x --logits /nowhere/logits.npy", 1,
                     "--logits: '/nowhere/logits.npy' cannot be written"},
             Refusal{"generate " + kSapling + " -p x --logit-bias 7", 1, "not ID:BIAS"},
             Refusal{"generate " + kSapling + " -p x --speculate luck", 2, "--speculate"},
             Refusal{"generate " + kSapling + " -p x --draft-depth 99", 1,
                     "--draft-depth: 99, not within 0…63"},
             Refusal{"bench engine " + kSapling + " --speculate mtp:x", 1,
                     "--speculate mtp:x: not NAMES"},
             Refusal{"generate " + kSapling + " -p x --logprobs 2", 2, "--json"},
             Refusal{"bench engine " + kSapling + " --prompt 9-3", 1, "--prompt 9-3: not a number"},
             Refusal{"bench engine " + kSapling + " --arrival soon", 1, "--arrival soon"},
             Refusal{"bench engine " + kSapling + " --prompt 4000", 1,
                     "the model's context is 2048"},
             Refusal{"selftest lossless", 2, "model is required"},
             Refusal{"generate " + kSapling + " -p x --threads 5000", 1,
                     "--threads: 5000, not within 1…1024"},
             Refusal{"generate " + kSapling + " -p x --device cuda", 1,
                     "this build has no CUDA backend"},
             Refusal{"bench model " + kSapling + " --device cuda", 1,
                     "this build has no CUDA backend"},
             Refusal{"selftest lossless " + kSapling + " --speculate eagle3", 1,
                     "no EAGLE3 draft is named"},
             Refusal{"generate NOBODY/nothing -p x", 1, "not in the hub cache"},
             Refusal{"inspect " + kSapling + "-eagle3", 1, "is not supported; supported are"},
             Refusal{"bench model " + kSapling + " -o xml", 1, "not one of md, csv, json"},
             Refusal{"bench model", 2, "--synthetic"},
             Refusal{"bench model " + kSapling + " --synthetic tiny-v3", 2, "--synthetic"},
             Refusal{"bench model --synthetic huge", 2, "--synthetic"},
             Refusal{"bench model " + kSapling + " --dtype int4", 2, "--dtype"},
             Refusal{"selftest --check nonsense", 2, "--check"},
             Refusal{"selftest --device cuda --variant avx2", 1, "chooses among CPU kernels"},
         }) {
        const Result result = espalier(refusal.arguments);
        EXPECT_EQ(result.status, refusal.status) << refusal.arguments;
        EXPECT_NE(result.output.find(refusal.sentence), std::string::npos) << result.output;
    }
}

// A trace of a short text, in a folder of its own.
class CliReplay : public ::testing::Test {
  protected:
    CliReplay() {
        const Result made = espalier("generate " + kSapling +
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
        const Result result = espalier(command);
        EXPECT_EQ(result.status, 1) << result.output;
        EXPECT_NE(result.output.find(why), std::string::npos) << result.output;
    }

    const espalier::TemporaryDirectory directory_;
    const std::string file_ = (directory_.path() / "run.jsonl").string();
};

TEST_F(CliReplay, RunsATraceAgain) {
    for (const std::string& model : {std::string(), kSapling}) {
        const Result again = espalier("replay " + file_ + " " + model);
        EXPECT_EQ(again.status, 0) << again.output;
        EXPECT_NE(again.output.find("24 tokens of 1 requests are the same"), std::string::npos)
            << again.output;
    }
    EXPECT_EQ(espalier("replay " + file_ + " --threads 1").status, 0);
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
    ASSERT_EQ(espalier("make-model --preset tiny-v3 --out " + other).status, 0);
    expect_refused("replay " + file_ + " " + other, "the trace was made with model 'sapling' of");
    expect_refused("replay " + file_ + ".none", "cannot be opened");
    EXPECT_EQ(espalier("replay " + file_ + " " + other + " --chrome x").status, 2);
}

TEST_F(CliReplay, DrawsATimelineWithoutAModel) {
    const std::string out = (directory_.path() / "timeline.json").string();
    const Result drawn = espalier("replay " + file_ + " --chrome " + out);
    EXPECT_EQ(drawn.status, 0) << drawn.output;
    std::ifstream in(out);
    const auto timeline = nlohmann::json::parse(in);
    EXPECT_GT(timeline["traceEvents"].size(), 100u);
}

TEST_F(CliReplay, ABenchIsTracedToo) {
    const std::string bench = "bench engine " + kSapling +
                              " --requests 4 --prompt 8-16 --output 4-8 --concurrency 2 --trace " +
                              file_;
    const Result made = espalier(bench);
    ASSERT_EQ(made.status, 0) << made.output;
    const Result again = espalier("replay " + file_);
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("of 4 requests are the same"), std::string::npos) << again.output;
    expect_refused(bench + " --rounds 2", "--trace writes one run, but");
}

// Traces that version 0.1.0 recorded before the engine stood on devices and targets: their format,
// the fingerprint of their models and every token in them still hold. (tiny-v2 in f32 at
// temperature 0.7 with preemptions, and with trees along known texts; tiny-v3 in FP8, greedy.)
TEST(EarlierTraces, ReplayToTheSameTokens) {
    const espalier::TemporaryDirectory directory;
    ASSERT_EQ(::setenv("ESPALIER_CPU_VARIANT", "portable", 1), 0);
    const std::string v2 = (directory.path() / "v2").string();
    const std::string v3 = (directory.path() / "v3").string();
    EXPECT_EQ(espalier("make-model --preset tiny-v2 --dtype f32 --out " + v2).status, 0);
    EXPECT_EQ(espalier("make-model --preset tiny-v3 --dtype fp8 --seed 7 --out " + v3).status, 0);
    const std::string traces =
        std::string(espalier::test::source_directory()) + "/tests/replay/data/";
    struct Case {
        std::string file, model, says;
    };
    for (const auto& [file, model, says] :
         {Case{"tiny_v2_sampled.jsonl", v2, "299 tokens of 10 requests are the same"},
          Case{"tiny_v2_trees.jsonl", v2, "1665 tokens of 8 requests are the same"},
          Case{"tiny_v3_greedy.jsonl", v3, "460 tokens of 10 requests are the same"}}) {
        const Result again = espalier("replay " + traces + file + " " + model);
        EXPECT_EQ(again.status, 0) << again.output;
        EXPECT_NE(again.output.find(says), std::string::npos) << again.output;
    }
    ASSERT_EQ(::unsetenv("ESPALIER_CPU_VARIANT"), 0);
}

}  // namespace
