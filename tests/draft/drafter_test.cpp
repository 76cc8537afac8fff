// SPDX-License-Identifier: Apache-2.0
// MTP and EAGLE3 inside an engine: no text changes, on any device; and draft KV is there for every
// committed token, with the same bits whatever happened to the request on the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "draft/tiny_drafts.hpp"
#include "lossless/isolated_device.hpp"
#include "lossless/random_drafter.hpp"
#include "schedule/inspection.hpp"
#include "speculate/ngram.hpp"

namespace espalier::draft {
namespace {

using engine::Harness;
using engine::Output;
using engine::Request;
using engine::StepperSettings;
using Drafters = std::vector<std::unique_ptr<speculate::Drafter>>;

TinyDrafts& on_cpu() {
    static TinyDrafts tiny = make_tiny_drafts(model::cpu_machine(1, best_cpu_variant()));
    return tiny;
}

TinyDrafts& on_isolated_device() {
    static TinyDrafts tiny = [] {
        auto device = std::make_unique<lossless::IsolatedDevice>(1);
        model::Machine machine;
        machine.backend = lossless::isolate(*device, ops::make_cpu_backend(best_cpu_variant()));
        machine.kernels = lossless::isolate(*device, mla::make_cpu_kernels(best_cpu_variant()));
        machine.device = std::move(device);
        return make_tiny_drafts(std::move(machine));
    }();
    return tiny;
}

// Requests that share prefixes and draw in all ways.
std::vector<Request> mixed_requests() {
    // Together the first two outgrow few pages: one of them is preempted.
    std::vector<Request> requests = {engine::plain_request(200, 150, 77),
                                     engine::plain_request(150, 130, 31)};
    const Request base = engine::plain_request(150, 40, 3);
    requests.push_back(base);
    Request sampled = engine::plain_request(20, 50, 5);
    sampled.sampling.temperature = 1.0f;
    sampled.choices = 2;
    requests.push_back(sampled);
    Request penalised = base;  // its first pages are the first request's
    penalised.prompt.resize(140);
    penalised.sampling.temperature = 0.8f;
    penalised.sampling.repetition_penalty = 1.3f;
    penalised.sampling.frequency_penalty = 0.2f;
    penalised.sampling.top_p = 0.9f;
    penalised.output.min_tokens = 10;
    penalised.output.ignore_eos = false;
    requests.push_back(penalised);
    requests.push_back(engine::plain_request(1, 30, 9));
    requests.push_back(engine::plain_request(300, 20, 11));
    requests.push_back(requests.back());
    return requests;
}

std::vector<std::shared_ptr<engine::Recorder>> run_all(Harness& harness,
                                                       const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<engine::Recorder>> recorders;
    for (const Request& request : requests) {
        recorders.push_back(harness.submit(request));
        harness.stepper->step();
    }
    harness.run();
    return recorders;
}

// Few pages, small chunks.
StepperSettings tight_settings() {
    StepperSettings settings = engine::roomy_settings();
    settings.schedule.page_count = 1 + 7;
    settings.schedule.max_model_len = 512;
    settings.schedule.max_rows = 4;
    settings.schedule.prompt_quantum = 16;
    settings.schedule.max_step_tokens = 4 + 16 + 100;
    settings.schedule.max_step_gather = 100;
    return settings;
}

Drafters helpers(const std::vector<Request>& requests,
                 const std::vector<std::shared_ptr<engine::Recorder>>& plain) {
    lossless::RandomDrafterOptions options;
    options.truth = 0.6;
    options.silence = 0.2;
    options.truth_last = true;
    std::vector<std::vector<std::int32_t>> texts;
    for (std::size_t i = 0; i < requests.size(); ++i)
        for (std::int32_t choice = 0; choice < requests[i].choices; ++choice)
            texts.push_back(engine::whole_text(requests[i], plain[i]->choice(choice).output));
    Drafters drafters;
    drafters.push_back(std::make_unique<lossless::RandomDrafter>(
        5, options, std::move(texts), std::vector<std::int32_t>{10, 11, 12, 13, 14, 15}));
    drafters.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    return drafters;
}

void expect_lossless(TinyDrafts& tiny, const batch::CaptureOptions& capture = {}) {
    const std::vector<Request> requests = mixed_requests();
    Harness alone(must(engine::ModelTarget::create(*tiny.model, 65)), *tiny.tokenizer);
    const auto plain = run_all(alone, requests);

    DraftingEngine engine(tiny, tight_settings(), helpers(requests, plain), capture);
    const auto drafted = run_all(*engine.harness, requests);
    std::int64_t accepted = 0;
    for (std::size_t i = 0; i < requests.size(); ++i)
        for (std::int32_t choice = 0; choice < requests[i].choices; ++choice) {
            const auto &got = drafted[i]->choice(choice), &want = plain[i]->choice(choice);
            EXPECT_EQ(got.output.tokens, want.output.tokens) << i << ", " << choice;
            EXPECT_EQ(got.output.text, want.output.text);
            accepted += got.usage.accepted;
        }
    EXPECT_GT(accepted, 40);
    const schedule::Totals& totals = engine.harness->stepper->scheduler().totals();
    EXPECT_GT(totals.preemptions, 0);
    EXPECT_GT(totals.hit_tokens + totals.resumed_hit_tokens, 0);
    for (const std::string& failure : engine.harness->stepper->speculation().failures())
        EXPECT_EQ(failure, "");
}

TEST(ModelDrafter, NoTextChanges) { expect_lossless(on_cpu()); }
TEST(ModelDrafter, NoTextChangesOnADeviceOfItsOwn) { expect_lossless(on_isolated_device()); }

constexpr batch::CaptureOptions kCaptured{
    .capture = true, .ahead = 4, .most_tokens = 2048, .sightings = 1, .poison = true};

TEST(ModelDrafter, NoTextChangesOnADeviceOfItsOwnAsRecordings) {
    expect_lossless(on_isolated_device(), kCaptured);
}

// Prompts arrive while others draft: each level is planned from its own rows, whatever the step
// before it was, and a recording proposes what a plain pass does.
TEST(ModelDrafter, DraftsRightAfterAMixedStepAsARecordingAsWell) {
    StepperSettings settings = engine::roomy_settings();
    settings.grant = engine::NodeGrant::everything;
    settings.schedule.prompt_quantum = 16;
    settings.schedule.max_step_tokens = settings.schedule.max_rows + 64;
    DraftingEngine plain(on_cpu(), settings), recorded(on_cpu(), settings, {}, kCaptured);
    std::int64_t mixed = 0, drafts = 0;
    const std::vector<Request> requests = mixed_requests();
    for (std::size_t step = 0; step < 400; ++step) {
        if (step % 5 == 0 && step / 5 < requests.size())
            for (DraftingEngine* engine : {&plain, &recorded})
                engine->harness->submit(requests[step / 5]);
        const engine::StepReport want = plain.harness->stepper->step();
        const engine::StepReport got = recorded.harness->stepper->step();
        ASSERT_EQ(got.tokens.drafts, want.tokens.drafts) << step;
        ASSERT_EQ(got.draft_levels, want.draft_levels) << step;
        ASSERT_EQ(got.accepted_from, want.accepted_from) << step;
        ASSERT_EQ(got.committed, want.committed) << step;
        drafts += want.tokens.drafts;
        mixed += want.tokens.drafts > 0 && want.tokens.prompt_absorbed > 0 ? 1 : 0;
    }
    EXPECT_TRUE(plain.harness->stepper->idle());
    EXPECT_GT(mixed, 5);
    EXPECT_GT(drafts, 500);
}

// The library refuses a batch of more partial results than were announced.
TEST(ModelDrafter, KeepsToItsBudgetOfPartialResults) {
    const std::vector<Request> requests = mixed_requests();
    Harness alone(must(engine::ModelTarget::create(*on_cpu().model, 65)), *on_cpu().tokenizer);
    const auto plain = run_all(alone, requests);
    for (const std::int64_t splits : {2, 24}) {
        DraftingEngine engine(on_cpu(), tight_settings(), {}, {}, splits);
        const auto drafted = run_all(*engine.harness, requests);
        for (std::size_t i = 0; i < requests.size(); ++i)
            EXPECT_EQ(drafted[i]->choice(0).output.tokens, plain[i]->choice(0).output.tokens);
        for (const std::string& failure : engine.harness->stepper->speculation().failures())
            EXPECT_EQ(failure, "");
    }
}

// Content of the draft layers and the tail states for a request that runs: by position.
struct DraftKv {
    std::vector<std::string> slots;  // of all draft layers, from the first that they have
    std::vector<std::string> tails;  // of full pages
};

DraftKv draft_kv(DraftingEngine& engine, RequestSlot slot) {
    engine.flush();
    const auto& scheduler = engine.harness->stepper->scheduler();
    const auto& state = schedule::state_of(scheduler, slot);
    const auto pages = std::get<schedule::Running>(state).pages.block_table();
    const auto length = std::ssize(scheduler.tokens(slot)) - 1;
    DraftKv kv;
    for (std::int64_t position = kFirstSlot; position < length; ++position) {
        std::string bytes;
        for (std::int64_t layer = 0; layer < 2; ++layer) {
            const mla::KvPages of_layer = engine.storage().draft(layer);
            const std::int64_t width = of_layer.page_stride / of_layer.page_tokens;
            const std::byte* at =
                of_layer.data + mla::pool_slot(pages.data(), 64, position) * width;
            bytes.append(reinterpret_cast<const char*>(at), static_cast<std::size_t>(width));
        }
        kv.slots.push_back(std::move(bytes));
    }
    for (std::int64_t page = 0; page < length / 64; ++page) {
        std::string& states = kv.tails.emplace_back();
        for (std::int64_t layer = 0; layer < 2; ++layer) {
            const Matrix tails = engine.storage().tail_states(layer);
            states.append(reinterpret_cast<const char*>(
                              tails.row<float>(pages[static_cast<std::size_t>(page)])),
                          static_cast<std::size_t>(tails.cols) * sizeof(float));
        }
    }
    return kv;
}

bool runs(const DraftingEngine& engine, RequestSlot slot) {
    return std::holds_alternative<schedule::Running>(
        schedule::state_of(engine.harness->stepper->scheduler(), slot));
}

// Steps until the request has this many committed tokens and runs.
void step_until(DraftingEngine& engine, RequestSlot slot, std::size_t tokens) {
    const auto& scheduler = engine.harness->stepper->scheduler();
    for (int i = 0; i < 2000; ++i) {
        if (scheduler.tokens(slot).size() >= tokens && runs(engine, slot)) return;
        engine.harness->stepper->step();
    }
    FAIL() << "it never came to " << tokens << " tokens";
}

void expect_same(const DraftKv& got, const DraftKv& want, const char* what) {
    const std::size_t slots = std::min(got.slots.size(), want.slots.size());
    ASSERT_GT(slots, 200u);
    for (std::size_t i = 0; i < slots; ++i)
        ASSERT_EQ(got.slots[i] == want.slots[i], true) << what << ", slot " << i;
    for (std::size_t i = 0; i < std::min(got.tails.size(), want.tails.size()); ++i)
        ASSERT_EQ(got.tails[i] == want.tails[i], true) << what << ", page " << i;
}

// Texts that end in their first page: whatever the rest holds, slot 0 is as it was.
TEST(ModelDrafter, NeitherWritesNorReadsSlotZero) {
    const StepperSettings settings = engine::roomy_settings();
    DraftingEngine engine(on_cpu(), settings), plain(on_cpu(), settings);
    engine.poison_drafts();
    std::int64_t drafts = 0;
    for (const std::size_t length : {1, 2, 3, 30}) {
        const Request request = engine::plain_request(length, 30, 40 + length);
        for (DraftingEngine* each : {&engine, &plain}) each->harness->submit(request);
        while (!plain.harness->stepper->idle()) {
            const engine::StepReport got = engine.harness->stepper->step();
            const engine::StepReport want = plain.harness->stepper->step();
            ASSERT_EQ(got.tokens.drafts, want.tokens.drafts);
            ASSERT_EQ(got.accepted_from, want.accepted_from);
            drafts += got.tokens.drafts;
        }
    }
    EXPECT_GT(drafts, 100);
    engine.flush();
    for (std::int64_t layer = 0; layer < 2; ++layer) {
        const mla::KvPages pages = engine.storage().draft(layer);
        const auto slot_bytes = static_cast<std::size_t>(pages.page_stride / pages.page_tokens);
        for (std::int64_t page = 0; page < pages.page_count; ++page) {
            const std::byte* const slot = pages.data + page * pages.page_stride;
            EXPECT_TRUE(std::all_of(slot, slot + slot_bytes,
                                    [](std::byte byte) { return byte == std::byte{0xFF}; }))
                << layer << ", page " << page;
        }
    }
}

// A root without a state before it has no drafts.
TEST(ModelDrafter, DraftsNothingBelowATextsFirstToken) {
    DraftingEngine engine(on_cpu(), engine::roomy_settings());
    for (ModelDrafter* drafter : engine.models()) {
        const std::array<std::int32_t, 2> pages = {1, 2};
        speculate::Proposal proposal(0, 17);
        const speculate::DraftCall call{.request = RequestSlot(0),
                                        .root_position = 0,
                                        .block_table = pages,
                                        .proposal = &proposal};
        drafter->begin(RequestSlot(0), {}, 8);
        ASSERT_TRUE(drafter->propose({&call, 1}));
        EXPECT_EQ(proposal.tree.size(), 1);
    }
}

class DraftKvBits : public testing::Test {
  protected:
    // Uninterrupted, in one chunk, without a draft.
    DraftKvBits() {
        request_.speculate = false;
        DraftingEngine engine(on_cpu(), engine::roomy_settings());
        engine.harness->submit(request_);
        const RequestSlot slot = engine.harness->ids[0].slot;
        step_until(engine, slot, kTokens);
        want_ = draft_kv(engine, slot);
        request_.speculate = true;
        Harness alone(must(engine::ModelTarget::create(*on_cpu().model, 65)), *on_cpu().tokenizer);
        plain_ = run_all(alone, {request_});
    }
    Drafters truth() { return helpers({request_}, plain_); }

