// SPDX-License-Identifier: Apache-2.0
// From a name to an answer and back: what opens, what is refused before the weights are read, and
// options that must not change a text.
#include "runtime/runtime.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>

#include "checkpoint/synthetic.hpp"
#include "model/packed_weights.hpp"
#include "support/paths.hpp"
#include "support/safetensors_editor.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::runtime {
namespace {

const std::string kSapling = std::string(test::source_directory()) + "/models/sapling";

const std::string kSaplingDraft = kSapling + "-eagle3";

RuntimeOptions sapling_options() {
    RuntimeOptions options;
    options.model = kSapling;
    options.load.threads = 1;
    options.engine.sizes = {.rows = 2, .pages = 20, .max_model_len = 512};
    options.engine.grant = engine::NodeGrant::everything;
    return options;
}

engine::Request request_for(const Runtime& runtime, const std::string& prompt) {
    engine::Request request;
    request.prompt = runtime.files().encode_prompt(prompt, text::SpecialTokens::as_text).value();
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 5;
    request.output.max_tokens = 24;
    request.output.ignore_eos = true;
    return request;
}

std::string answer(Runtime& runtime, const std::string& prompt) {
    auto stream = runtime.engine().submit(request_for(runtime, prompt));
    if (!stream) throw std::runtime_error(stream.error().message);
    engine::Updates updates;
    std::string text;
    while (stream->next(updates)) text += updates.choices[0].emission.text;
    return text;
}

std::string refusal(const RuntimeOptions& options) {
    const auto opened = Runtime::open(options);
    return opened ? "opened" : opened.error().message;
}

TEST(Runtime, AnswersAndStops) {
    auto runtime = Runtime::open(sapling_options());
    ASSERT_TRUE(runtime) << runtime.error().message;
    Runtime moved = std::move(*runtime);
    const std::string text = answer(moved, "class Timer:");
    EXPECT_FALSE(text.empty());
    EXPECT_EQ(answer(moved, "class Timer:"), text);
    const auto end = moved.stop();
    ASSERT_TRUE(end);
    EXPECT_FALSE(end->has_value());  // no trace
    EXPECT_EQ(moved.engine().status().state, engine::EngineState::stopped);
}

// Everything but the prefill segment, which decides the bits of long prompts, and the reuse of
// generated text.
TEST(Runtime, OptionsChangeTheWorkAndNotTheText) {
    auto plain = Runtime::open(sapling_options());
    ASSERT_TRUE(plain) << plain.error().message;
    const std::string text = answer(*plain, "def add(a, b):");
    for (int i = 0; i < 4; ++i) {
        RuntimeOptions options = sapling_options();
        options.engine.hash_seed = 1234 + i;
        if (i == 1) options.engine.speculate = {"off"};
        if (i == 2) options.engine.prefix_cache = false;
        if (i == 3) options.engine.sizes.step_tokens = 1;
        auto other = Runtime::open(options);
        ASSERT_TRUE(other) << other.error().message;
        EXPECT_EQ(answer(*other, "def add(a, b):"), text) << i;
    }
}

std::int64_t hits(std::optional<std::uint64_t> seed) {
    RuntimeOptions options = sapling_options();
    options.engine.hash_seed = seed;
    auto runtime = Runtime::open(options);
    EXPECT_TRUE(runtime);
    std::string prompt;
    for (int i = 0; i < 60; ++i) prompt += "x" + std::to_string(i) + " = 1\n";
    for (int i = 0; i < 2; ++i) answer(*runtime, prompt);
    return runtime->engine().status().totals.hit_tokens;
}

TEST(Runtime, WhatIsFoundDoesNotDependOnTheHash) {
    const std::int64_t found = hits(0);
    EXPECT_GT(found, 64);
    for (const auto seed : {std::optional<std::uint64_t>(1), std::optional<std::uint64_t>(~0ull),
                            std::optional<std::uint64_t>()})
        EXPECT_EQ(hits(seed), found);
}

// The seed of the hash is random, and the trace says which it was.
TEST(Runtime, WritesATraceThatNamesTheHashSeed) {
    const TemporaryDirectory directory;
    std::vector<std::string> headers;
    for (int i = 0; i < 2; ++i) {
        RuntimeOptions options = sapling_options();
        options.engine.trace = (directory.path() / "run.jsonl").string();
        auto runtime = Runtime::open(options);
        ASSERT_TRUE(runtime) << runtime.error().message;
        answer(*runtime, "import os");
        const auto end = runtime->stop();
        ASSERT_TRUE(end && end->has_value());
        EXPECT_EQ((*end)->reason, trace::Close::finished);
        EXPECT_GT((*end)->steps, 1);
        std::ifstream in(options.engine.trace);
        std::getline(in, headers.emplace_back());
    }
    EXPECT_NE(headers[0].find("\"hash_seed\""), std::string::npos);
    EXPECT_NE(headers[0], headers[1]);
}

TEST(Runtime, RefusesBeforeTheWeightsAreRead) {
    RuntimeOptions options = sapling_options();
    int reports = 0;
    options.load.progress = [&](std::uint64_t, std::uint64_t) { ++reports; };
    options.model = "NOBODY/nothing";
    EXPECT_NE(refusal(options).find("not in the hub cache"), std::string::npos);
    options.model = kSapling;
    options.engine.sizes.max_model_len = 1 << 20;
    EXPECT_EQ(refusal(options), "max_model_len: 1048576, not within 2…2048");
    options = sapling_options();
    options.engine.sizes.pages = 1 << 30;
    EXPECT_TRUE(refusal(options).starts_with("pages: 1073741824 take ")) << refusal(options);
    EXPECT_EQ(reports, 0);
    options = sapling_options();
    options.load.threads = 5000;
    EXPECT_EQ(refusal(options), "threads: 5000, not within 1…1024 (or 0: all cores)");
    options = sapling_options();
    options.engine.speculate = {"tea leaves"};
    const std::string rule = ": each of ngram, mtp, eagle3 and grammar once, or auto or off alone";
    EXPECT_EQ(refusal(options), "speculate: tea leaves" + rule);
    options.engine.speculate = {"mtp", "off"};
    EXPECT_EQ(refusal(options), "speculate: mtp,off" + rule);
    options.engine.speculate = {"mtp", "mtp"};
    EXPECT_EQ(refusal(options), "speculate: mtp,mtp" + rule);
    options.engine.speculate = {};
    EXPECT_EQ(refusal(options), "speculate: nothing is named, not even off");
    options.engine.speculate = {"eagle3"};
    EXPECT_EQ(refusal(options), "speculate: eagle3, but no EAGLE3 draft is named (draft)");
    options.draft = kSaplingDraft;
    options.engine.speculate = {"ngram"};
    EXPECT_TRUE(refusal(options).ends_with("would not be used: speculate does not name eagle3"));
    options.draft = kSapling;
    EXPECT_TRUE(refusal(options).find("no EAGLE3 draft for an MLA target") != std::string::npos)
        << refusal(options);
}

// Latents of 384 columns: kernels say what they have before any weight is packed.
TEST(Runtime, RefusesWidthsThatNoKernelHas) {
    const TemporaryDirectory directory;
    const std::string path = (directory.path() / "model").string();
    ThreadPool pool(1);
    auto synthetic = checkpoint::synthetic_preset("tiny-v3").value();
    synthetic.config.kv_lora_rank = 384;
    ASSERT_TRUE(checkpoint::write_synthetic(synthetic, path, pool));
    RuntimeOptions options;
    options.model = path;
    bool reported = false;
    options.load.progress = [&](const auto&...) { reported = true; };
    const auto refused = Runtime::open(options);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message,
              path +
                  ": attention over keys of 384 latent and 64 rotated columns: 512 and 64, or 256 "
                  "and 64, are possible");
    EXPECT_FALSE(reported);
}

