// SPDX-License-Identifier: Apache-2.0
// Small words for tests of single rules: options, requests, and a step whose outcome is one token
// per drawing request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.hpp"
#include "schedule/inspection.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::schedule {

inline SchedulerOptions small_options() {
    SchedulerOptions options;
    options.page_count = 101;
    options.max_model_len = 6400;
    options.max_rows = 8;
    options.max_step_tokens = 1024;
    options.max_step_gather = 1024;
    options.max_waiting = 16;
    return options;
}

// Tokens are first, first + 1, …: prompts with different firsts share nothing.
inline Request prompt_of(std::int64_t tokens, std::int64_t max_tokens = 100,
                         std::int32_t first = 0) {
    Request request;
    for (std::int64_t i = 0; i < tokens; ++i)
        request.prompt.push_back(first + static_cast<std::int32_t>(i));
    request.max_tokens = max_tokens;
    return request;
}

inline const PlannedRequest* planned_of(const Plan& plan, RequestId id) {
    for (const PlannedRequest& planned : plan.requests)
        if (planned.id == id) return &planned;
    return nullptr;
}

// Tokens planned for the request; 0: none.
inline std::int64_t tokens_for(const Plan& plan, RequestId id) {
    std::int64_t tokens = 0;
    for (const PlannedRow& row : plan.rows) tokens += row.slot == id.slot ? row.q_len : 0;
    return tokens;
}

// Every drawing request commits as many tokens as it has nodes (all drafts accepted), or one, and
// ends when it has had its max_tokens.
class Stepper {
  public:
    explicit Stepper(Scheduler& scheduler) : scheduler_(scheduler) {}

    const Plan& plan(std::int32_t drafts_each = 0) {
        CHECK(++plans_ < 20'000, "the requests do not come to an end");
        const NodeOffers& offers = scheduler_.offer_nodes(now);
        drafts_.clear();
        std::int64_t left = offers.max_drafts;
        for (const NodeOffer& offer : offers.rows) {
            const auto drafts = static_cast<std::int32_t>(
                std::min<std::int64_t>({drafts_each, offer.max_drafts, left}));
            drafts_.push_back(drafts);
            left -= drafts;
        }
        last_ = &scheduler_.next_plan(drafts_);
        return *last_;
    }

    void advance() {
        if (last_->empty()) return;
        outcomes_.assign(last_->requests.size(), {});
        for (std::size_t i = 0; i < outcomes_.size(); ++i) {
            const PlannedRequest& planned = last_->requests[i];
            if (!planned.draws()) continue;
            const auto count = static_cast<std::size_t>(accept_drafts ? 1 + planned.drafts : 1);
            outcomes_[i].committed = std::span<const std::int32_t>(drawn_).first(count);
            const auto committed = static_cast<std::int64_t>(count);
            if (!std::holds_alternative<Leaving>(state_of(scheduler_, planned.id.slot)) &&
                SchedulerInspection::tokens_left(scheduler_, planned.id.slot) == committed)
                outcomes_[i].end = Outcome::End::finished;
        }
        scheduler_.advance(outcomes_, now);
    }

    const Plan& step(std::int32_t drafts_each = 0) {
        plan(drafts_each);
        advance();
        return *last_;
    }

    // Until nobody is left; how many prompt tokens were computed.
    std::int64_t run_all(std::int32_t drafts_each = 0) {
        const std::int64_t before = prompt_total();
        while (!scheduler_.idle()) {
            step(drafts_each);
            scheduler_.forget_ended();
        }
        return prompt_total() - before;
    }

    std::int64_t prompt_total() const {
        const StepTokens& tokens = scheduler_.totals().tokens;
        return tokens.prompt_absorbed + tokens.prompt_decompressed;
    }

    Time now = 0;
    bool accept_drafts = true;

  private:
    Scheduler& scheduler_;
    const Plan* last_ = nullptr;
    std::int64_t plans_ = 0;
    std::vector<std::int32_t> drafts_;
    std::vector<std::int32_t> drawn_ = std::vector<std::int32_t>(64, 7);
    std::vector<Outcome> outcomes_;
};

}  // namespace espalier::schedule
