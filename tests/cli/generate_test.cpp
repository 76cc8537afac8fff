// SPDX-License-Identifier: Apache-2.0
// espalier generate: its text, its flags, what it says of itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "cli/binary.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::test {
namespace {

TEST(Cli, TheTextIsAFunctionOfPromptSeedAndParametersAlone) {
    const std::string common =
        "generate " + sapling() + " -p 'class Timer:' -n 40 --json --temperature 0.8 --top-p 0.95 ";
    const auto first = json_of(common + "--seed 11 --threads 1");
    EXPECT_EQ(first["completion_tokens"], 40);
    EXPECT_EQ(first["seed"], 11);
    for (const char* threads : {"1", "2", "3"})
        EXPECT_EQ(json_of(common + "--seed 11 --threads " + threads)["tokens"], first["tokens"])
            << threads;
    EXPECT_NE(json_of(common + "--seed 12")["tokens"], first["tokens"]);
}

// Transformers' reading; flags win.
TEST(Cli, GenerationConfigStandsForFlagsThatAreNotGiven) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "tiny").string();
    ASSERT_EQ(run_binary("make-model --preset tiny-v3 --out " + model).status, 0);
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
        "generate " + sapling() + " -p 'import os' -n 24 --json --temperature 1 ";
    const auto drawn = json_of(common);
    EXPECT_EQ(json_of(common + "--seed " + drawn["seed"].dump())["tokens"], drawn["tokens"]);
}

// A list that goes on as it began: what drafts from the text's own past are for.
const std::string kRepeating =
    "'first = load(\"first\")\nsecond = load(\"second\")\nthird = load(\"third\")\nfirst = "
    "load(\"first\")\nsecond = load(\"second\")\nthird ='";

TEST(Cli, DraftsChangeTheSpeedAndNothingElse) {
    const std::string common =
        "generate " + sapling() + " " + kRepeating + " -n 60 --json --logprobs 2 --ignore-eos ";
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
    // The number of verified drafts depends on measured times, unless all are.
    const auto greedy = json_of(common + "--temperature 0 --grant everything");
    EXPECT_GT(greedy["acceptance_length"].get<double>(), 0.5) << greedy;
    EXPECT_EQ(greedy["logprobs"].size(), 60u);
    EXPECT_EQ(greedy["logprobs"][0]["top"].size(), 2u);
}

#if defined(ESPALIER_WITH_GRAMMAR)
TEST(Cli, GenerateHoldsItsTextToWhatIsAskedFor) {
    const TemporaryDirectory directory;
    const std::string schema = (directory.path() / "schema.json").string();
    std::ofstream(schema)
        << R"({"type": "object", "required": ["name", "count"], "additionalProperties": false,
               "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 8},
                              "count": {"type": "integer", "minimum": 1, "maximum": 99}}})";
    const std::string ebnf = (directory.path() / "tag.ebnf").string();
    std::ofstream(ebnf) << R"(root ::= "<" [a-z] [0-9]? ">")";
    const std::string common =
        "generate " + sapling() + " -p 'record = ' -n 400 --temperature 2 --json ";
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
        const BinaryResult result = run_binary("generate " + sapling() + " -p x " + flags);
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
    const BinaryResult result =
        run_binary("generate " + sapling() + " " + kRepeating + " -n 30 --temperature 0");
    EXPECT_EQ(result.status, 0) << result.output;
    for (const char* part : {"third = load", " steps, ", " accepted drafts per step", "tokens/s"})
        EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
}

TEST(Cli, ChoicesStopsAndLimitsAreTheEngines) {
    const std::string common = "generate " + sapling() + " 'import os' --json --temperature 1 ";
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
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "logits.npy").string();
    const std::string common = "generate " + sapling() + " 'def add(a, b):' --json ";
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
    const std::string common = "generate " + sapling() + " -n 1 --json " + special;
    const int plain = json_of(common)["prompt_tokens"];
    const int parsed = json_of(common + " --special")["prompt_tokens"];
    EXPECT_LT(parsed, plain);
}

TEST(Cli, EngineFlagsChangeTheWorkAndNotTheText) {
    const std::string common =
        "generate " + sapling() + " " + kRepeating + " -n 20 --json --temperature 0.7 --seed 3 ";
    const auto plain = json_of(common);
    for (const char* flags :
         {"--rows 3 --pages 40 --step-tokens 1 --max-waiting 5", "--max-model-len 500",
          "--prefix-cache off", "--grant everything", "--prefill-segment 0", "--reuse-generated"})
        EXPECT_EQ(json_of(common + flags)["tokens"], plain["tokens"]) << flags;
    EXPECT_GT(json_of(common + "--grant everything")["accepted_tokens"].get<int>(), 0);
}

TEST(Cli, ACacheOfFp8IsTracedAndReplayed) {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "run.jsonl").string();
    const BinaryResult made =
        run_binary("generate " + sapling() +
                   " 'def add(a, b):' -n 8 --seed 3 --kv-format fp8_token --trace " + file);
    if (made.status == 1) {  // a model whose activations are f32 has no such cache
        EXPECT_NE(made.output.find("fp8_token"), std::string::npos) << made.output;
        return;
    }
    ASSERT_EQ(made.status, 0) << made.output;
    const BinaryResult again = run_binary("replay " + file);
    EXPECT_EQ(again.status, 0) << again.output;
    EXPECT_NE(again.output.find("8 tokens of 1 requests are the same"), std::string::npos)
        << again.output;
}

TEST(Cli, ErrorsGoToStandardErrorAndTheRestToStandardOutput) {
    const BinaryResult refused =
        run_binary("generate " + sapling() + " x --temperature -1", "2>/dev/null");
    EXPECT_EQ(refused.status, 1);
    EXPECT_EQ(refused.output, "");
    const BinaryResult wrong = run_binary("generate", "2>/dev/null");
    EXPECT_EQ(wrong.status, 2);
    EXPECT_EQ(wrong.output, "");
    const BinaryResult text =
        run_binary("generate " + sapling() + " 'import os' -n 2", "2>/dev/null");
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
                                            sapling()};
    Random random(11);
    for (int i = 0; i < 30; ++i) {
        std::string arguments = "generate " + sapling() + " x -n 1";
        for (int count = random.between(1, 5); count > 0; --count)
            arguments += " " + words[random.bits() % words.size()];
        const BinaryResult result = run_binary(arguments);
        EXPECT_TRUE(result.status == 0 || result.status == 1 || result.status == 2)
            << arguments << "\n"
            << result.output;
        if (result.status != 0) {
            EXPECT_FALSE(result.output.empty()) << arguments;
        }
    }
}

}  // namespace
}  // namespace espalier::test
