// SPDX-License-Identifier: Apache-2.0
// What speculation learns and decides on a machine whose times are known: a target without a model
// whose steps take what the test says, and drafters that know the text and cost what the test says.
#include "engine/speculation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <vector>

#include "engine/fake_target.hpp"
#include "engine/harness.hpp"
#include "engine/stepper.hpp"

namespace espalier::engine {
namespace {

using Tokens = std::vector<std::int32_t>;
constexpr std::int64_t kVocabulary = 512;
constexpr schedule::Time kStep = 1'000'000;  // of one token, without drafts

// Passes everything on to a fake target; a run takes a step and this much per further token.
class TimedTarget final : public Target {
  public:
    TimedTarget(schedule::Time& now, schedule::Time per_token)
        : now_(now),
          per_token_(per_token),
          inner_(kVocabulary,
                 {.max_tokens = kTinyMaxTokens, .max_gather = kTinyMaxGather, .max_kv_len = 4096},
                 65) {}
    const FakeTarget& inner() const { return inner_; }
    const TargetInfo& info() const override { return inner_.info(); }
    Expected<void> reserve(const StepRoom& room) override { return inner_.reserve(room); }
    Expected<void> run(const batch::HostBatch& batch,
                       const ops::SamplingBatchBuilder* draws) override {
        const std::int64_t tokens = batch.capacity.tokens();
        now_ += kStep + per_token_ * (tokens - 1);
        recorded_ = recording > 0 && sizes_.insert(tokens).second;
        if (recorded_) now_ += recording;
        return inner_.run(batch, draws);
    }
    Expected<StepResult> wait() override {
        Expected<StepResult> result = inner_.wait();
        if (result) result->recorded = recorded_;
        return result;
    }
    Expected<void> compact(std::span<const std::int64_t> source,
                           std::span<const std::int64_t> destination) override {
        return inner_.compact(source, destination);
    }

    schedule::Time recording = 0;  // of the first step of each size; 0: none is made

  private:
    schedule::Time& now_;
    schedule::Time per_token_;
    FakeTarget inner_;
    std::set<std::int64_t> sizes_;
    bool recorded_ = false;
};

// Calls that a drafter of this file got.
struct Seen {
    std::vector<speculate::DraftShape> shapes;
    std::vector<std::int64_t> roots;
    std::vector<bool> coupled;
    int begun = 0, ended = 0, destroyed = 0;
};

// Continues a known text, rightly or with tokens that are never in it; every level takes a while.
class TextDrafter final : public speculate::Drafter {
  public:
    struct Habits {
        bool right = true;
        schedule::Time level = 0;
        bool passes = true;
        int breaks_after = -1;
        bool second_branch = false;  // right, but below a wrong choice that it is surer of
        schedule::Time hidden = 0;   // of a level, neither drafting nor the target's
    };
    TextDrafter(schedule::Time& now, Tokens text, Habits habits, Seen& seen)
        : now_(now), text_(std::move(text)), habits_(habits), seen_(seen) {
        while (std::find(text_.begin(), text_.end(), wrong_) != text_.end()) ++wrong_;
    }
    ~TextDrafter() override { ++seen_.destroyed; }

    speculate::DrafterNeeds needs() const override {
        return {.draft_cache = habits_.passes, .passes = habits_.passes};
    }
    void begin(RequestSlot, std::span<const std::int32_t>, std::int64_t) override { ++seen_.begun; }
    void end(RequestSlot) override { ++seen_.ended; }
    Expected<void> extend(std::span<const speculate::Extension>) override { return {}; }
    void commit(std::span<const speculate::Commitment>) override {
        now_ += std::exchange(levels_, 0) * habits_.hidden;
    }
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override {
        if (habits_.breaks_after == 0) return fail(ErrorKind::io, "the drafter's device is gone");
        --habits_.breaks_after;
        std::int32_t levels = 0;
        for (const speculate::DraftCall& call : calls) {
            seen_.shapes.push_back(call.shape);
            seen_.roots.push_back(call.root_position);
            seen_.coupled.push_back(call.coupled);
            EXPECT_NE(call.sampling, nullptr);
            EXPECT_EQ(call.choice, 0);
            if (habits_.passes) {
                EXPECT_GE(std::ssize(call.block_table) * cache::kPageTokens,
                          call.root_position + call.shape.nodes);
            }
            std::int32_t node = 0;
            const std::int32_t depth = std::min(call.shape.depth, call.shape.nodes - 1);
            for (std::int32_t level = 0; level < depth; ++level) {
                // The wrong choice comes first; a single node a level is gone on from it.
                std::int32_t first = -1;
                if (habits_.second_branch) {
                    if (call.proposal->tree.size() + 1 >= call.shape.nodes) break;
                    first = call.proposal->add(node, wrong_, 0.6f);
                }
                const auto next = static_cast<std::size_t>(call.root_position + 1 + level);
                const std::int32_t token =
                    habits_.right && next < text_.size() ? text_[next] : wrong_;
                node = call.proposal->add(node, token, habits_.second_branch ? 0.3f : 0.9f);
                if (first >= 0 && call.shape.width < 2) node = first;
            }
            levels = std::max(levels, depth);
        }
        now_ += levels * habits_.level;
        levels_ = levels;
        return {};
    }

