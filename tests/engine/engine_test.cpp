// SPDX-License-Identifier: Apache-2.0
// The engine from the outside, by several threads at once: what clients read is what the plain run
// gives, whoever comes, goes or is slow. The sanitizers' builds run these too.
#include "engine/engine.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "engine/faulty_target.hpp"
#include "engine/harness.hpp"
#include "speculate/ngram.hpp"

namespace espalier::engine {
namespace {

using namespace std::chrono_literals;

std::unique_ptr<Engine> make_engine(model::DeepseekModel& model, const text::Tokenizer& tokenizer,
                                    const StepperSettings& settings = roomy_settings()) {
    StepperParts parts{make_target(model), tokenizer, {}, steady_clock()};
    parts.drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    auto made = Engine::create(std::move(parts), settings);
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

std::unique_ptr<Engine> make_engine(const StepperSettings& settings = roomy_settings()) {
    TinyTarget& target = tiny_target(Family::v2);
    return make_engine(**target.model, *target.tokenizer, settings);
}

// Reads to the end; what was read of choice 0.
struct Read {
    std::vector<accept::CommittedToken> tokens;
    std::string text;
    ChoiceUpdate last;
    int updates = 0;
};

Read read_all(Stream& stream, std::chrono::microseconds pause = 0us) {
    Read read;
    Updates updates;
    while (stream.next(updates)) {
        const ChoiceUpdate& choice = updates.choices[0];
        read.tokens.insert(read.tokens.end(), choice.emission.tokens.begin(),
                           choice.emission.tokens.end());
        read.text += choice.emission.text;
        read.last = choice;
        ++read.updates;
        if (pause > 0us) std::this_thread::sleep_for(pause);
    }
    return read;
}

Output plain_output(const Request& request) {
    TinyTarget& target = tiny_target(Family::v2);
    const RequestLimits limits = roomy_limits();
    return run_plain(target, *check_request(request, limits, *target.tokenizer), 0);
}

// Several clients, each with its own requests: some read, some cancel half way, some just go.
TEST(Engine, ConcurrentClientsGetTheirTextsWhateverOthersDo) {
    constexpr int kClients = 4, kRequests = 6;
    std::vector<Request> requests;
    std::vector<Output> expected;
    for (int i = 0; i < kRequests; ++i) {
        requests.push_back(plain_request(static_cast<std::size_t>(5 + 20 * i), 12 + 4 * i,
                                         static_cast<std::uint64_t>(i + 1)));
        requests.back().sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
        expected.push_back(plain_output(requests.back()));
    }
    const auto engine = make_engine();
    std::atomic<int> finished = 0, wrong = 0;
    std::vector<std::thread> clients;
    for (int client = 0; client < kClients; ++client)
        clients.emplace_back([&, client] {
            for (int i = 0; i < kRequests; ++i) {
                const auto index = static_cast<std::size_t>(i);
                auto stream = engine->submit(requests[index]);
                if (!stream) {
                    ++wrong;
                    continue;
                }
                if ((client + i) % 5 == 3) continue;  // gone: the stream's end cancels
                if ((client + i) % 5 == 4) stream->cancel();
                const Read read = read_all(*stream);
                const std::vector<accept::CommittedToken>& whole = expected[index].tokens;
                const bool prefix =
                    read.tokens.size() <= whole.size() &&
                    std::equal(read.tokens.begin(), read.tokens.end(), whole.begin());
                const bool cancelled = read.last.interruption == Interruption::cancelled;
                if (!prefix || (!cancelled && read.text != expected[index].text)) ++wrong;
                finished += cancelled ? 0 : 1;
            }
        });
    for (std::thread& client : clients) client.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GE(finished, 12);
    EXPECT_TRUE(engine->drain(60s));
    const EngineStatus status = engine->status();
    EXPECT_EQ(status.gauges.pages.owned, 0);
    EXPECT_EQ(status.totals.submitted, kClients * kRequests);
    EXPECT_EQ(status.queued, 0);
}

TEST(Engine, ASlowReaderHoldsNobodyUpAndMissesNothing) {
    const Request request = plain_request(20, 60, 5);
    const Output expected = plain_output(request);
    const auto engine = make_engine();
    auto slow = engine->submit(request);
    auto fast = engine->submit(request);
    ASSERT_TRUE(slow && fast);
    const Read first = read_all(*fast);
    EXPECT_TRUE(engine->drain(60s));  // the slow one's too, though nobody has read it
    EXPECT_EQ(first.text, expected.text);
    const Read second = read_all(*slow, 100us);
    EXPECT_EQ(second.updates, 1);  // all of it in one piece
    EXPECT_EQ(second.text, expected.text);
    EXPECT_EQ(second.tokens, expected.tokens);
    EXPECT_EQ(second.last.usage.completion_tokens, 60);
}

TEST(Engine, DrainFinishesWhatItHasAndRefusesTheRest) {
    const auto engine = make_engine();
    auto stream = engine->submit(plain_request(20, 100, 5));
    ASSERT_TRUE(stream);
    EXPECT_TRUE(engine->drain(60s));
    EXPECT_EQ(engine->status().state, EngineState::draining);
    EXPECT_EQ(read_all(*stream).tokens.size(), 100u);
    const auto refused = engine->submit(plain_request(20, 10, 5));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "the engine is shutting down and takes no requests");
}

TEST(Engine, StopEndsEverythingAtOnceAndStreamsMayOutliveIt) {
    StepperSettings settings = roomy_settings();
    settings.schedule.max_rows = 1;
    auto engine = make_engine(settings);
    std::vector<Stream> streams;
    for (std::uint64_t i = 0; i < 3; ++i)
        streams.push_back(std::move(*engine->submit(plain_request(20, 900, i))));
    Updates updates;
    ASSERT_TRUE(streams[0].next(updates));  // it runs
    engine->stop();
    EXPECT_EQ(engine->status().state, EngineState::stopped);
    EXPECT_FALSE(engine->submit(plain_request(20, 10, 5)));
    EXPECT_FALSE(engine->drain(60s));  // all have ended, but not as they should
    EXPECT_EQ(engine->status().sums.ends.of(Interruption::stopped), 3);
    engine.reset();
    for (Stream& stream : streams) {
        const Read read = read_all(stream);
        EXPECT_EQ(read.last.interruption, Interruption::stopped);
        EXPECT_LT(read.tokens.size(), 900u);
    }
}

// Every reader that was let in hears of an end, at whatever moment of its way the engine stops.
TEST(Engine, EveryStreamEndsWhereverItWasWhenTheEngineStopped) {
    for (int round = 0; round < 8; ++round) {
        const auto engine = make_engine();
        std::atomic<int> taken = 0, ended = 0;
        std::vector<std::thread> clients;
        for (int client = 0; client < 3; ++client)
            clients.emplace_back([&, client] {
                for (std::uint64_t i = 0;; ++i) {
                    Request request = plain_request(10 + 30 * (i % 4), 20, i);
                    request.choices = 1 + static_cast<std::int32_t>(i % 3);
                    auto stream = engine->submit(std::move(request));
                    if (!stream && stream.error().message.starts_with("the engine")) return;
                    if (!stream) continue;  // the queue is full
                    ++taken;
                    if (client == 1) stream->cancel();
                    Updates updates;
                    while (stream->next(updates)) continue;
                    ended += std::all_of(updates.choices.begin(), updates.choices.end(),
                                         [](const ChoiceUpdate& choice) { return choice.ended; })
                                 ? 1
                                 : 0;
                }
            });
        std::this_thread::sleep_for(std::chrono::milliseconds(round));
        if (round % 2 == 0) engine->drain(0ns);
        engine->stop();
        for (std::thread& client : clients) client.join();
        EXPECT_EQ(taken, ended);
        EXPECT_EQ(engine->status().queued, 0);
    }
}

TEST(Engine, RefusesWhatCanNeverRunAndWhatTheQueueHasNoRoomFor) {
    StepperSettings settings = roomy_settings();
    settings.schedule.max_rows = 1;
    settings.schedule.max_waiting = 3;
    const auto engine = make_engine(settings);
    const auto too_long = engine->submit(plain_request(1024, 10, 1));
    ASSERT_FALSE(too_long);
    EXPECT_EQ(too_long.error().message,
              "prompt: 1024 tokens; prompt and output together may have 1024");
    std::vector<Stream> streams;
    std::optional<Error> refusal;
    for (std::uint64_t i = 0; i < 10 && !refusal; ++i) {
        auto stream = engine->submit(plain_request(20, 900, i));
        if (stream)
            streams.push_back(std::move(*stream));
        else
            refusal = stream.error();
    }
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->kind, ErrorKind::exhausted);
    EXPECT_EQ(refusal->message, "the queue would have 4 requests; its limit is 3");
    EXPECT_GE(streams.size(), 3u);
    EXPECT_LE(streams.size(), 4u);
}

TEST(Engine, AnErrorOfTheProgramEndsTheRequestsAndIsTold) {
    FaultyTarget target;
    const auto engine = make_engine(target.model(), target.tokenizer());
    auto stream = engine->submit(plain_request(20, 900, 1));
    ASSERT_TRUE(stream);
    Updates updates;
    ASSERT_TRUE(stream->next(updates));
    target.kernels.fault = FaultyKernels::Fault::throw_in_attention;
    const Read read = read_all(*stream);
    EXPECT_EQ(read.last.interruption, Interruption::step_failed);
    EXPECT_EQ(read.last.message, "a fault of the test");
    EXPECT_FALSE(engine->drain(60s));  // nothing is left to wait for, but it was not finished
    EXPECT_EQ(engine->status().state, EngineState::failed);
    const auto refused = engine->submit(plain_request(20, 10, 5));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "the engine is out of order: a fault of the test");
}

