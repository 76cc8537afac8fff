// SPDX-License-Identifier: Apache-2.0
// Chooses what runs in each step. Pure: no clock, no thread, no device; the same calls give the
// same plans. Owns the page pool and, per request, its tokens, state and pages. Called by the
// engine's thread alone:
//
//   submit → [ offer_nodes → next_plan → (the step runs) → advance ] …, cancel at any moment
//
// Grants of a step, in this order: one token to every running request; one quantum (512 tokens or
// the rest) to the first prompt; draft nodes, as many as the engine chooses; what is left of the
// batch to prompts. "First" is by (priority, arrival). So long prompts never stall streams, and
// streams never starve a prompt. docs/scheduler.md has the rules and their reasons.
//
// Progress: the first request in order may preempt all others, and alone it fits (the edge
// refuses what does not), so every step grants it something.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "base/scheduling_rules.hpp"
#include "cache/page_pool.hpp"
#include "schedule/job.hpp"
#include "schedule/order.hpp"
#include "schedule/plan.hpp"
#include "schedule/request.hpp"

namespace espalier::schedule {

// Partial results that attention keeps for one absorbed row: never fewer for more tokens or for
// more slots, whatever the mask. Pure.
using RowSplits = std::function<std::int64_t(std::int64_t q_len, std::int64_t kv_len)>;

// The sizes of the engine, and how its scheduler is to work.
struct SchedulerOptions : EngineSizes, SchedulingRules {
    RowSplits row_splits;  // with max_step_splits; the engine's is mla::row_splits
    std::shared_ptr<cache::PageEvents> page_events;  // hears of the prefix index; null: no one

    // Slots of requests are below this.
    std::int32_t request_slots() const { return max_rows + max_waiting; }
};

static_assert(SchedulingRules{}.prefill_segment == cache::kPageTokens);

class Scheduler {
  public:
    static Expected<std::unique_ptr<Scheduler>> create(const SchedulerOptions& options);
    ~Scheduler();

    // One id per choice. The request has passed the edge: it fits alone, and the queue has room
    // for it (engine/request.hpp and engine/inbox.hpp see to that; here it is CHECKed).
    std::vector<RequestId> submit(Request request);
    // Ends the request, at any moment. Cancelled between next_plan and advance, its row runs on,
    // its outcome is dropped, and it has ended when advance returns. False: it had ended already.
    bool cancel(RequestId id);

    // First half of a plan: ends what is expired, preempts where pages run out, grants roots and
    // one prompt quantum, and says (or reserves) how many drafts may follow. The offers are good
    // until next_plan, which leaves out who is cancelled in between.
    const NodeOffers& offer_nodes(Time now, Windows windows = Windows::reserved);
    // Requests that these offers have preempted: their pages may be others' from here on.
    std::span<const RequestId> preempted() const { return preempted_; }
    // Second half. drafts[i]: how many the engine wants for offers.rows[i], within its limit and
    // within the limit over all. Takes the pages of every window, gives back what was reserved
    // beyond, and the rest to prompts.
    // An empty plan needs no advance.
    const Plan& next_plan(std::span<const std::int32_t> drafts);
    // Both halves, without drafts.
    const Plan& next_plan(Time now);
    // After the step: outcomes[i] is of plan.requests[i]. Commits tokens, publishes pages that are
    // wholly written, gives back what is not needed, ends what is over.
    void advance(std::span<const Outcome> outcomes, Time now);

    // Requests ended since forget_ended(), in order. Their slots are used again only after that, so
    // it is called, once the list is read, before the next submit.
    std::span<const Ended> ended() const { return ended_; }
    void forget_ended();

    // Tokens of a request that has not ended: prompt and committed output; the span is good until
    // the request's next advance.
    std::span<const std::int32_t> tokens(RequestSlot slot) const;
    std::int64_t prompt_tokens(RequestSlot slot) const;
    std::int32_t choice(RequestSlot slot) const;  // 0 … choices − 1
    // Tokens that its first admission found in the prefix index (for usage).
    std::int64_t hit_tokens(RequestSlot slot) const;
    RequestId id(RequestSlot slot) const;

    bool idle() const;                // no request waits or runs
    std::int32_t slot_count() const;  // slots are below this
    const SchedulerOptions& options() const { return options_; }
    Gauges gauges() const;
    const Totals& totals() const { return totals_; }
    // CHECKs the books: every request in one list, pages balanced. O(pages); for tests, shutdown.
    void audit() const;

  private:
    friend class SchedulerInspection;  // tests read requests' states and preemptions

    enum class Stage : std::uint8_t { idle, offered, planned };
    struct Room {
        std::int64_t tokens = 0;
        std::int64_t gather = 0;
        std::int64_t splits = 0;
    };

