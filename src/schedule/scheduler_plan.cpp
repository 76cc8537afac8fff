// SPDX-License-Identifier: Apache-2.0
// A step's plan in the order of its grants: roots, one prompt quantum, drafts, the rest to prompts;
// and who is preempted when pages run out. How prompts are admitted and cut into chunks is
// scheduler_prompts.cpp's.
#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::schedule {

const NodeOffers& Scheduler::offer_nodes(Time now, Windows windows) {
    CHECK(stage_ == Stage::idle, "plan {} is not finished", plan_.number);
    expire(now);
    begin_plan();
    grant_roots();
    grant_quantum();
    list_offers(options_.reserve_windows && windows == Windows::reserved);
    stage_ = Stage::offered;
    return offers_;
}

const Plan& Scheduler::next_plan(std::span<const std::int32_t> drafts) {
    CHECK(stage_ == Stage::offered, "plan {} has no offers: offer_nodes comes first",
          plan_.number + 1);
    grant_drafts(drafts);
    grant_rest();
    build_plan();
    stage_ = plan_.empty() ? Stage::idle : Stage::planned;
    return plan_;
}

const Plan& Scheduler::next_plan(Time now) {
    const std::size_t rows = offer_nodes(now, Windows::counted).rows.size();
    no_drafts_.assign(rows, 0);
    return next_plan(no_drafts_);
}

void Scheduler::begin_plan() {
    ++plan_.number;
    left_ = {.tokens = options_.max_step_tokens,
             .gather = options_.max_step_gather,
             .splits = options_.max_step_splits};
    prompts_blocked_ = false;
    preempted_.clear();
    for (const OrderEntry& entry : running_) jobs_[entry.slot].grant = {};
    for (const OrderEntry& entry : prefilling_) {
        Job& job = jobs_[entry.slot];
        job.grant = {};
        if (leads(job, std::get<Prefilling>(job.state))) group_of(job).leading_plan = plan_.number;
    }
}

// In place of what it has been granted so far.
void Scheduler::grant(Job& job, const Grant& whole) {
    left_.tokens += job.grant.tokens - whole.tokens;
    left_.gather += job.grant.gather - whole.gather;
    left_.splits += job.grant.splits - whole.splits;
    job.grant = whole;
}

// Unbounded splits count as none.
std::int64_t Scheduler::splits_of_row(std::int64_t q_len, std::int64_t kv_len) const {
    return options_.max_step_splits == 0 || q_len == 0 ? 0 : options_.row_splits(q_len, kv_len);
}

// ---- first half ---------------------------------------------------------------------------------

// Preemption takes from the end of the list, so no request loses a token granted here to another
// root. Half of the splits is kept for the first prompt: either half does for a token at
// max_model_len, so neither prompts nor streams starve.
void Scheduler::grant_roots() {
    const bool prompts = prefilling_.size() + waiting_.size() > 0;
    const std::int64_t kept_splits = prompts ? options_.max_step_splits / 2 : 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(running_.size()); ++i) {
        Job& job = jobs_[running_[i].slot];
        const Grant root{.tokens = 1, .gather = 1, .splits = splits_of_row(1, job.length())};
        if (root.splits > left_.splits - kept_splits) {
            ++totals_.stalled_rows;
            prompts_blocked_ = true;  // there is enough to do: only the first prompt goes on
            continue;
        }
        if (!reserve(job, std::get<Running>(job.state).pages, job.length())) {
            // It is the last in order and keeps its pages: they are worth more than a page that
            // would come free, and a request before it can still take them. No page is
            // available, so no prompt behind it gets one either.
            ++totals_.stalled_rows;
            continue;
        }
        grant(job, root);
    }
}