// Nothing after can be trusted: who is not in the step ends too.
TEST(Engine, ADeviceThatFailsEndsAllRequestsWithItsWords) {
    FaultyTarget target;
    StepperSettings settings = roomy_settings();
    settings.schedule.max_rows = 1;
    const auto engine = make_engine(target.model(), target.tokenizer(), settings);
    auto running = engine->submit(plain_request(20, 900, 1));
    auto waiting = engine->submit(plain_request(20, 900, 2));
    ASSERT_TRUE(running && waiting);
    Updates updates;
    ASSERT_TRUE(running->next(updates));
    target.kernels.fault = FaultyKernels::Fault::refuse_attention;
    for (Stream* stream : {&*running, &*waiting}) {
        const Read read = read_all(*stream);
        EXPECT_EQ(read.last.interruption, Interruption::step_failed);
        EXPECT_EQ(read.last.message, "the test's device is out of order");
    }
    EXPECT_FALSE(engine->drain(60s));
    EXPECT_EQ(engine->status().state, EngineState::failed);
    EXPECT_EQ(engine->status().failure, "the test's device is out of order");
}

// One thread reads all streams: told by wake-ups, it polls and never waits for one of them. Others
// submit and cancel meanwhile.
TEST(Engine, OneThreadReadsManyStreamsByWakeUps) {
    constexpr std::size_t kStreams = 12;
    struct Mail {
        std::mutex mutex;
        std::condition_variable arrived;
        std::vector<std::size_t> woken;
    };
    // A wake-up may come after its reader is gone.
    const auto mail = std::make_shared<Mail>();
    std::vector<Request> requests;
    std::vector<Output> expected;
    for (std::size_t i = 0; i < kStreams; ++i) {
        requests.push_back(plain_request(5 + 11 * i, 20, i));
        expected.push_back(plain_output(requests.back()));
    }
    const auto engine = make_engine();
    std::vector<std::optional<Stream>> streams(kStreams);
    for (std::size_t i = 0; i < kStreams; ++i) {
        auto stream = engine->submit(requests[i], [mail, i] {
            const std::lock_guard lock(mail->mutex);
            mail->woken.push_back(i);
            mail->arrived.notify_one();
        });
        ASSERT_TRUE(stream);
        streams[i].emplace(std::move(*stream));
    }
    std::thread canceller([&] {
        for (std::size_t i = 0; i < kStreams; i += 4) streams[i]->cancel();
    });
    std::vector<std::string> texts(kStreams);
    std::vector<Updates> updates(kStreams);
    std::size_t finished = 0;
    while (finished < kStreams) {
        std::vector<std::size_t> woken;
        {
            std::unique_lock lock(mail->mutex);
            ASSERT_TRUE(mail->arrived.wait_for(lock, 60s, [&] { return !mail->woken.empty(); }));
            std::swap(woken, mail->woken);
        }
        for (const std::size_t i : woken) {
            if (streams[i]->next_within(updates[i], 0ns) != Mailbox::Poll::updated) continue;
            texts[i] += updates[i].choices[0].emission.text;
            if (updates[i].choices[0].ended) ++finished;
        }
    }
    canceller.join();
    for (std::size_t i = 0; i < kStreams; ++i) {
        const ChoiceUpdate& last = updates[i].choices[0];
        EXPECT_EQ(streams[i]->next_within(updates[i], 0ns), Mailbox::Poll::finished);
        if (last.interruption == Interruption::cancelled) {
            EXPECT_EQ(i % 4, 0u);
            EXPECT_TRUE(expected[i].text.starts_with(texts[i]));
        } else {
            EXPECT_EQ(texts[i], expected[i].text);
        }
    }
}

