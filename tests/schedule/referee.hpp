// SPDX-License-Identifier: Apache-2.0
// Plays the engine against a Scheduler and checks every plan against plain books of its own: what
// each slot of the cache holds, which positions are computed, who may have been passed over.
//
// The cache holds, instead of latents, a number per slot that depends on all that a latent depends
// on: salt, and tokens and forms up to its position. Drafts and failed steps write noise. A history
// that a row reads must hold exactly its own numbers, whoever wrote them. Where windows are
// reserved, drafters write noise into all of them before the plan is made.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "base/random.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::schedule {

// Habits of the engine: chances per request and step.
struct EngineHabits {
    double draft = 0.5;    // it wants drafts
    double finish = 0.02;  // a stop condition, besides max_tokens
    double fail = 0.0;
};

// The pages of a state that has some, or null.
inline const cache::PageTable* pages_of(const State& state) {
    if (const auto* prompt = std::get_if<Prefilling>(&state)) return &prompt->pages;
    if (const auto* running = std::get_if<Running>(&state)) return &running->pages;
    if (const auto* leaving = std::get_if<Leaving>(&state)) return &leaving->pages;
    return nullptr;
}

class Referee {
  public:
    Referee(Scheduler& scheduler, std::uint64_t seed, EngineHabits habits);

    // Empty when the edge would not let it in.
    std::vector<RequestId> submit(const Request& request);
    std::int64_t refused() const { return refused_; }
    void cancel(RequestId id);
    // One whole step; between its parts `meanwhile` may submit and cancel. False: empty plan.
    template <typename Meanwhile>
    bool step(Time now, const Meanwhile& meanwhile) {
        offer(now);
        meanwhile();
        const bool ran = plan();
        meanwhile();
        if (ran) advance(now);
        collect_ended(now);
        return ran;
    }
    bool step(Time now) {
        return step(now, [] {});
    }

    std::int64_t live() const { return static_cast<std::int64_t>(live_.size()); }
    // Tokens of a live or ended request, by serial.
    const std::vector<std::int32_t>& tokens(std::int64_t serial) const {
        return books_.at(serial).tokens;
    }
    EndReason reason(std::int64_t serial) const { return reasons_.at(serial); }
    bool has_ended(std::int64_t serial) const { return reasons_.count(serial) > 0; }
    std::int64_t longest_wait() const { return longest_wait_; }
    double wait_to_bound() const { return wait_to_bound_; }
    const Plan& last_plan() const { return *plan_; }

  private:
    struct Book {
        RequestId id;
        Request request;
        std::int64_t group = 0;  // serial of choice 0
        std::int64_t turn = 0;   // F
        std::vector<std::int32_t> tokens;
        std::vector<std::uint64_t> latents;  // of tokens, by position
        std::int64_t written = 0;            // in this residency
        bool resident = false;
        std::int64_t preemptions = 0;
        bool cancelled = false;
        std::int64_t submitted_step = 0;
        std::int64_t step_bound = 0;
        OrderKey order() const { return {request.priority, id.serial}; }
        std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
    };

    void offer(Time now);
    bool plan();
    void advance(Time now);
    void collect_ended(Time now);
    void push(Book& book, std::int32_t token);
    std::int64_t work_bound(const Book& book) const;

    void note_before();
    void check_offers(const NodeOffers& offers);
    void check_windows_given_back() const;
    void count_page_users();
    void check_budget(const Plan& plan) const;
    void check_preempted() const;
    void check_planned(const PlannedRequest& planned);
    void check_root(const Book& book, const PlannedRow& row, const PlannedRequest& planned);
    void check_chunk(Book& book, const PlannedRequest& planned);
    void check_gather(const Book& book, const PlannedRow& row);
    void check_history(const Book& book, const PlannedRow& row, std::int64_t end) const;
    void check_writable(const Book& book, const PlannedRow& row) const;
    void check_order() const;
    void check_progress(const Plan& plan) const;
    void check_quantum() const;
    void write(const PlannedRow& row, std::int64_t position, std::uint64_t value);
    bool sibling_leads(const Book& book) const;
    std::int64_t splits(std::int64_t q_len, std::int64_t kv_len) const;
    std::int64_t splits_of_chunk(const Book& book, std::int64_t first, std::int64_t end) const;
    std::int64_t splits_left() const {
        return scheduler_.options().max_step_splits - plan_->splits;
    }

    Scheduler& scheduler_;
    std::int64_t refused_ = 0;
    Random random_;
    EngineHabits habits_;
    std::map<std::int64_t, Book> books_;                    // by serial
    std::map<OrderKey, std::int64_t> live_;                 // serials in order
    std::map<std::int64_t, EndReason> expected_, reasons_;  // by serial
    std::map<std::int32_t, std::int64_t> page_users_;       // tables that have the page
    std::int64_t head_ = -1;                            // first in order when the plan was begun
    std::map<std::int64_t, std::int64_t> logits_done_;  // by group
    std::vector<std::uint64_t> stored_;                 // [page_count · 64]
    std::set<std::int64_t> before_;  // serials that were live when the plan was begun
    std::set<std::int64_t> resident_before_, planned_;
    std::vector<std::int32_t> wanted_drafts_;
    std::vector<std::int64_t> offered_;  // serials, as wanted_drafts_
    bool reserved_ = false;              // the step's windows
    std::vector<std::int32_t> drawn_;    // memory of the outcomes' tokens
    std::vector<Outcome> outcomes_;
    const Plan* plan_ = nullptr;
    bool left_meanwhile_ = false;
    std::int64_t preemptions_before_ = 0;  // the plan
    std::int64_t step_ = 0;
    std::int64_t longest_wait_ = 0;
    double wait_to_bound_ = 0;
    std::uint64_t noise_ = 0;
};

}  // namespace espalier::schedule
