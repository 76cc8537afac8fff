// SPDX-License-Identifier: Apache-2.0
// The recorder on a running engine with many clients; and what a model's hash tells apart.
#include "replay/recorder.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "checkpoint/synthetic.hpp"
#include "engine/engine.hpp"
#include "engine/harness.hpp"
#include "replay/convert.hpp"
#include "replay/fingerprint.hpp"
#include "replay/replayer.hpp"
#include "speculate/ngram.hpp"
#include "support/temporary_directory.hpp"
#include "trace/samples.hpp"

namespace espalier::replay {
namespace {

TEST(Recorder, ARunningEngineWithManyClientsCanBeRunAgain) {
    const TemporaryDirectory directory;
    const std::string path = (directory.path() / "run.jsonl").string();
    engine::TinyTarget& target = engine::tiny_target(engine::Family::v3);
    const engine::StepperSettings settings = engine::roomy_settings();
    trace::Header header = trace::sample_header();
    header.settings = settings_of(settings, {"ngram"});
    auto recorder = Recorder::open(path, header);
    ASSERT_TRUE(recorder) << recorder.error().message;
    engine::StepperParts parts{
        engine::make_target(**target.model), *target.tokenizer, {}, engine::steady_clock()};
    parts.drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    parts.observer = recorder->get();
    std::atomic<std::int64_t> tokens = 0;
    {
        auto engine = engine::Engine::create(std::move(parts), settings);
        ASSERT_TRUE(engine) << engine.error().message;
        const auto client = [&](std::uint64_t seed) {
            for (std::uint64_t i = 0; i < 4; ++i) {
                auto stream = (*engine)->submit(engine::plain_request(30, 20, seed * 10 + i));
                if (!stream) continue;
                engine::Updates updates;
                bool first = true;
                while (stream->next(updates)) {
                    for (const auto& choice : updates.choices)
                        tokens += std::ssize(choice.emission.tokens);
                    if (first && i == 2) stream->cancel();
                    first = false;
                }
            }
        };
        std::vector<std::thread> clients;
        for (std::uint64_t seed = 1; seed <= 3; ++seed) clients.emplace_back(client, seed);
        for (std::thread& thread : clients) thread.join();
    }
    const auto end = (*recorder)->finish();
    ASSERT_TRUE(end) << end.error().message;
    EXPECT_EQ(end->reason, trace::Close::finished);
    EXPECT_EQ(end->submissions, 12);
    auto reader = trace::Reader::open(path);
    ASSERT_TRUE(reader) << reader.error().message;
    const auto again = replay(*reader, engine::target_maker(target), *target.tokenizer);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(again->steps, end->steps);
    EXPECT_EQ(again->requests, 12);
    EXPECT_GE(again->tokens, tokens);  // a cancelled stream may not have read its last ones
    EXPECT_EQ(again->unfinished, 0);
}

std::string hash_of(const std::filesystem::path& path) {
    auto opened = checkpoint::Checkpoint::open(path.string());
    EXPECT_TRUE(opened) << opened.error().message;
    const auto hash = fingerprint(*opened);
    EXPECT_TRUE(hash) << hash.error().message;
    return *hash;
}

void change_byte(const std::filesystem::path& file, std::streamoff from_end) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(-from_end, std::ios::end);
    const auto place = stream.tellg();
    const char changed = static_cast<char>(stream.get() ^ 1);
    stream.seekp(place);
    stream.put(changed);
}

TEST(Fingerprint, TellsModelsApartByWeightsConfigurationAndTokenizer) {
    const TemporaryDirectory directory;
    const auto path = directory.path() / "model";
    const auto preset = checkpoint::synthetic_preset("tiny-v2");
    ASSERT_TRUE(preset);
    model::write_model(*preset, path);
    const std::string first = hash_of(path);
    EXPECT_EQ(first.size(), 16u);
    EXPECT_EQ(hash_of(path), first);
    std::filesystem::rename(path, directory.path() / "renamed");
    EXPECT_EQ(hash_of(directory.path() / "renamed"), first);
    std::filesystem::rename(directory.path() / "renamed", path);
    std::string last = first;
    for (const char* file : {"model.safetensors", "tokenizer.json"}) {
        std::filesystem::path changed = path / file;
        if (file == std::string("tokenizer.json"))
            std::ofstream(changed, std::ios::app) << "\n";
        else
            change_byte(changed, 1);
        const std::string next = hash_of(path);
        EXPECT_NE(next, last) << file;
        last = next;
    }
    std::ofstream(path / "config.json", std::ios::app) << "\n";
    EXPECT_NE(hash_of(path), last);
}

}  // namespace
}  // namespace espalier::replay
