// SPDX-License-Identifier: Apache-2.0
#include "lossless/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "engine/grammar_drafter.hpp"
#include "engine/model_target.hpp"
#include "lossless/recorder.hpp"
#include "speculate/ngram.hpp"

namespace espalier::lossless {
namespace {

using accept::FinishReason;

struct Case {
    WorkloadRequest planned;
    std::vector<Output> expected;  // by choice
    std::vector<schedule::RequestId> ids;
    std::shared_ptr<Recorder> recorder;
};

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// A logprob that the request did not ask for is NaN.
bool same_token(const accept::CommittedToken& a, const accept::CommittedToken& b) {
    return a.token == b.token && a.text_offset == b.text_offset &&
           std::bit_cast<std::uint32_t>(a.logprob) == std::bit_cast<std::uint32_t>(b.logprob);
}

// Output that a request has emitted when it is interrupted after `count` tokens.
Output cut_short(const Output& whole, std::int64_t count, const engine::CheckedRequest& checked,
                 const text::Tokenizer& tokenizer) {
    accept::RequestProgress progress(checked.rules, tokenizer, checked.request.prompt);
    const auto top = static_cast<std::size_t>(checked.rules.options().top_logprobs);
    Output cut;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count) && i < whole.tokens.size(); ++i)
        progress.commit({whole.tokens[i].token, whole.tokens[i].logprob, ops::DrawFlag::fine},
                        std::span(whole.top).subspan(i * top, top), cut);
    cut.finish = progress.end(FinishReason::interrupted, cut);
    return cut;
}

class Check {
  public:
    Check(const Workload& work, const Subject& subject)
        : work_(work),
          subject_(subject),
          limits_{.vocabulary = subject.vocabulary(),
                  .sizes = work.settings.schedule,
                  .eos_token_ids = subject.model.config().eos_token_ids} {}

    Expected<Verdict> operator()() {
        ESPALIER_RETURN_IF_ERROR(run_alone());
        ESPALIER_RETURN_IF_ERROR(make_stepper());
        ESPALIER_RETURN_IF_ERROR(drive());
        for (const Case& one : cases_) ESPALIER_RETURN_IF_ERROR(compare(one));
        const schedule::Scheduler& scheduler = stepper_->scheduler();
        scheduler.audit();
        if (const auto owned = scheduler.gauges().pages.owned; owned != 0)
            verdict_.differences.push_back(fmt::format("{} pages are owned at the end", owned));
        Coverage& seen = verdict_.coverage;
        seen.preemptions = scheduler.totals().preemptions;
        seen.hits = scheduler.totals().hit_tokens;
        for (const std::string& failure : stepper_->speculation().failures())
            seen.broken += failure.empty() ? 0 : 1;
        return std::move(verdict_);
    }

  private:
    Expected<engine::CheckedRequest> check(const engine::Request& request) const {
        return engine::check_request(request, limits_, subject_.tokenizer);
    }

    Expected<void> run_alone() {
        PlainRunner runner(subject_);
        const bool absorbed = work_.settings.schedule.prefill_segment == 0;
        for (const WorkloadRequest& planned : work_.requests) {
            Case one;
            one.planned = planned;
            if (planned.continues >= 0)
                follow(cases_[static_cast<std::size_t>(planned.continues)], one.planned.request);
            ESPALIER_ASSIGN_OR_RETURN(const auto checked, check(one.planned.request));
            for (std::int32_t choice = 0; choice < planned.request.choices; ++choice) {
                ESPALIER_ASSIGN_OR_RETURN(Output plain, runner.run(checked, choice, absorbed));
                texts_.push_back(one.planned.request.prompt);
                for (const auto& token : plain.tokens) texts_.back().push_back(token.token);
                one.expected.push_back(std::move(plain));
            }
            one.recorder = std::make_shared<Recorder>(planned.request.choices);
            cases_.push_back(std::move(one));
        }
        return {};
    }

    // The turn after `earlier`, as far as there is room.
    void follow(const Case& earlier, engine::Request& request) const {
        std::vector<std::int32_t> chat = earlier.planned.request.prompt;
        for (const auto& token : earlier.expected.front().tokens) chat.push_back(token.token);
        chat.insert(chat.end(), request.prompt.begin(), request.prompt.end());
        const std::int64_t room =
            (limits_.sizes.page_count - 1) * cache::kPageTokens - request.output.max_tokens;
        chat.resize(std::min(chat.size(), static_cast<std::size_t>(room)));
        request.prompt = std::move(chat);
    }