void Scheduler::list_offers(bool reserve) {
    offer_rows_.clear();
    offer_serials_.clear();
    offers_.granted_keys = {};
    const std::int64_t spare_slots = pool_.counts().available() * cache::kPageTokens;
    for (const OrderEntry& entry : running_) {
        Job& job = jobs_[entry.slot];
        if (job.grant.tokens == 0) continue;
        // Nodes, with the root: at most the tokens left and max_model_len − 1 − root. Every node
        // can yield one token, and no slot lies beyond what submit found room for.
        const std::int64_t root = job.length() - 1;
        const std::int64_t nodes =
            std::min(job.max_length - job.length(), options_.max_model_len - 1 - root);
        cache::PageTable& pages = std::get<Running>(job.state).pages;
        std::int64_t drafts = drafts_within_splits(
            job, std::min({nodes - 1, std::int64_t{job.max_drafts}, left_.tokens, left_.gather}));
        if (reserve)
            drafts = reserve_drafts(job, drafts);
        else
            drafts = std::min(drafts, pages.slots() - job.length() + spare_slots);
        offer_rows_.push_back({entry.slot, static_cast<std::int32_t>(drafts), pages.block_table()});
        offer_serials_.push_back(job.id.serial);
        offers_.granted_keys.add(root, 1, cache::Form::absorbed);
    }
    std::int64_t prompts = 0;
    for (const OrderEntry& entry : prefilling_) {
        const Job& job = jobs_[entry.slot];
        if (job.grant.tokens == 0) continue;
        ++prompts;
        const ChunkForms chunk = forms_of_chunk(job);
        offers_.granted_keys.add(chunk.first, chunk.turn - chunk.first, cache::Form::decompressed);
        offers_.granted_keys.add(chunk.turn, chunk.end - chunk.turn, cache::Form::absorbed);
    }
    offers_.rows = offer_rows_;
    offers_.max_drafts = std::min(left_.tokens, left_.gather);
    offers_.granted_rows = static_cast<std::int64_t>(offer_rows_.size()) + prompts;
    offers_.granted_tokens = options_.max_step_tokens - left_.tokens;
}

// Pages for the root and this many drafts, or for as many as there are pages: a window of 64
// reaches at most one page beyond the root's. Preempts no request.
std::int64_t Scheduler::reserve_drafts(Job& job, std::int64_t drafts) {
    cache::PageTable& pages = std::get<Running>(job.state).pages;
    if (pages.grow(job.length() + drafts)) return drafts;
    return pages.slots() - job.length();
}

// The most drafts, up to `most`, that the splits left allow beside the root.
std::int64_t Scheduler::drafts_within_splits(const Job& job, std::int64_t most) const {
    const std::int64_t possible = left_.splits + job.grant.splits;
    while (most > 0 && splits_of_row(1 + most, job.length() + most) > possible) --most;
    return most;
}

// ---- second half --------------------------------------------------------------------------------

// Reservations of an offer that the engine does not use are given back before prompts get the rest.
// Offers look at each request's splits alone: where all together want more, the last are cut.
void Scheduler::grant_drafts(std::span<const std::int32_t> drafts) {
    CHECK(drafts.size() == offer_rows_.size(), "{} numbers of drafts for {} offers", drafts.size(),
          offer_rows_.size());
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < drafts.size(); ++i) {
        const NodeOffer& offer = offer_rows_[i];
        CHECK(drafts[i] >= 0 && drafts[i] <= offer.max_drafts, "{} drafts of {} offered", drafts[i],
              offer.max_drafts);
        sum += drafts[i];
        CHECK(sum <= offers_.max_drafts, "{} drafts of {} offered over all", sum,
              offers_.max_drafts);
        Job& job = jobs_[offer.slot];
        if (job.id.serial != offer_serials_[i]) continue;
        auto* running = std::get_if<Running>(&job.state);
        if (running == nullptr) continue;  // cancelled since
        const std::int64_t wanted = drafts_within_splits(job, drafts[i]);
        running->pages.truncate(job.length() + wanted);
        const std::int64_t count = reserve_drafts(job, wanted);
        grant(job, {.tokens = 1 + count,
                    .gather = 1 + count,
                    .splits = splits_of_row(1 + count, job.length() + count),
                    .drafts = static_cast<std::int32_t>(count)});
    }
}

void Scheduler::build_plan() {
    plan_rows_.clear();
    plan_requests_.clear();
    plan_.tokens = {};
    plan_.keys = {};
    for (const OrderEntry& entry : running_)
        if (jobs_[entry.slot].grant.tokens > 0) plan_root(jobs_[entry.slot]);
    for (const OrderEntry& entry : prefilling_)
        if (jobs_[entry.slot].grant.tokens > 0) plan_chunk(jobs_[entry.slot]);
    plan_.rows = plan_rows_;
    plan_.requests = plan_requests_;
    plan_.splits = options_.max_step_splits - left_.splits;
    plan_.tokens.gathered = 0;
    for (const PlannedRow& row : plan_rows_) {
        plan_.tokens.gathered += row.gather_count();
        plan_.keys.add(row.first_position, row.q_len, row.form);
    }
    ++totals_.plans;
}

