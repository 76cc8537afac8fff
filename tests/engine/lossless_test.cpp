// SPDX-License-Identifier: Apache-2.0
// Lossless, as equality of bits: whatever the batch, the chunks, the trees, the cache, preemption
// and the others' coming and going do, each request's tokens, logprobs, text and end are those of
// the same request run alone, plainly (plain_run.hpp). A request that is cancelled or out of time
// has emitted exactly what it would have up to there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/plain_run.hpp"
#include "engine/recorder.hpp"
#include "engine/stepper.hpp"
#include "engine/workload.hpp"
#include "speculate/ngram.hpp"

namespace espalier::engine {
namespace {

#if defined(ESPALIER_LONG_RUN)
constexpr std::uint64_t kFirstSeed = 1'000'000, kWorkloads = 2000;
#elif defined(ESPALIER_SANITIZED)
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 20;
#else
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 100;
#endif

// What the workloads exercised, so that the test cannot pass by doing nothing.
struct Coverage {
    std::int64_t tokens = 0, accepted = 0, moved = 0, preemptions = 0, hits = 0, interrupted = 0;
    std::int64_t bad_numbers = 0, stop_strings = 0, eos = 0, prompt_logprobs = 0, broken = 0;
};

struct Case {
    const WorkloadRequest* planned = nullptr;
    std::vector<Output> expected;  // by choice
    std::vector<schedule::RequestId> ids;
    std::shared_ptr<Recorder> recorder;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// A logprob that nobody asked for is NaN.
bool same_token(const accept::CommittedToken& a, const accept::CommittedToken& b) {
    return a.token == b.token && a.text_offset == b.text_offset &&
           std::bit_cast<std::uint32_t>(a.logprob) == std::bit_cast<std::uint32_t>(b.logprob);
}

// The first difference in words; empty: none.
std::string difference(const Output& got, const Output& want) {
    for (std::size_t i = 0; i < std::max(got.tokens.size(), want.tokens.size()); ++i) {
        if (i >= got.tokens.size() || i >= want.tokens.size())
            return fmt::format("{} tokens, not {}", got.tokens.size(), want.tokens.size());
        if (same_token(got.tokens[i], want.tokens[i])) continue;
        return fmt::format("token {}: {} with logprob {} at {}, not {} with {} at {}", i,
                           got.tokens[i].token, got.tokens[i].logprob, got.tokens[i].text_offset,
                           want.tokens[i].token, want.tokens[i].logprob,
                           want.tokens[i].text_offset);
    }
    if (!same_bits(got.top, want.top))
        return fmt::format("the alternatives differ ({} and {})", got.top.size(), want.top.size());
    if (got.text != want.text) return fmt::format("text '{}', not '{}'", got.text, want.text);
    if (got.finish != want.finish)
        return fmt::format("ends with reason {} ({}), not {} ({})",
                           static_cast<int>(got.finish.reason), got.finish.which,
                           static_cast<int>(want.finish.reason), want.finish.which);
    return {};
}

// What a request has emitted when it is interrupted after `count` tokens.
Output cut_short(const Output& whole, std::int64_t count, const CheckedRequest& checked,
                 const text::Tokenizer& tokenizer) {
    accept::RequestProgress progress(checked.rules, tokenizer, checked.request.prompt);
    const auto top = static_cast<std::size_t>(checked.rules.options().top_logprobs);
    accept::Emission emission;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) && i < whole.tokens.size(); ++i)
        progress.commit({whole.tokens[i].token, whole.tokens[i].logprob, ops::DrawFlag::fine},
                        std::span(whole.top).subspan(i * top, top), emission);
    Output cut;
    cut.finish = progress.end(accept::FinishReason::interrupted, emission);
    cut.tokens = emission.tokens;
    cut.top = emission.top;
    cut.text = emission.text;
    return cut;
}

class LosslessRun {
  public:
    LosslessRun(const Workload& work, Coverage& coverage)
        : work_(work), coverage_(coverage), target_(tiny_target(work.family)) {
        limits_ = {kTinyVocabulary,
                   work.settings.schedule.max_model_len,
                   work.settings.schedule.page_count,
                   {1}};
    }

    void operator()() {
        std::vector<std::vector<std::int32_t>> texts;
        for (const WorkloadRequest& planned : work_.requests) {
            Case one;
            one.planned = &planned;
            const auto checked = check(planned.request);
            ASSERT_TRUE(checked) << checked.error().message;
            for (std::int32_t choice = 0; choice < planned.request.choices; ++choice) {
                one.expected.push_back(run_plain(target_, *checked, choice));
                texts.push_back(planned.request.prompt);
                for (const auto& token : one.expected.back().tokens)
                    texts.back().push_back(token.token);
            }
            one.recorder = std::make_shared<Recorder>(planned.request.choices);
            cases_.push_back(std::move(one));
        }
        make_stepper(std::move(texts));
        drive();
        for (const Case& one : cases_) compare(one);
        stepper_->scheduler().audit();
        EXPECT_EQ(stepper_->scheduler().gauges().pages.owned, 0);
        coverage_.preemptions += stepper_->scheduler().totals().preemptions;
        coverage_.hits += stepper_->scheduler().totals().hit_tokens;
        for (const std::string& failure : stepper_->speculation().failures())
            coverage_.broken += failure.empty() ? 0 : 1;
    }

  private:
    Expected<CheckedRequest> check(const Request& request) const {
        return check_request(request, limits_, *target_.tokenizer);
    }

