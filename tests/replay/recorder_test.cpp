// SPDX-License-Identifier: Apache-2.0
// The recorder on a running engine with many clients.
#include "replay/recorder.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "engine/engine.hpp"
#include "engine/harness.hpp"
#include "replay/convert.hpp"
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

}  // namespace
}  // namespace espalier::replay