    struct ChunkForms {
        std::int64_t first, turn, end;  // decompressed below turn, absorbed from there on
    };

    struct Deadline {
        Time time = kNoDeadline;
        RequestId id;
    };
    static bool later(const Deadline& a, const Deadline& b) {
        return a.time != b.time ? a.time > b.time : a.id.serial > b.id.serial;
    }

    explicit Scheduler(const SchedulerOptions& options);

    // Requests and their lists (scheduler.cpp).
    void check_fits(const Request& request) const;
    RequestId enlist(const Request& request, std::int32_t choice, std::int32_t group);
    std::int32_t take_group(const Request& request);
    const Job& live_job(RequestSlot slot) const;
    Group& group_of(const Job& job) { return groups_[static_cast<std::size_t>(job.group)]; }
    void wait(Job& job);          // into the queue
    void stop_waiting(Job& job);  // out of it
    void end(Job& job, EndReason reason);
    void expire(Time now);
    void remember_deadline(const Job& job);
    bool is_live(RequestId id) const;
    cache::PageTable take_table(const cache::SequenceKey& key);
    void recycle(cache::PageTable&& table);

    // Making a plan (scheduler_plan.cpp).
    void begin_plan();
    void grant_roots();
    void grant_quantum();
    void grant_drafts(std::span<const std::int32_t> drafts);
    void grant_rest();
    void list_offers(bool reserve);
    std::int64_t reserve_drafts(Job& job, std::int64_t drafts);
    void build_plan();
    void plan_root(Job& job);
    static ChunkForms forms_of_chunk(const Job& job);
    void plan_chunk(Job& job);
    void plan_row(const Job& job, std::int64_t first, std::int64_t end, cache::Form form);
    bool admit(Job& job, bool may_preempt);
    bool grant_chunk(Job& job, bool may_preempt);
    std::int64_t chunk_limit(const Job& job, std::int64_t first) const;
    std::int64_t gather_of_chunk(const Job& job, std::int64_t first, std::int64_t chunk) const;
    bool reserve(const Job& job, cache::PageTable& pages, std::int64_t slots);
    void grant(Job& job, const Grant& whole);
    std::int64_t splits_of_row(std::int64_t q_len, std::int64_t kv_len) const;
    std::int64_t splits_of_chunk(const Job& job, std::int64_t first, std::int64_t chunk) const;
    std::int64_t within_splits(const Job& job, std::int64_t first, std::int64_t most) const;
    std::int64_t drafts_within_splits(const Job& job, std::int64_t most) const;
    const OrderEntry* next_prompt(const OrderKey& after) const;
    bool waits_for_sibling(const Job& job) const;
    bool leads(const Job& job, const Prefilling& prompt) const;
    std::int64_t look_up(const Job& job, cache::PageTable& pages) const;
    const OrderEntry* youngest() const;
    std::int64_t pages_behind(const OrderKey& key) const;
    void preempt(Job& victim);
    std::int64_t rows() const { return prefilling_.size() + running_.size(); }

    // After the step (scheduler_advance.cpp).
    void apply(Job& job, const PlannedRequest& planned, const Outcome& outcome);
    void check_outcome(const Job& job, const PlannedRequest& planned, const Outcome& outcome) const;
    void start_running(Job& job);
    static void publish(const Job& job, cache::PageTable& pages, std::int64_t written);

    SchedulerOptions options_;
    cache::PagePool pool_;                  // before everything that holds pages
    IndexedVector<RequestSlot, Job> jobs_;  // [slot_count]
    std::vector<RequestSlot> free_slots_;
    std::vector<Group> groups_;  // [slot_count]
    std::vector<std::int32_t> free_groups_;
    std::vector<cache::PageTable> spare_tables_;  // without pages, with memory
    // Every live request is in exactly one, as its state says (a leaving one in none).
    OrderedSlots waiting_, prefilling_, running_;
    std::int64_t waiting_tokens_ = 0;
    std::int64_t next_serial_ = 0;
    std::vector<Deadline> deadlines_;  // a heap, the next one first; some may have ended
    std::vector<Ended> ended_;
    Totals totals_;

    // Stage of the plan that is being made, or runs.
    Stage stage_ = Stage::idle;
    Room left_;
    std::int64_t passed_choices_ = 0;  // wait for a sibling's prompt and keep a row for then
    bool prompts_blocked_ = false;     // one got too little: none behind it gets anything
    std::vector<NodeOffer> offer_rows_;
    std::vector<std::int64_t> offer_serials_;
    std::vector<RequestId> preempted_;
    std::vector<std::int32_t> no_drafts_;
    NodeOffers offers_;
    std::vector<PlannedRow> plan_rows_;
    std::vector<PlannedRequest> plan_requests_;
    Plan plan_;
};

}  // namespace espalier::schedule