    void make_stepper(std::vector<std::vector<std::int32_t>> texts) {
        StepperParts parts{
            **target_.model, *target_.tokenizer, {}, [this] { return now_ += 1000; }};
        if (work_.ngram)
            parts.drafters.push_back(
                std::make_unique<speculate::NgramDrafter>(0, speculate::NgramLimits{}));
        if (work_.random_drafter) {
            const auto id = static_cast<speculate::DrafterId>(parts.drafters.size());
            parts.drafters.push_back(std::make_unique<RandomDrafter>(
                id, work_.seed, work_.drafter, std::move(texts), work_.palette));
        }
        auto made = Stepper::create(std::move(parts), work_.settings);
        ASSERT_TRUE(made) << made.error().message;
        stepper_ = std::move(*made);
    }

    // Until all have come and gone. Every step brings some request on, so the steps are bounded.
    void drive() {
        for (int step = 0; step < 20000; ++step) {
            bool more = false;
            for (Case& one : cases_) {
                const WorkloadRequest& planned = *one.planned;
                more = more || planned.arrival > step;
                if (planned.arrival == step) {
                    auto ids = stepper_->submit(*check(planned.request), one.recorder);
                    ASSERT_TRUE(ids) << ids.error().message;
                    one.ids = *ids;
                }
                if (planned.cancelled == step)
                    stepper_->cancel(one.ids[static_cast<std::size_t>(planned.cancelled_choice)]);
            }
            const StepReport report = stepper_->step();
            coverage_.accepted += report.accepted;
            coverage_.moved += report.moved;
            if (!more && stepper_->idle()) return;
        }
        FAIL() << "requests are left after 20,000 steps";
    }

    void compare(const Case& one) {
        for (std::int32_t choice = 0; choice < one.planned->request.choices; ++choice) {
            const RecordedChoice& got = one.recorder->choice(choice);
            const Output& plain = one.expected[static_cast<std::size_t>(choice)];
            const auto where = fmt::format("workload {}, request {}, choice {}: ", work_.seed,
                                           &one - cases_.data(), choice);
            ASSERT_TRUE(got.ended) << where << "has not ended";
            const bool cut = got.output.finish.reason == accept::FinishReason::interrupted;
            const Output want = cut ? cut_short(plain, got.usage.completion_tokens,
                                                *check(one.planned->request), *target_.tokenizer)
                                    : plain;
            EXPECT_EQ(difference(got.output, want), "") << where;
            EXPECT_LE(got.usage.completion_tokens, std::ssize(plain.tokens)) << where;
            EXPECT_TRUE(cut || got.usage.completion_tokens == std::ssize(plain.tokens)) << where;
            count(got, cut);
        }
        compare_prompt(one);
    }

    void compare_prompt(const Case& one) {
        const Output& plain = one.expected.front();
        const auto& got = one.recorder->prompt_logprobs();
        if (got.empty()) {  // none asked for, or all choices ended before
            for (std::int32_t choice = 0; choice < one.planned->request.choices; ++choice)
                EXPECT_TRUE(plain.prompt_logprobs.empty() ||
                            one.recorder->choice(choice).output.tokens.empty());
            return;
        }
        EXPECT_TRUE(same_bits(got, plain.prompt_logprobs)) << "workload " << work_.seed;
        EXPECT_TRUE(same_bits(one.recorder->prompt_tops(), plain.prompt_tops));
        ++coverage_.prompt_logprobs;
    }

    void count(const RecordedChoice& got, bool cut) {
        const accept::FinishReason reason = got.output.finish.reason;
        coverage_.tokens += got.usage.completion_tokens;
        coverage_.interrupted += cut ? 1 : 0;
        coverage_.bad_numbers += reason == accept::FinishReason::bad_numbers ? 1 : 0;
        coverage_.stop_strings += reason == accept::FinishReason::stop_string ? 1 : 0;
        coverage_.eos += reason == accept::FinishReason::eos ? 1 : 0;
    }

    const Workload& work_;
    Coverage& coverage_;
    TinyTarget& target_;
    RequestLimits limits_;
    std::vector<Case> cases_;
    std::unique_ptr<Stepper> stepper_;
    schedule::Time now_ = 0;
};

TEST(Lossless, EveryRequestEqualsItselfRunAloneAndPlainly) {
    Coverage coverage;
    std::uint64_t first = kFirstSeed, count = kWorkloads;
    if (const char* seed = std::getenv("ESPALIER_WORKLOAD")) {  // to look at one that failed
        first = std::strtoull(seed, nullptr, 10);
        count = 1;
    }
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        LosslessRun(random_workload(seed), coverage)();
        ASSERT_FALSE(HasFailure()) << "workload seed " << seed;
    }
    if (count < kWorkloads) return;
    const auto workloads = static_cast<std::int64_t>(count);
    EXPECT_GT(coverage.tokens, 30 * workloads);
    EXPECT_GT(coverage.accepted, 3 * workloads);
    EXPECT_GT(coverage.moved, workloads);
    EXPECT_GT(coverage.hits, 10 * workloads);
    for (const std::int64_t seen :
         {coverage.preemptions, coverage.interrupted, coverage.bad_numbers, coverage.stop_strings,
          coverage.eos, coverage.prompt_logprobs, coverage.broken})
        EXPECT_GT(seen, 0);
    RecordProperty("tokens", static_cast<int>(coverage.tokens));
    RecordProperty("accepted", static_cast<int>(coverage.accepted));
    RecordProperty("moved", static_cast<int>(coverage.moved));
    RecordProperty("preemptions", static_cast<int>(coverage.preemptions));
    RecordProperty("hit_tokens", static_cast<int>(coverage.hits));
}

}  // namespace
}  // namespace espalier::engine