TEST(Engine, ARequestsTimesFollowEachOther) {
    const auto engine = make_engine();
    const schedule::Time before = engine->now();
    auto stream = engine->submit(plain_request(20, 5, 1));
    ASSERT_TRUE(stream);
    const RequestTimes times = read_all(*stream).last.times;
    EXPECT_LE(before, times.arrived);
    ASSERT_TRUE(times.planned && times.first_token && times.ended);
    EXPECT_LE(times.arrived, *times.planned);
    EXPECT_LT(*times.planned, *times.first_token);
    EXPECT_LT(*times.first_token, *times.ended);
    EXPECT_LE(*times.ended, engine->now());
}

TEST(Engine, TheHeartBeatsWhileThereIsNothingToDo) {
    const auto engine = make_engine();
    schedule::Time beat = engine->status().heartbeat;
    for (int beats = 0; beats < 2; ++beats) {
        const auto deadline = std::chrono::steady_clock::now() + 60s;
        while (engine->status().heartbeat == beat) {
            ASSERT_LT(std::chrono::steady_clock::now(), deadline);
            std::this_thread::sleep_for(1ms);
        }
        beat = engine->status().heartbeat;
        EXPECT_LE(beat, engine->now());
    }
    EXPECT_EQ(engine->status().last_step, 0);
}