  private:
    schedule::Time& now_;
    Tokens text_;
    Habits habits_;
    Seen& seen_;
    std::int32_t wrong_ = 2;   // a token that the text does not have
    std::int32_t levels_ = 0;  // drafted since the last commit
};

struct RunReport {
    std::int64_t steps = 0, drafts = 0;
    std::vector<std::int64_t> drafts_of_step;
    schedule::Time began = 0, took = 0;
    bool right = true;
    RecordedChoice choice;
    std::int64_t accepted_beside = 0;  // by drafters other than the first
};

struct Machine {
    explicit Machine(schedule::Time per_token, NodeGrant grant = NodeGrant::measured) {
        owned = std::make_unique<TimedTarget>(now, per_token);
        target = owned.get();
        settings.grant = grant;
        settings.schedule.reserve_windows = true;
    }
    Tokens chain(const Request& request) const {
        Tokens text = request.prompt;
        for (std::int64_t i = 0; i < request.output.max_tokens; ++i)
            text.push_back(target->inner().next_token(text));
        return text;
    }
    void start(const Tokens& text, std::vector<TextDrafter::Habits> habits) {
        Harness::Drafters drafters;
        for (const TextDrafter::Habits& one : habits)
            drafters.push_back(std::make_unique<TextDrafter>(now, text, one, seen));
        harness = std::make_unique<Harness>(std::move(owned), *tiny_target(Family::v2).tokenizer,
                                            settings, std::move(drafters), [this] { return now; });
    }
    RunReport run(const Request& request, const Tokens& text) {
        RunReport run;
        run.began = now;
        const auto recorder = harness->submit(request);
        while (!harness->stepper->idle()) {
            const StepReport report = harness->stepper->step();
            if (report.tokens.roots == 0) continue;
            ++run.steps;
            run.drafts += report.tokens.drafts;
            run.drafts_of_step.push_back(report.tokens.drafts);
            for (std::size_t d = 1; d < report.accepted_from.size(); ++d)
                run.accepted_beside += report.accepted_from[d];
        }
        run.took = now - run.began;
        run.choice = recorder->choice(0);
        run.right = whole_text(request, run.choice.output) == text;
        return run;
    }

    schedule::Time now = 0;
    Seen seen;
    StepperSettings settings = roomy_settings();
    std::unique_ptr<TimedTarget> owned;
    TimedTarget* target = nullptr;
    std::unique_ptr<Harness> harness;
};

Request request_of(std::int64_t tokens) { return plain_request(40, tokens, 11); }

// Tokens cost next to nothing: after the first dozen steps whatever is offered pays.
TEST(Speculation, LearnsFromTheFirstStepsThatDraftsPay) {
    Machine machine(kStep / 200);
    const Request request = request_of(400);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.passes = false}});
    EXPECT_EQ(machine.now, 0);  // a start waits for nothing
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    // The first steps look at several sizes, plain ones among them.
    ASSERT_GT(run.drafts_of_step.size(), 12u);
    EXPECT_EQ(run.drafts_of_step[0], 0);
    EXPECT_EQ(run.drafts_of_step[1], 3);
    EXPECT_EQ(std::count(run.drafts_of_step.begin(), run.drafts_of_step.begin() + 12, 0), 4);
    EXPECT_GT(run.drafts_of_step[16], 15);
    EXPECT_LT(run.steps, 40);
    for (const speculate::DraftShape& shape : machine.seen.shapes) EXPECT_GE(shape.depth, 1);
}