    Expected<void> make_stepper() {
        Subject::Parts made;
        if (work_.own_drafters) {
            ESPALIER_ASSIGN_OR_RETURN(made, subject_.make_parts(work_.settings.schedule));
        } else if (subject_.make_target) {
            ESPALIER_ASSIGN_OR_RETURN(made.target, subject_.make_target(work_.settings.schedule));
        } else {
            ESPALIER_ASSIGN_OR_RETURN(
                made.target, engine::ModelTarget::create(subject_.model, limits_.sizes.page_count,
                                                         subject_.capture));
        }
        memory_ = std::move(made.memory);
        engine::StepperParts parts{std::move(made.target), subject_.tokenizer,
                                   std::move(made.drafters), [this] { return now_ += 1000; }};
        parts.taps = made.taps;
        if (work_.ngram)
            parts.drafters.push_back(
                std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
        const auto add_random = [&](std::uint64_t seed, const RandomDrafterOptions& options) {
            parts.drafters.push_back(
                std::make_unique<RandomDrafter>(seed, options, texts_, work_.palette, &now_));
        };
        if (work_.grammar_drafter) {
            forced_id_ = parts.drafters.size();
            parts.drafters.push_back(std::make_unique<engine::GrammarDrafter>(subject_.tokenizer));
        }
        if (work_.random_drafter) add_random(work_.seed, work_.drafter);
        for (std::size_t i = 0; i < work_.more_drafters.size(); ++i)
            add_random(work_.seed + 1 + i, work_.more_drafters[i]);
        engine::StepperSettings settings = work_.settings;
        if (const auto& indexer = subject_.model.config().indexer)
            settings.schedule.decompressed_keys = indexer->top_k;
        ESPALIER_ASSIGN_OR_RETURN(stepper_, engine::Stepper::create(std::move(parts), settings));
        return {};
    }

    // Until all have come and gone. Every step brings some request on, so the steps are bounded.
    Expected<void> drive() {
        for (int step = 0; step < 20000; ++step) {
            bool more = false;
            for (Case& one : cases_) {
                const WorkloadRequest& planned = one.planned;
                more = more || planned.arrival > step;
                if (planned.arrival == step) {
                    ESPALIER_ASSIGN_OR_RETURN(auto checked, check(planned.request));
                    one.ids = stepper_->submit(std::move(checked), one.recorder);
                }
                if (planned.cancelled == step)
                    stepper_->cancel(one.ids[static_cast<std::size_t>(planned.cancelled_choice)]);
            }
            count(stepper_->step());
            if (!more && stepper_->idle()) return {};
        }
        return fail(ErrorKind::exhausted, "workload {}: requests are left after 20,000 steps",
                    work_.seed);
    }

    Expected<void> compare(const Case& one) {
        ESPALIER_ASSIGN_OR_RETURN(const auto checked, check(one.planned.request));
        for (std::int32_t choice = 0; choice < one.planned.request.choices; ++choice) {
            const RecordedChoice& got = one.recorder->choice(choice);
            const Output& plain = one.expected[static_cast<std::size_t>(choice)];
            if (!got.ended) {
                differs(one, choice, "it has not ended");
                continue;
            }
            if (got.ended == engine::Interruption::step_failed)
                differs(one, choice, "a step of it failed");
            const bool cut = got.output.finish.reason == FinishReason::interrupted;
            const std::int64_t committed = got.usage.completion_tokens;
            const auto whole = static_cast<std::int64_t>(plain.tokens.size());
            const Output want =
                cut ? cut_short(plain, committed, checked, subject_.tokenizer) : plain;
            if (const std::string found = difference(got.output, want); !found.empty())
                differs(one, choice, found);
            if (committed > whole || (!cut && committed != whole))
                differs(one, choice, fmt::format("{} tokens committed, not {}", committed, whole));
            if (const std::string found = origins_difference(got); !found.empty())
                differs(one, choice, found);
            if (got.usage.reasoning_tokens != reasoning_tokens(plain, got.usage.completion_tokens))
                differs(one, choice,
                        fmt::format("{} reasoning tokens, not {}", got.usage.reasoning_tokens,
                                    reasoning_tokens(plain, committed)));
            count(got, cut);
            if (one.planned.request.is_constrained()) count_held(one.planned.request, got);
        }
        compare_prompt(one);
        return {};
    }

    // Count over the first `committed` tokens of a run alone.
    static std::int64_t reasoning_tokens(const Output& plain, std::int64_t committed) {
        return std::min(plain.reasoning_tokens, committed);
    }

    void count_held(const engine::Request& request, const RecordedChoice& got) {
        Coverage& seen = verdict_.coverage;
        std::string text;
        bool reasoning = request.reasoning && request.reasoning->open;
        for (const accept::CommittedToken& token : got.output.tokens) {
            const bool ends =
                reasoning && std::ranges::count(request.reasoning->end_token_ids, token.token) > 0;
            seen.markers_in_trees += ends && token.origin.drafted() ? 1 : 0;
            if (!reasoning) text += subject_.tokenizer.token_bytes(token.token);
            reasoning = reasoning && !ends;
        }
        if (!request.grammar) return;
        ++seen.grammars;
        if (got.output.finish.reason != FinishReason::eos) return;
        ++seen.held;
        text.resize(text.size() -
                    subject_.tokenizer.token_bytes(got.output.tokens.back().token).size());
        verdict_.held.push_back({request.grammar->specification(), std::move(text)});
    }

    // Every draft is counted to one drafter, and every accepted one is a token that says so. (The
    // token that ends an output may have been drafted too; nothing was gained by that.)
    static std::string origins_difference(const RecordedChoice& got) {
        std::int64_t drafted = 0, accepted = 0, tokens = 0;
        for (std::size_t d = 0; d < got.usage.drafted_from.size(); ++d) {
            drafted += got.usage.drafted_from[d];
            accepted += got.usage.accepted_from[d];
        }
        for (const accept::CommittedToken& token : got.output.tokens)
            tokens += token.origin.drafted() ? 1 : 0;
        if (drafted == got.usage.drafted && accepted == got.usage.accepted && tokens >= accepted &&
            tokens <= accepted + 1)
            return {};
        return fmt::format("{} of {} drafts accepted, but {} of {} counted to drafters, {} tokens",
                           got.usage.accepted, got.usage.drafted, accepted, drafted, tokens);
    }

    void compare_prompt(const Case& one) {
        const Output& plain = one.expected.front();
        const auto& got = one.recorder->prompt_logprobs();
        if (got.empty()) {  // none asked for, or all choices ended before
            for (std::int32_t choice = 0; choice < one.planned.request.choices; ++choice)
                if (!plain.prompt_logprobs.empty() &&
                    !one.recorder->choice(choice).output.tokens.empty())
                    differs(one, choice, "the prompt's logprobs are missing");
            return;
        }
        if (!same_bits(got, plain.prompt_logprobs) ||
            !same_bits(one.recorder->prompt_tops(), plain.prompt_tops))
            differs(one, 0, "the prompt's logprobs differ");
        ++verdict_.coverage.prompt_logprobs;
    }

    void differs(const Case& one, std::int32_t choice, const std::string& how) {
        verdict_.differences.push_back(fmt::format("workload {}, request {}, choice {}: {}",
                                                   work_.seed, &one - cases_.data(), choice, how));
    }

    void count(const engine::StepReport& report) {
        Coverage& seen = verdict_.coverage;
        seen.steps += report.ran ? 1 : 0;
        seen.drafts += report.tokens.drafts;
        seen.accepted += report.accepted;
        for (std::size_t d = 0; d < report.accepted_from.size(); ++d)
            seen.accepted_beside += d > 0 ? report.accepted_from[d] : 0;
        seen.moved += report.moved;
        if (work_.grammar_drafter) seen.forced += report.accepted_from[forced_id_];
    }

    void count(const RecordedChoice& got, bool cut) {
        Coverage& seen = verdict_.coverage;
        const FinishReason reason = got.output.finish.reason;
        ++seen.requests;
        seen.prompt_tokens += got.usage.prompt_tokens;
        seen.tokens += got.usage.completion_tokens;
        seen.interrupted += cut ? 1 : 0;
        seen.bad_numbers += reason == FinishReason::bad_numbers ? 1 : 0;
        seen.stop_strings += reason == FinishReason::stop_string ? 1 : 0;
        seen.eos += reason == FinishReason::eos ? 1 : 0;
    }

    const Workload& work_;
    Subject subject_;
    engine::RequestLimits limits_;
    std::vector<Case> cases_;
    std::vector<std::vector<std::int32_t>> texts_;  // prompts with their plain outputs
    std::shared_ptr<void> memory_;                  // of what the stepper is made of
    std::unique_ptr<engine::Stepper> stepper_;
    schedule::Time now_ = 0;
    std::size_t forced_id_ = 0;  // of the drafter of what grammars force
    Verdict verdict_;
};

}  // namespace

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

void Coverage::add(const Coverage& other) {
    requests += other.requests;
    steps += other.steps;
    prompt_tokens += other.prompt_tokens;
    tokens += other.tokens;
    drafts += other.drafts;
    accepted += other.accepted;
    accepted_beside += other.accepted_beside;
    moved += other.moved;
    preemptions += other.preemptions;
    hits += other.hits;
    interrupted += other.interrupted;
    bad_numbers += other.bad_numbers;
    stop_strings += other.stop_strings;
    eos += other.eos;
    prompt_logprobs += other.prompt_logprobs;
    broken += other.broken;
    grammars += other.grammars;
    held += other.held;
    markers_in_trees += other.markers_in_trees;
    forced += other.forced;
}

Expected<Verdict> check_workload(const Workload& work, const Subject& subject) {
    return Check(work, subject)();
}

}  // namespace espalier::lossless
