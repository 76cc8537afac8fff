// SPDX-License-Identifier: Apache-2.0
// The lossless test with all drafters on: random schedules, mixed batches, chunks, prefix hits,
// preemption, cancellation and several choices, drafted for by MTP, EAGLE3, n-grams and a drafter
// whose right branches are never the first. Each request equals itself run alone and plainly. Also
// on a model of GLM-4.7-Flash's kind, on one of Mistral Small 4's and on one of INT4 weights. With
// ESPALIER_GPU_RUN the models and their drafters run on a GPU, which has neither of the last two.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "base/random.hpp"
#include "draft/tiny_drafts.hpp"
#include "lossless/check.hpp"

namespace espalier::draft {
namespace {

#if defined(ESPALIER_LONG_RUN)
constexpr std::uint64_t kFirstSeed = 2'000'000, kWorkloads = 2000, kOtherWorkloads = 300;
#else
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 25, kOtherWorkloads = 6;
#endif

#if defined(ESPALIER_GPU_RUN)
model::Machine machine() { return model::gpu_machine(); }
#else
model::Machine machine() { return model::cpu_machine(1, best_cpu_variant()); }
#endif

// Recorded passes with poisoned pads: all on a GPU, every other workload on the CPU.
batch::CaptureOptions capture_for(std::uint64_t seed) {
#if defined(ESPALIER_GPU_RUN)
    const bool capture = seed > 0;
#else
    const bool capture = seed % 2 == 1;
#endif
    return {.capture = capture,
            .ahead = static_cast<std::int64_t>(seed % 4),
            .most_tokens = 2048,
            .sightings = 1,
            .poison = capture};
}

TinyDrafts& tiny_drafts() {
    static TinyDrafts tiny = make_tiny_drafts(machine());
    return tiny;
}

TinyDrafts& tiny_glm() {
    static TinyDrafts tiny = make_tiny_drafts(machine(), tiny_preset("tiny-glm"));
    return tiny;
}

// A draft model that is not kept up to date in random stretches of steps.
class Forgetful final : public speculate::Drafter {
  public:
    Forgetful(std::unique_ptr<speculate::Drafter> inner, std::uint64_t seed)
        : inner_(std::move(inner)), random_(seed) {}
    std::string_view name() const override { return inner_->name(); }
    speculate::DrafterNeeds needs() const override { return inner_->needs(); }
    void begin(RequestSlot request, std::span<const TokenId> prompt,
               std::int64_t max_tokens) override {
        inner_->begin(request, prompt, max_tokens);
    }
    void end(RequestSlot request) override { inner_->end(request); }
    void preempted(RequestSlot request) override { inner_->preempted(request); }
    Expected<void> extend(std::span<const speculate::Extension> extensions) override {
        if (--left_ <= 0) {
            looks_on_ = !looks_on_;
            left_ = random_.between(1, looks_on_ ? 24 : 6);
            if (!looks_on_) inner_->forget();
        }
        return looks_on_ ? inner_->extend(extensions) : Expected<void>();
    }
    bool follows(RequestSlot request, std::int64_t root_position) const override {
        return looks_on_ && inner_->follows(request, root_position);
    }
    void commit(std::span<const speculate::Commitment> commitments) override {
        inner_->commit(commitments);
    }
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override {
        return inner_->propose(calls);
    }