void Scheduler::plan_root(Job& job) {
    const auto& pages = std::get<Running>(job.state).pages;
    plan_requests_.push_back({.id = job.id,
                              .first_row = static_cast<std::int32_t>(plan_rows_.size()),
                              .rows = 1,
                              .drafts = job.grant.drafts,
                              .work = Work::decode});
    PlannedRow row;
    row.slot = job.id.slot;
    row.first_position = job.length() - 1;
    row.q_len = job.grant.tokens;
    row.tokens = std::span(job.tokens).last(1);
    row.block_table = pages.block_table();
    row.gather = Gather::nodes;
    plan_rows_.push_back(row);
    plan_.tokens.roots += 1;
    plan_.tokens.drafts += job.grant.drafts;
}

// A chunk in the making, cut at F.
Scheduler::ChunkForms Scheduler::forms_of_chunk(const Job& job) {
    const std::int64_t first = std::get<Prefilling>(job.state).computed;
    const std::int64_t end = first + job.grant.tokens;
    return {first, std::clamp(job.key.decompressed_below, first, end), end};
}

void Scheduler::plan_chunk(Job& job) {
    const auto [first, turn, end] = forms_of_chunk(job);
    PlannedRequest planned;
    planned.id = job.id;
    planned.first_row = static_cast<std::int32_t>(plan_rows_.size());
    planned.work = end == job.length() ? Work::last_chunk : Work::chunk;
    if (turn > first) plan_row(job, first, turn, cache::Form::decompressed);
    if (end > turn) plan_row(job, turn, end, cache::Form::absorbed);
    planned.rows = static_cast<std::int32_t>(plan_rows_.size()) - planned.first_row;
    plan_requests_.push_back(planned);
    plan_.tokens.prompt_decompressed += turn - first;
    plan_.tokens.prompt_absorbed += end - turn;
    plan_.tokens.recomputed += std::clamp(job.ever_written, first, end) - first;
}

void Scheduler::plan_row(const Job& job, std::int64_t first, std::int64_t end, cache::Form form) {
    const Group& group = groups_[static_cast<std::size_t>(job.group)];
    PlannedRow row;
    row.slot = job.id.slot;
    row.first_position = first;
    row.q_len = end - first;
    row.form = form;
    row.tokens = std::span(job.tokens)
                     .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(row.q_len));
    row.block_table = std::get<Prefilling>(job.state).pages.block_table();
    if (group.wants_logits() && end > group.logits_done) {
        row.gather = Gather::prompt;
        row.gather_first = std::max<std::int64_t>(0, group.logits_done - first);
    } else if (end == job.length()) {
        row.gather = Gather::last;
        row.gather_first = row.q_len - 1;
    }
    plan_rows_.push_back(row);
}

// ---- preemption ---------------------------------------------------------------------------------

// The lowest priority, then youngest, of those that have pages.
const OrderEntry* Scheduler::youngest() const {
    const OrderEntry* prompt = prefilling_.last();
    const OrderEntry* running = running_.last();
    if (prompt == nullptr || running == nullptr) return prompt == nullptr ? running : prompt;
    return prompt->key < running->key ? running : prompt;
}

// Pages for this many slots of a request that has a row, preempting those behind it.
bool Scheduler::reserve(const Job& job, cache::PageTable& pages, std::int64_t slots) {
    while (!pages.grow(slots)) {
        const OrderEntry* victim = youngest();
        if (victim->slot == job.id.slot) return false;
        preempt(jobs_[victim->slot]);
    }
    return true;
}

// Tokens are kept, pages given back. What it had published stays findable until evicted.
void Scheduler::preempt(Job& victim) {
    if (auto* prompt = std::get_if<Prefilling>(&victim.state)) {
        victim.ever_written = std::max(victim.ever_written, prompt->computed);
        group_of(victim).leading_plan = 0;
        prefilling_.erase(victim.order());
        recycle(std::move(prompt->pages));
    } else {
        victim.ever_written = std::max(victim.ever_written, victim.length() - 1);
        running_.erase(victim.order());
        recycle(std::move(std::get<Running>(victim.state).pages));
    }
    grant(victim, {});  // it may have had its root in this very plan
    ++victim.preemptions;
    preempted_.push_back(victim.id);
    ++totals_.preemptions;
    wait(victim);
}

}  // namespace espalier::schedule