// A token costs as much as a step: none pays, and looking for it costs little.
TEST(Speculation, LearnsFromTheFirstStepsThatDraftsDoNotPay) {
    Machine machine(kStep);
    const Request request = request_of(400);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.right = false, .passes = false}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_EQ(run.steps, 399);  // the prompt's step draws one
    EXPECT_LT(run.drafts, 80);
    EXPECT_LT(run.took, 1.2 * 440 * kStep);
}

TEST(Speculation, ADrafterThatPaysIsAskedForAShapeThatPays) {
    Machine machine(kStep / 50);
    const Request request = request_of(400);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.level = kStep / 10}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_LT(run.steps, 120);
    EXPECT_EQ(machine.seen.shapes.front(), speculate::DraftPlanner::kFirstShape);
    const speculate::DraftShape& late = machine.seen.shapes[machine.seen.shapes.size() * 2 / 3];
    EXPECT_GT(late.depth, 4);
    EXPECT_EQ(late.width, 1);  // the text is known: branches would be wasted
}

TEST(Speculation, ADrafterThatDoesNotPayIsHardlyAsked) {
    Machine machine(kStep / 50);
    const Request request = request_of(900);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.right = false, .level = kStep / 4}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_EQ(run.steps, 899);
    std::int64_t late = 0;
    for (const std::int64_t root : machine.seen.roots) late += root > 40 + 300 ? 1 : 0;
    EXPECT_GE(late, 1);  // it is still looked at now and then
    // 0.5 % of 600 steps at a quarter of a step each, and what is verified of them.
    EXPECT_LE(late, 14);
    EXPECT_LT(run.took, 1.1 * 900 * kStep);
}

// Right, but so slow that plain steps are faster: what it costs is measured, not believed.
TEST(Speculation, ADrafterThatIsRightButTooSlowIsHardlyAsked) {
    Machine machine(kStep / 50);
    const Request request = request_of(600);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.level = 3 * kStep}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_LT(machine.seen.shapes.size(), 20u);
    EXPECT_LT(run.took, 1.2 * 640 * kStep);
}

// Every size is recorded when it comes first, at the price of three steps. Taken for the price of
// drafts it would make 123 steps of 38.
TEST(Speculation, RecordingsAreNotTakenForWhatStepsCost) {
    std::array<std::int64_t, 2> steps{};
    for (const bool records : {false, true}) {
        Machine machine(kStep / 200);
        if (records) machine.target->recording = 3 * kStep;
        const Request request = request_of(400);
        const Tokens text = machine.chain(request);
        machine.start(text, {{.level = kStep / 4}});
        const RunReport run = machine.run(request, text);
        EXPECT_TRUE(run.right);
        steps[records ? 1 : 0] = run.steps;
    }
    EXPECT_LE(steps[1], steps[0] + 2);
}

TEST(Speculation, ADrafterThatFailsIsGoneAndTheTextIsNot) {
    Machine machine(kStep / 50, NodeGrant::everything);
    const Request request = request_of(400);  // of seven steps and more
    const Tokens text = machine.chain(request);
    machine.start(text, {{.breaks_after = 3}});
    EXPECT_TRUE(machine.run(request, text).right);
    EXPECT_EQ(machine.seen.destroyed, 1);
    EXPECT_EQ(machine.seen.ended, 0);  // its requests ended with it
    EXPECT_TRUE(machine.run(request, text).right);
    EXPECT_EQ(machine.seen.begun, 1);
    EXPECT_EQ(machine.harness->stepper->speculation().failures(),
              std::vector<std::string>{"the drafter's device is gone"});
}

// ---- what a request prescribes
// -------------------------------------------------------------------