  private:
    std::unique_ptr<speculate::Drafter> inner_;
    Random random_;
    bool looks_on_ = true;
    std::int32_t left_ = 8;  // steps of the stretch
};

Expected<lossless::Subject::Parts> make_parts(const TinyDrafts& tiny,
                                              const schedule::SchedulerOptions& options,
                                              const batch::CaptureOptions& capture) {
    lossless::Subject::Parts parts;
    ESPALIER_ASSIGN_OR_RETURN(model::TapMemory memory,
                              tiny.set().make_taps(options.max_step_tokens));
    const auto taps = std::make_shared<model::TapMemory>(std::move(memory));
    parts.taps = taps->taps();
    parts.memory = taps;
    ESPALIER_ASSIGN_OR_RETURN(
        auto target,
        engine::ModelTarget::create(*tiny.model, tiny.set().layout(), options.page_count, capture));
    ESPALIER_ASSIGN_OR_RETURN(auto models,
                              tiny.set().make({*tiny.machine.device, *tiny.machine.backend,
                                               *tiny.machine.kernels, capture},
                                              {.tokens = options.max_step_tokens,
                                               .nodes = options.max_step_gather,
                                               .rows = options.max_rows,
                                               .max_kv_len = options.max_model_len},
                                              target->storage(), parts.taps));
    for (auto& drafter : models) parts.drafters.push_back(std::move(drafter));
    parts.target = std::move(target);
    return parts;
}

lossless::Subject subject(const TinyDrafts& tiny, std::uint64_t seed) {
    lossless::Subject subject{*tiny.model, *tiny.tokenizer};
    subject.capture = capture_for(seed);
    subject.compiler = tiny.compiler.get();
    subject.make_parts = [&tiny, seed](const schedule::SchedulerOptions& options) {
        return make_parts(tiny, options, capture_for(seed));
    };
    return subject;
}

// The same with models that miss some of the texts.
lossless::Subject forgetful_subject(const TinyDrafts& tiny, std::uint64_t seed) {
    lossless::Subject made = subject(tiny, seed);
    made.make_parts =
        [&tiny,
         seed](const schedule::SchedulerOptions& options) -> Expected<lossless::Subject::Parts> {
        ESPALIER_ASSIGN_OR_RETURN(auto parts, make_parts(tiny, options, capture_for(seed)));
        for (auto& drafter : parts.drafters)
            drafter = std::make_unique<Forgetful>(std::move(drafter), seed);
        return parts;
    };
    return made;
}

using Generator = lossless::Workload (*)(std::uint64_t, const lossless::Subject&);
using SubjectMaker = lossless::Subject (*)(const TinyDrafts&, std::uint64_t);

void expect_lossless(const TinyDrafts& tiny, Generator generator, lossless::Coverage& coverage,
                     std::uint64_t workloads = kWorkloads, SubjectMaker make = &subject) {
    ASSERT_TRUE(lossless::check_subject(subject(tiny, 0)));
    for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + workloads; ++seed) {
        const lossless::Subject target = make(tiny, seed);
        const auto verdict = lossless::check_workload(generator(seed, target), target);
        ASSERT_TRUE(verdict) << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
        coverage.add(verdict->coverage);
    }
}

TEST(DraftWorkloads, EveryRequestEqualsItselfRunAloneAndPlainly) {
    lossless::Coverage coverage;
    expect_lossless(tiny_drafts(), &lossless::random_workload, coverage);
    if (HasFatalFailure()) return;
    for (const std::int64_t seen : {coverage.accepted, coverage.accepted_beside, coverage.moved,
                                    coverage.hits, coverage.preemptions, coverage.interrupted})
        EXPECT_GT(seen, 0);
    RecordProperty("accepted", static_cast<int>(coverage.accepted));
}

TEST(DraftWorkloads, WithDraftModelsThatMissSomeOfTheTextsToo) {
    lossless::Coverage coverage;
    expect_lossless(tiny_drafts(), &lossless::random_workload, coverage, kWorkloads,
                    &forgetful_subject);
    if (HasFatalFailure()) return;
    for (const std::int64_t seen : {coverage.accepted, coverage.accepted_beside, coverage.hits})
        EXPECT_GT(seen, 0);
}

TEST(DraftWorkloads, OnAModelOfGlmsKindToo) {
    lossless::Coverage coverage;
    expect_lossless(tiny_glm(), &lossless::random_workload, coverage, kOtherWorkloads);
    if (HasFatalFailure()) return;
    EXPECT_GT(coverage.accepted, 0);
    EXPECT_GT(coverage.moved, 0);
}

#if !defined(ESPALIER_GPU_RUN)
// Latents of 256 columns, queries that grow from position 64 on, experts from the first layer on.
// No published model of the kind has an MTP layer; this one does.
TinyDrafts& tiny_mistral() {
    static TinyDrafts tiny = [] {
        checkpoint::SyntheticModel preset = tiny_preset("tiny-mistral4");
        preset.config.num_nextn_predict_layers = 1;
        return make_tiny_drafts(machine(), preset);
    }();
    return tiny;
}

TEST(DraftWorkloads, OnAModelOfMistralsKindToo) {
    lossless::Coverage coverage;
    expect_lossless(tiny_mistral(), &lossless::random_workload, coverage, kOtherWorkloads);
    if (HasFatalFailure()) return;
    for (const std::int64_t seen : {coverage.accepted, coverage.moved, coverage.hits})
        EXPECT_GT(seen, 0);
}

// Models that attend to 32 keys, of up to 160: with all drafters, of which MTP has an indexer of
// its own, chunks, prefix hits and preemption across the border. GLM-5's second layer shares a
// choice.
TEST(DraftWorkloads, OnSparseAttentionToo) {
    for (const char* name : {"tiny-v32", "tiny-glm5"}) {
        SCOPED_TRACE(name);
        const TinyDrafts tiny = make_tiny_drafts(machine(), tiny_preset(name));
        ASSERT_EQ(tiny.model->config().indexer->top_k, 32);
        lossless::Coverage coverage;
        expect_lossless(tiny, &lossless::random_workload, coverage, kOtherWorkloads);
        if (HasFatalFailure()) return;
        for (const std::int64_t seen : {coverage.accepted, coverage.moved, coverage.hits})
            EXPECT_GT(seen, 0);
    }
}

#if defined(ESPALIER_LONG_RUN)
// Prompts of hundreds of tokens, decompressed up to a page border below 200 keys; next turns.
TEST(DraftWorkloads, OnLongPromptsOfSparseAttentionToo) {
    checkpoint::SyntheticModel preset = tiny_preset("tiny-v32");
    preset.config.indexer->top_k = 200;
    const TinyDrafts tiny = make_tiny_drafts(machine(), preset);
    lossless::Coverage coverage;
    expect_lossless(tiny, &lossless::long_workload, coverage, kOtherWorkloads / 4);
    if (HasFatalFailure()) return;
    for (const std::int64_t seen : {coverage.accepted, coverage.moved, coverage.hits})
        EXPECT_GT(seen, 0);
}
#endif

TEST(DraftWorkloads, OnInt4WeightsToo) {
    checkpoint::SyntheticModel preset = tiny_preset("tiny-v3");
    preset.config.quantization = {checkpoint::QuantizedLayout::packed_integers, 4, 32};
    const TinyDrafts tiny = make_tiny_drafts(machine(), preset);
    lossless::Coverage coverage;
    expect_lossless(tiny, &lossless::random_workload, coverage, kOtherWorkloads);
    if (HasFatalFailure()) return;
    EXPECT_GT(coverage.accepted, 0);
    EXPECT_GT(coverage.moved, 0);
}
#endif

#if defined(ESPALIER_WITH_GRAMMAR)
// Draft models choose under the root's mask, EAGLE3 in a vocabulary of its own; what they find
// below is pruned.
TEST(DraftWorkloads, WithGrammarsToo) {
    lossless::Coverage coverage;
    expect_lossless(tiny_drafts(), &lossless::grammar_workload, coverage);
    if (HasFatalFailure()) return;
    for (const std::int64_t seen :
         {coverage.accepted, coverage.accepted_beside, coverage.moved, coverage.grammars,
          coverage.held, coverage.forced, coverage.markers_in_trees})
        EXPECT_GT(seen, 0);
    RecordProperty("held", static_cast<int>(coverage.held));
    RecordProperty("accepted", static_cast<int>(coverage.accepted));
}
#endif

// The turns of a chat, one after the other: what each finds in the cache.
std::vector<std::int64_t> hits_of(engine::Harness& harness) {
    std::vector<std::int64_t> hits;
    engine::Request turn = engine::plain_request(70, 60, 21);
    for (int i = 0; i < 5; ++i) {
        const auto recorder = harness.submit(turn);
        harness.run();
        hits.push_back(recorder->choice(0).cached_tokens);
        turn.prompt = engine::whole_text(turn, recorder->choice(0).output);
        turn.output.max_tokens = 30 + 7 * i;
    }
    return hits;
}

TEST(DraftWorkloads, PrefixHitsAreNotOneTokenFewer) {
    engine::StepperSettings settings = engine::roomy_settings();
    settings.schedule.page_count = 1 + 16;
    engine::Harness plain(
        must(engine::ModelTarget::create(*tiny_drafts().model, settings.schedule.page_count)),
        *tiny_drafts().tokenizer, settings);
    DraftingEngine drafting(tiny_drafts(), settings);
    const std::vector<std::int64_t> without = hits_of(plain);
    EXPECT_EQ(hits_of(*drafting.harness), without);
    EXPECT_GT(without.back(), 0);
}

}  // namespace
}  // namespace espalier::draft
