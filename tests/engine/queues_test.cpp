// SPDX-License-Identifier: Apache-2.0
// The inbox and the mailbox by themselves: bounds that hold wherever requests wait, and updates
// that coalesce.
#include <gtest/gtest.h>

#include <thread>

#include "engine/harness.hpp"
#include "engine/inbox.hpp"
#include "engine/mailbox.hpp"

namespace espalier::engine {
namespace {

using namespace std::chrono_literals;

Inbox::Incoming incoming(std::size_t prompt, std::int32_t choices) {
    const RequestLimits limits = roomy_limits();
    Request request = plain_request(prompt, 10, 1);
    request.choices = choices;
    return {*check_request(request, limits, *tiny_target(Family::v2).tokenizer),
            std::make_shared<Mailbox>(choices)};
}

TEST(Inbox, CountsWhatWaitsHereOnItsWayAndAtTheScheduler) {
    Inbox inbox(5, 100);
    ASSERT_TRUE(inbox.submit(incoming(10, 2)));
    ASSERT_TRUE(inbox.submit(incoming(10, 2)));
    EXPECT_EQ(inbox.submit(incoming(10, 2)).error().message,
              "the queue would have 6 requests; its limit is 5");
    EXPECT_EQ(inbox.submit(incoming(61, 1)).error().message,
              "the queue would have 101 tokens; its limit is 100");
    Inbox::Taken taken;
    inbox.take(false, 24h, taken);
    EXPECT_EQ(taken.requests.size(), 2u);
    EXPECT_FALSE(inbox.submit(incoming(10, 2)));  // taken, but not yet with the scheduler

    auto scheduler = schedule::Scheduler::create(roomy_settings().schedule);
    for (int i = 0; i < 2; ++i) {
        schedule::Request request;
        request.prompt = random_prompt(10, 1);
        request.choices = 2;
        (*scheduler)->submit(request);
    }
    inbox.report(taken, 5, **scheduler, {});
    EXPECT_EQ(inbox.status().heartbeat, 5);
    EXPECT_EQ(inbox.status().sums.refused, 5);
    EXPECT_EQ(inbox.status().queued, 0);
    EXPECT_EQ(inbox.status().gauges.waiting, 4);
    EXPECT_FALSE(inbox.submit(incoming(10, 2)));
    EXPECT_FALSE(inbox.submit(incoming(61, 1)));
    EXPECT_TRUE(inbox.submit(incoming(60, 1)));
}

TEST(Inbox, WhatIsLeftWhenItClosesHearsOfIt) {
    Inbox inbox(5, 1000);
    Inbox::Incoming one = incoming(10, 2);
    const std::shared_ptr<Mailbox> mailbox = one.mailbox;
    ASSERT_TRUE(inbox.submit(std::move(one)));
    EXPECT_FALSE(inbox.wait_until_idle(0ns));
    inbox.close(EngineState::stopped, "it was stopped", {});
    EXPECT_FALSE(inbox.wait_until_idle(std::chrono::nanoseconds::max()));
    EXPECT_EQ(inbox.status().sums.ends.of(Interruption::stopped), 2);
    Updates updates;
    ASSERT_TRUE(mailbox->next(updates));
    for (const ChoiceUpdate& choice : updates.choices) {
        EXPECT_TRUE(choice.ended);
        EXPECT_EQ(choice.interruption, Interruption::stopped);
        EXPECT_EQ(choice.message, "it was stopped");
    }
    EXPECT_FALSE(mailbox->next(updates));
    inbox.cancel(mailbox);  // of no effect
}

TEST(Mailbox, UpdatesCoalesceAndComeOnce) {
    Mailbox mailbox(2);
    accept::Emission emission;
    emission.text = "a";
    emission.tokens = {{7, -1.0f, 0}};
    accept::Usage usage;
    usage.completion_tokens = 1;
    RequestTimes times;
    const auto receive = [&](std::int32_t choice, std::optional<Ending> ending = std::nullopt) {
        mailbox.receive({.choice = choice,
                         .emission = emission,
                         .usage = usage,
                         .times = times,
                         .cached_tokens = 64,
                         .ending = ending});
    };
    receive(1);
    usage.completion_tokens = 2;
    times.first_token = 7;
    receive(1);
    Updates updates;
    ASSERT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::updated);
    EXPECT_EQ(updates.choices[1].emission.text, "aa");
    EXPECT_EQ(updates.choices[1].emission.tokens.size(), 2u);
    EXPECT_EQ(updates.choices[1].usage.completion_tokens, 2);
    EXPECT_EQ(updates.choices[1].cached_tokens, 64);
    EXPECT_EQ(updates.choices[1].times.first_token, 7);
    EXPECT_TRUE(updates.choices[0].emission.tokens.empty());
    EXPECT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::timed_out);