// Drafts of Sapling's own MTP layer and of its EAGLE3 head are mostly right, and change no text.
TEST(Runtime, DraftModelsChangeTheWorkAndNotTheText) {
    const auto run = [](std::vector<std::string> speculate, float temperature) {
        RuntimeOptions options = sapling_options();
        if (speculate.back() != "mtp") options.draft = kSaplingDraft;
        options.engine.speculate = std::move(speculate);
        auto runtime = Runtime::open(options);
        if (!runtime) throw std::runtime_error(runtime.error().message);
        engine::Request request = request_for(*runtime, "class Timer:\n    def");
        request.sampling.temperature = temperature;
        request.output.max_tokens = 30;
        auto stream = runtime->engine().submit(request);
        engine::Updates updates;
        std::pair<std::string, std::int64_t> result;
        while (stream->next(updates)) {
            result.first += updates.choices[0].emission.text;
            result.second = updates.choices[0].usage.steps;
        }
        return result;
    };
    const std::vector<std::vector<std::string>> drafters[] = {{{"eagle3"}}, {{"mtp"}, {"auto"}}};
    for (const int sampled : {0, 1}) {
        const float temperature = sampled == 0 ? 0.0f : 0.8f;
        const auto [text, steps] = run({"off"}, temperature);
        EXPECT_EQ(steps, 30);
        for (const auto& speculate : drafters[sampled]) {
            const auto [drafted, fewer] = run(speculate, temperature);
            EXPECT_EQ(drafted, text);
            EXPECT_LT(fewer, 20) << speculate.front() << " at " << temperature;
        }
    }
}