TEST(Engine, SumsWhatItsRequestsDid) {
    const auto engine = make_engine();
    Request request = plain_request(20, 30, 1);
    accept::Usage usage;
    for (int i = 0; i < 2; ++i) {
        auto stream = engine->submit(request);
        ASSERT_TRUE(stream);
        usage = read_all(*stream).last.usage;
    }
    request.deadline = engine->now();
    auto late = engine->submit(request);
    ASSERT_TRUE(late);
    EXPECT_EQ(read_all(*late).last.interruption, Interruption::deadline);
    EXPECT_TRUE(engine->drain(60s));
    const EngineTotals sums = engine->status().sums;
    EXPECT_EQ(sums.ends.of(accept::FinishReason::length), 2);
    EXPECT_EQ(sums.ends.of(accept::FinishReason::interrupted), 1);
    EXPECT_EQ(sums.ends.of(Interruption::deadline), 1);
    EXPECT_EQ(sums.steps.committed, 60);
    std::int64_t accepted = 0;
    for (const std::int64_t count : sums.steps.accepted_at_depth) accepted += count;
    EXPECT_EQ(accepted, sums.steps.accepted);
    EXPECT_GE(sums.steps.accepted, usage.accepted);
    EXPECT_EQ(sums.drawing_steps() + sums.steps.accepted, 60);
    engine->stop();
    EXPECT_TRUE(engine->drain(0ns));  // it had finished all before it was stopped
}

TEST(Engine, AReaderMayAskWithoutWaiting) {
    const auto engine = make_engine();
    auto stream = engine->submit(plain_request(5, 3, 1));
    ASSERT_TRUE(stream);
    Updates updates;
    std::size_t tokens = 0;
    for (;;) {
        const Mailbox::Poll answer = stream->next_within(updates, 1ms);
        if (answer == Mailbox::Poll::finished) break;
        if (answer == Mailbox::Poll::updated) tokens += updates.choices[0].emission.tokens.size();
    }
    EXPECT_EQ(tokens, 3u);
}

}  // namespace
}  // namespace espalier::engine