    const Ending ending{{accept::FinishReason::length, -1}, Interruption::none, {}};
    for (const std::int32_t choice : {0, 1}) receive(choice, ending);
    ASSERT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::updated);
    EXPECT_EQ(updates.choices[1].emission.text, "a");
    EXPECT_TRUE(updates.choices[0].ended && updates.choices[1].ended);
    EXPECT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::finished);
}

// A reader that falls behind holds no more trees than a few, whatever the output's length.
TEST(Mailbox, KeepsTheLastTreesOnly) {
    Mailbox mailbox(1);
    const accept::Emission emission;
    const accept::Usage usage;
    const RequestTimes times;
    for (std::int32_t step = 0; step < 20; ++step) {
        const std::vector<VerifiedTree> trees = {
            {.tokens = {step, 1}, .parents = {-1, 0}, .origins = {{}, {}}, .path = {0}}};
        mailbox.receive(
            {.emission = emission, .usage = usage, .times = times, .trees = trees, .ending = {}});
    }
    Updates updates;
    ASSERT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::updated);
    ASSERT_EQ(updates.choices[0].trees.size(), kReportedTrees);
    EXPECT_EQ(updates.choices[0].trees.front().tokens[0], 12);
    EXPECT_EQ(updates.choices[0].trees.back().tokens[0], 19);
    mailbox.receive({.emission = emission, .usage = usage, .times = times, .ending = {}});
    ASSERT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::updated);
    EXPECT_TRUE(updates.choices[0].trees.empty());
}

// One call between two reads, after the update is there to be read; the last comes with the end.
TEST(Mailbox, WakesAReaderThatDoesNotWait) {
    int calls = 0;
    bool readable = true;
    Updates updates;
    Mailbox* box = nullptr;
    Mailbox mailbox(1, [&] {
        ++calls;
        // From inside the call: no lock is held.
        if (calls == 2) readable = box->next_within(updates, 0ns) == Mailbox::Poll::updated;
    });
    box = &mailbox;
    accept::Emission emission;
    emission.text = "a";
    const accept::Usage usage;
    const RequestTimes times;
    const auto receive = [&](std::optional<Ending> ending = std::nullopt) {
        mailbox.receive({.emission = emission, .usage = usage, .times = times, .ending = ending});
    };
    receive();
    receive();
    EXPECT_EQ(calls, 1);
    ASSERT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::updated);
    EXPECT_EQ(updates.choices[0].emission.text, "aa");
    receive();
    EXPECT_EQ(calls, 2);
    EXPECT_TRUE(readable);
    mailbox.refuse(Interruption::stopped, "stopped");
    EXPECT_EQ(calls, 3);
    ASSERT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::updated);
    EXPECT_EQ(mailbox.next_within(updates, 0ns), Mailbox::Poll::finished);
}

// The clock's now and all the time there is would be a moment long past.
TEST(Mailbox, AReaderMayHaveAllThePatienceThereIs) {
    Mailbox mailbox(1);
    std::thread engine([&] {
        std::this_thread::sleep_for(20ms);
        mailbox.refuse(Interruption::stopped, "late");
    });
    Updates updates;
    EXPECT_EQ(mailbox.next_within(updates, std::chrono::nanoseconds::max()),
              Mailbox::Poll::updated);
    engine.join();
}

}  // namespace
}  // namespace espalier::engine