// A token costs as much as a step, so nothing pays; what is prescribed is done all the same.
TEST(Speculation, APrescribedTreeIsDraftedAndVerifiedWhateverItCosts) {
    Machine machine(kStep);
    Request request = request_of(100);
    request.draft_depth = 3;
    request.draft_width = 2;
    const Tokens text = machine.chain(request);
    machine.start(text, {{.level = kStep, .second_branch = true}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_EQ(run.steps, 26);  // 99 tokens, four a step, fewer where the output ends
    for (std::size_t i = 0; i + 2 < run.drafts_of_step.size(); ++i)
        EXPECT_EQ(run.drafts_of_step[i], 6) << i;
    for (std::size_t i = 0; i + 2 < machine.seen.shapes.size(); ++i)
        EXPECT_EQ(machine.seen.shapes[i],
                  (speculate::DraftShape{.depth = 3, .width = 2, .nodes = 7}));
}

TEST(Speculation, OneRequestsPrescriptionLeavesTheOthersToWhatPays) {
    Machine machine(kStep);
    const Request free = request_of(300);
    const Tokens text = machine.chain(free);
    machine.start(text, {{.right = false, .passes = false}});
    machine.run(free, text);  // nothing pays, and that is known now
    Request fixed = request_of(60), off = request_of(60);
    fixed.draft_depth = 2;
    off.speculate = false;
    const auto a = machine.harness->submit(free), b = machine.harness->submit(fixed),
               c = machine.harness->submit(off);
    machine.harness->run();
    EXPECT_LT(a->choice(0).usage.drafted, 30);
    EXPECT_GE(b->choice(0).usage.drafted, 2 * 55);
    EXPECT_EQ(c->choice(0).usage.drafted, 0);
    for (const auto& recorder : {a, b, c})
        for (std::size_t i = 0; i < recorder->choice(0).output.tokens.size(); ++i)
            ASSERT_EQ(recorder->choice(0).output.tokens[i].token, text[40 + i]);
}

TEST(Speculation, NothingBelowATokenThatEndsTheOutputIsVerified) {
    Machine machine(kStep / 50, NodeGrant::everything);
    Request request = request_of(40);
    const Tokens text = machine.chain(request);
    std::int32_t wrong = 2;  // what the drafter proposes, again and again
    while (std::ranges::find(text, wrong) != text.end()) ++wrong;
    request.output.stop_token_ids = {wrong};
    machine.start(text, {{.right = false}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_GT(run.drafts, 0);
    for (const std::int64_t drafts : run.drafts_of_step) EXPECT_LE(drafts, 1);
}

// ---- where accepted tokens came from
// -------------------------------------------------------------

TEST(Speculation, AcceptedTokensAreCountedToTheDrafterThatHadThem) {
    Machine machine(kStep / 50, NodeGrant::everything);
    Request request = request_of(200);
    request.draft_depth = 4;
    request.draft_nodes = 12;
    const Tokens text = machine.chain(request);
    machine.start(text, {{.right = false}, {.right = true}, {.right = true, .passes = false}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    const accept::Usage& usage = run.choice.usage;
    EXPECT_GT(usage.accepted, 100);
    EXPECT_EQ(usage.accepted_from[0], 0);
    EXPECT_GT(usage.drafted_from[0], 100);
    EXPECT_EQ(usage.accepted_from[1] + usage.accepted_from[2], usage.accepted);
    EXPECT_EQ(run.accepted_beside, usage.accepted);
    std::int64_t tokens = 0;
    for (const accept::CommittedToken& token : run.choice.output.tokens) {
        if (!token.origin.drafted()) continue;
        ++tokens;
        EXPECT_EQ(token.origin.drafters, 0b110);  // both right ones had it
        EXPECT_EQ(token.origin.rank, 0);
        EXPECT_GE(token.origin.depth, 1);
        EXPECT_LE(token.origin.depth, 4);
    }
    EXPECT_GE(tokens, usage.accepted);
    EXPECT_LE(tokens, usage.accepted + 1);  // the last token's draft was right, but gained nothing
}

TEST(Speculation, ASecondBranchIsAcceptedAndKeepsItsRank) {
    Machine machine(kStep / 100);
    const Request request = request_of(400);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.level = kStep / 20, .second_branch = true}});
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_LT(run.steps, 200);  // wider trees were found to pay
    std::int64_t second = 0;
    for (const accept::CommittedToken& token : run.choice.output.tokens)
        second += token.origin.drafted() && token.origin.rank == 1 ? 1 : 0;
    EXPECT_GT(second, 150);
}

// ---- off where nothing is gained
// -----------------------------------------------------------------

// Two drafters that are never right, at a fifth of a step for a level, left on.
TEST(Speculation, LeftOnWhereNothingIsGainedCostsThreePercentAtMost) {
    Machine machine(kStep / 20);
    const Request request = request_of(900);
    const Tokens text = machine.chain(request);
    machine.start(text,
                  {{.right = false, .level = kStep / 5}, {.right = false, .level = kStep / 5}});
    machine.run(request, text);  // what the first steps cost to learn
    schedule::Time took = 0, plain = 0;
    for (int i = 0; i < 3; ++i) {
        Request off = request;
        off.speculate = false;
        plain += machine.run(off, text).took;
        const RunReport run = machine.run(request, text);
        EXPECT_TRUE(run.right);
        took += run.took;
    }
    EXPECT_LT(static_cast<double>(took), 1.03 * static_cast<double>(plain));
}

// Drafts that are right and seem to pay, but cost more than their own time and the target's.
TEST(Speculation, HoldsWhatItPredictsToWhatHappens) {
    Machine machine(4 * kStep / 5);
    const Request request = request_of(900);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.level = kStep / 20, .hidden = kStep / 4}});
    machine.run(request, text);  // what the first steps cost to learn
    Request off = request;
    off.speculate = false;
    const schedule::Time plain = machine.run(off, text).took;
    const RunReport run = machine.run(request, text);
    EXPECT_TRUE(run.right);
    EXPECT_GT(run.drafts, 0);  // tried again now and then
    EXPECT_LT(static_cast<double>(run.took), 1.015 * static_cast<double>(plain));
}