TEST(Runtime, TellsHowFarLoadingIs) {
    RuntimeOptions options = sapling_options();
    std::uint64_t last = 0, all = 0;
    options.load.progress = [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_GE(done, last);
        EXPECT_LE(done, total);
        last = done;
        all = total;
    };
    ASSERT_TRUE(Runtime::open(options));
    EXPECT_GT(all, 0u);
    EXPECT_EQ(last, all);
}

// Weights are read in place from a packed file that another process cuts short: the request ends
// with the file's name, no token of the step goes out, and the engine takes nothing more.
TEST(Runtime, AMappedFileThatIsCutShortEndsTheEngine) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    ThreadPool pool(1);
    ASSERT_TRUE(
        checkpoint::write_synthetic(checkpoint::synthetic_preset("tiny-v3").value(), model, pool));
    CpuDevice device(1);
    const auto source =
        std::make_shared<const checkpoint::Checkpoint>(checkpoint::Checkpoint::open(model).value());
    ASSERT_TRUE(model::write_packed_weights(source, device));
    RuntimeOptions options;
    options.model = model;
    options.load.threads = 2;
    options.engine.sizes = {.rows = 1, .pages = 8, .max_model_len = 256};
    auto runtime = Runtime::open(options);
    ASSERT_TRUE(runtime) << runtime.error().message;
    engine::Request request;
    request.prompt = {300, 301, 302};
    request.output.max_tokens = 4;
    request.output.ignore_eos = true;
    engine::Updates updates;
    {
        auto stream = runtime->engine().submit(request);
        while (stream->next(updates))
            EXPECT_EQ(updates.choices[0].interruption, engine::Interruption::none);
    }
    const std::filesystem::path packed = model::packed_weights_path(*source);
    std::filesystem::resize_file(packed, 8192);
    auto stream = runtime->engine().submit(request);
    ASSERT_TRUE(stream);
    std::size_t tokens = 0;
    std::string message;
    while (stream->next(updates)) {
        tokens += updates.choices[0].emission.tokens.size();
        message += updates.choices[0].message;
    }
    EXPECT_EQ(tokens, 0u);
    EXPECT_NE(message.find(packed.string() + ": byte "), std::string::npos) << message;
    // The request's end comes out of the step, the engine's after it.
    while (runtime->engine().status().state == engine::EngineState::running)
        std::this_thread::yield();
    EXPECT_EQ(runtime->engine().status().state, engine::EngineState::failed);
    EXPECT_FALSE(runtime->engine().submit(request));
}

