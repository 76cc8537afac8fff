// SPDX-License-Identifier: Apache-2.0
// After a step: what was computed and drawn becomes permanent. The only place where pages are
// published.
#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::schedule {

void Scheduler::advance(std::span<const Outcome> outcomes, Time now) {
    CHECK(stage_ == Stage::planned, "there is no plan to advance; the last was {}", plan_.number);
    CHECK(outcomes.size() == plan_requests_.size(), "{} outcomes for {} planned requests",
          outcomes.size(), plan_requests_.size());
    for (std::size_t i = 0; i < outcomes.size(); ++i)
        apply(jobs_[plan_requests_[i].id.slot], plan_requests_[i], outcomes[i]);
    stage_ = Stage::idle;
    const StepTokens& step = plan_.tokens;
    totals_.tokens.roots += step.roots;
    totals_.tokens.drafts += step.drafts;
    totals_.tokens.prompt_decompressed += step.prompt_decompressed;
    totals_.tokens.prompt_absorbed += step.prompt_absorbed;
    totals_.tokens.recomputed += step.recomputed;
    totals_.tokens.gathered += step.gathered;
    expire(now);
}

void Scheduler::apply(Job& job, const PlannedRequest& planned, const Outcome& outcome) {
    if (std::holds_alternative<Leaving>(job.state)) return end(job, EndReason::cancelled);
    // A failed step's pages hold numbers that were flushed: found by another request, they would
    // hide the failure that computing them again shows.
    if (outcome.end == Outcome::End::failed) return end(job, EndReason::failed);
    const bool finished = outcome.end == Outcome::End::finished;
    check_outcome(job, planned, outcome);
    const auto committed = static_cast<std::int64_t>(outcome.committed.size());
    job.tokens.insert(job.tokens.end(), outcome.committed.begin(), outcome.committed.end());
    totals_.committed += committed;
    if (auto* prompt = std::get_if<Prefilling>(&job.state)) {
        prompt->computed += job.grant.tokens;
        Group& group = group_of(job);
        group.logits_done =
            std::max(group.logits_done, std::min(prompt->computed, group.logits_wanted));
        publish(job, prompt->pages, prompt->computed);
        if (planned.draws() && !finished) start_running(job);
    } else {
        cache::PageTable& pages = std::get<Running>(job.state).pages;
        publish(job, pages, cache::written_length(job.length()));
        pages.truncate(job.length());  // rejected drafts may have reached into one page more
    }
    if (finished) return end(job, EndReason::finished);
    job.grant = {};
}

// The engine's walk knows the rules of the output; here it is held to the plan.
void Scheduler::check_outcome(const Job& job, const PlannedRequest& planned,
                              const Outcome& outcome) const {
    const auto committed = static_cast<std::int64_t>(outcome.committed.size());
    const std::int64_t most = planned.draws() ? planned.drafts + 1 : 0;
    CHECK(committed <= most, "request {}: {} tokens committed where {} could be drawn",
          job.id.serial, committed, most);
    const std::int64_t left = job.max_length - job.length();
    CHECK(committed <= left, "request {}: {} tokens committed, {} were left", job.id.serial,
          committed, left);
    if (outcome.end == Outcome::End::finished) return;
    CHECK(committed > 0 || !planned.draws(), "request {}: no token was drawn and it goes on",
          job.id.serial);
    CHECK(!planned.draws() || committed < left, "request {}: goes on after the last of its tokens",
          job.id.serial);
}

void Scheduler::start_running(Job& job) {
    prefilling_.erase(job.order());
    running_.insert({job.order(), job.id.slot});
    cache::PageTable pages = std::move(std::get<Prefilling>(job.state).pages);
    job.state = Running{std::move(pages)};
}

void Scheduler::publish(const Job& job, cache::PageTable& pages, std::int64_t written) {
    if (cache::publishable_pages(written) > pages.published_pages())
        pages.publish(job.tokens, written);
}

}  // namespace espalier::schedule