// The same with new texts all the time.
TEST(Speculation, HoldsWhatItPredictsToWhatHappensBesidePrompts) {
    Machine machine(kStep / 2);
    Request request = plain_request(4, 24, 11);
    const Tokens text = machine.chain(request);
    machine.start(text, {{.level = kStep / 20, .hidden = kStep}});
    const auto run = [&](bool speculate) {
        request.speculate = speculate;
        const schedule::Time began = machine.now;
        std::int64_t drafts = 0;
        for (int texts = 0; texts < 1000 || !machine.harness->stepper->idle(); ++texts) {
            if (texts < 1000) machine.harness->submit(request);
            drafts += machine.harness->stepper->step().tokens.drafts;
        }
        EXPECT_EQ(drafts > 0, speculate);
        return static_cast<double>(machine.now - began);
    };
    run(true);  // what the first steps cost to learn
    const double plain = run(false);
    EXPECT_LT(run(true), 1.03 * plain);
}

TEST(Speculation, SharesTheNoiseWhereThereIsAny) {
    for (const float temperature : {0.0f, 0.3f, 1.0f}) {
        Machine machine(kStep / 50);
        Request request = request_of(200);
        request.sampling.temperature = temperature;
        const Tokens text = machine.chain(request);
        machine.start(text, {{.level = kStep / 20}});
        EXPECT_TRUE(machine.run(request, text).right);
        const auto coupled =
            std::count(machine.seen.coupled.begin(), machine.seen.coupled.end(), true);
        const auto calls = std::ssize(machine.seen.coupled);
        ASSERT_GT(calls, 10);
        EXPECT_EQ(coupled, temperature > 0 ? calls : 0);
    }
}

// A page is published by what is committed, however many tokens a step committed.
TEST(Speculation, PrefixHitsAreNoFewerThanWithoutDrafts) {
    std::vector<std::vector<std::int64_t>> hits;
    for (const bool drafts : {false, true}) {
        Machine machine(kStep / 100);
        const Request first = request_of(300);
        const Tokens text = machine.chain(first);
        machine.start(text, {{.level = kStep / 20}, {.passes = false}});
        std::vector<std::int64_t>& found = hits.emplace_back();
        for (const std::size_t length : {40, 104, 168, 200, 300, 340}) {
            Request next = first;
            next.speculate = drafts;
            next.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
            next.output.max_tokens = 340 - static_cast<std::int64_t>(length) + 1;
            const RunReport run = machine.run(next, Tokens());
            found.push_back(run.choice.cached_tokens);
        }
    }
    EXPECT_EQ(hits[0], hits[1]);
    EXPECT_GT(hits[0].back(), 0);
}

TEST(Speculation, WindowsMustBeReservedForADrafterThatWrites) {
    Machine machine(1);
    machine.settings.schedule.reserve_windows = false;
    Harness::Drafters drafters;
    drafters.push_back(
        std::make_unique<TextDrafter>(machine.now, Tokens{}, TextDrafter::Habits{}, machine.seen));
    StepperParts parts{std::move(machine.owned), *tiny_target(Family::v2).tokenizer,
                       std::move(drafters), [] { return schedule::Time{1}; }};
    const auto made = Stepper::create(std::move(parts), machine.settings);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().message,
              "drafter 0 writes KV while it drafts, but reserve_windows is off");
}

}  // namespace
}  // namespace espalier::engine