// Keys of up to some thousands: an fp8_tensor cache of scale 1 saturates, and one of the scale that
// the checkpoint states does not.
TEST(Runtime, AnFp8TensorCacheTakesTheScalesOfTheCheckpoint) {
    const TemporaryDirectory directory;
    const std::string model = (directory.path() / "model").string();
    ThreadPool pool(1);
    const auto synthetic = checkpoint::synthetic_preset("tiny-v3").value();
    ASSERT_TRUE(checkpoint::write_synthetic(synthetic, model, pool));
    SafetensorsEditor file(model + "/model.safetensors");
    for (auto& [name, entry] : file.tensors)
        if (name.ends_with("kv_a_layernorm.weight"))
            for (std::size_t i = 0; i < entry.bytes.size(); i += 2) {
                entry.bytes[i] = '\0';
                entry.bytes[i + 1] = '\x45';  // bf16 2,048
            }
    file.save();
    const auto logprobs = [&](const char* format) {
        RuntimeOptions options;
        options.model = model;
        options.load.threads = 1;
        options.load.kv_format = parse_kv_format(format);
        options.engine.sizes = {.rows = 1, .pages = 8, .max_model_len = 256};
        auto runtime = Runtime::open(options);
        if (!runtime) throw std::runtime_error(runtime.error().message);
        engine::Request request;
        for (int i = 0; i < 60; ++i) request.prompt.push_back(5 + i * 7);
        request.output.max_tokens = 0;
        request.output.prompt_top_logprobs = 0;
        auto stream = runtime->engine().submit(request);
        engine::Updates updates;
        std::vector<float> values;
        while (stream->next(updates))
            if (updates.prompt_logprobs)
                values.assign(updates.prompt_logprobs->logprobs().begin(),
                              updates.prompt_logprobs->logprobs().end());
        return std::pair(values, note_on_cache(runtime->loaded()).has_value());
    };
    const auto error_of = [](const std::vector<float>& a, const std::vector<float>& b) {
        EXPECT_EQ(a.size(), 59u);
        EXPECT_EQ(a.size(), b.size());
        double sum = 0;
        for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += std::abs(a[i] - b[i]);
        return sum;
    };
    const auto [exact, none] = logprobs("own");
    EXPECT_FALSE(none);
    const auto [saturated, noted] = logprobs("fp8_tensor");
    EXPECT_TRUE(noted);
    for (std::int64_t layer = 0; layer <= synthetic.config.num_hidden_layers; ++layer) {
        const std::string name = fmt::format("model.layers.{}.self_attn.k_proj.k_scale", layer);
        const float scale = 32.0f;
        file.put(name, "F32", {}, 4);
        std::memcpy(file.tensors[name].bytes.data(), &scale, 4);
    }
    file.save();
    const auto [scaled, noted_still] = logprobs("fp8_tensor");
    EXPECT_FALSE(noted_still);
    EXPECT_LT(2 * error_of(exact, scaled), error_of(exact, saturated))
        << error_of(exact, scaled) << " against " << error_of(exact, saturated);
}

TEST(ModelFiles, APromptWithTokensBeyondTheVocabularyNamesBothFiles) {
    namespace fs = std::filesystem;
    const TemporaryDirectory directory;
    for (const auto& entry : fs::directory_iterator(kSapling))
        if (entry.path().extension() == ".json" || entry.path().extension() == ".safetensors")
            fs::create_symlink(entry.path(), directory.path() / entry.path().filename());
    std::ifstream in(kSapling + "/config.json");
    std::stringstream text;
    text << in.rdbuf();
    std::string config = text.str();
    const std::size_t at = config.find(':', config.find("\"vocab_size\"")) + 1;
    config.replace(at, config.find_first_of(",\n}", at) - at, " 63");
    fs::remove(directory.path() / "config.json");
    std::ofstream(directory.path() / "config.json") << config;
    auto files = ModelFiles::open(directory.path().string());
    ASSERT_TRUE(files) << files.error().message;
    const auto tokens = files->encode_prompt("class Timer:", text::SpecialTokens::as_text);
    ASSERT_FALSE(tokens);
    EXPECT_NE(tokens.error().message.find("vocab_size of config.json is 63"), std::string::npos)
        << tokens.error().message;
}

}  // namespace
}  // namespace espalier::runtime