    static constexpr std::size_t kTokens = 270;
    Request request_ = engine::plain_request(150, 130, 31);
    DraftKv want_;
    std::vector<std::shared_ptr<engine::Recorder>> plain_;
};

TEST_F(DraftKvBits, DoNotDependOnChunksNorOnDrafts) {
    DraftingEngine engine(on_cpu(), tight_settings(), truth());
    engine.harness->submit(request_);
    const RequestSlot slot = engine.harness->ids[0].slot;
    step_until(engine, slot, kTokens);
    expect_same(draft_kv(engine, slot), want_, "drafted");
}

TEST_F(DraftKvBits, AreThereBehindAPrefixHit) {
    DraftingEngine engine(on_cpu(), engine::roomy_settings(), truth());
    engine.harness->submit(request_);
    engine.harness->run();
    engine.harness->submit(request_);
    const RequestSlot slot = engine.harness->ids[0].slot;
    step_until(engine, slot, kTokens);
    EXPECT_GT(engine.harness->stepper->scheduler().totals().hit_tokens, 127);
    expect_same(draft_kv(engine, slot), want_, "behind a hit");
}

TEST_F(DraftKvBits, SurvivePreemption) {
    DraftingEngine engine(on_cpu(), tight_settings(), truth());
    engine.harness->submit(engine::plain_request(200, 150, 77));
    engine.harness->submit(request_);
    const RequestSlot slot = engine.harness->ids[0].slot;
    step_until(engine, slot, kTokens);
    EXPECT_GT(engine.harness->stepper->scheduler().totals().preemptions, 0);
    expect_same(draft_kv(engine, slot), want_, "after preemption");
}

}  // namespace
}  // namespace espalier::draft
