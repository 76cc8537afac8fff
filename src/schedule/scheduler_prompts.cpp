// SPDX-License-Identifier: Apache-2.0
// Prompts in a plan: which comes next, what the prefix index has of it, whether there is room to
// admit it, and how much of it the step computes.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::schedule {
namespace {

// Before every request's.
constexpr OrderKey kBeforeAll{std::numeric_limits<std::int32_t>::min(), -1};

// A prompt that got no pages asks again when they are there, or after this many plans: a lookup of
// a long prompt costs more than all else in a plan.
constexpr std::int64_t kRetryPlans = 32;

}  // namespace

// Prompts that have begun and prompts that wait, as one list in order.
const OrderEntry* Scheduler::next_prompt(const OrderKey& after) const {
    const OrderEntry* begun = prefilling_.first_after(after);
    const OrderEntry* waiting = waiting_.first_after(after);
    if (begun == nullptr || waiting == nullptr) return begun == nullptr ? waiting : begun;
    return begun->key < waiting->key ? begun : waiting;
}

// The first prompt gets its quantum, if need be by preempting those behind it. The quantum is
// there: max_step_tokens ≥ max_rows + prompt_quantum.
void Scheduler::grant_quantum() {
    passed_choices_ = 0;
    OrderKey after = kBeforeAll;
    while (const OrderEntry* entry = next_prompt(after)) {
        Job& job = jobs_[entry->slot];
        after = entry->key;
        if (waits_for_sibling(job)) {
            ++passed_choices_;
            continue;
        }
        if (!grant_chunk(job, true)) prompts_blocked_ = true;
        return;
    }
}

// In order, until one does not get what it needs: a later request must not take the pages that
// it waits for. No request is preempted here.
void Scheduler::grant_rest() {
    passed_choices_ = 0;
    OrderKey after = kBeforeAll;
    while (!prompts_blocked_ && left_.tokens > 0) {
        const OrderEntry* entry = next_prompt(after);
        if (entry == nullptr) return;
        Job& job = jobs_[entry->slot];
        after = entry->key;
        if (waits_for_sibling(job)) {
            if (rows() + ++passed_choices_ > options_.max_rows) return;
            continue;
        }
        if (!grant_chunk(job, false)) return;
    }
}

// Gives the prompt a chunk, or makes the one it has larger. False: there is too little of something
// for the smallest chunk, and the prompts behind wait too.
bool Scheduler::grant_chunk(Job& job, bool may_preempt) {
    if (std::holds_alternative<Waiting>(job.state)) {
        // Without a lookup the whole of it counts, which may be more than it needs. (The first
        // prompt always has its quantum and a row of logits: at worst those of who makes way.)
        const std::int64_t least = std::min(options_.prompt_quantum, job.length());
        if (!may_preempt && (left_.tokens < least || left_.gather < 1)) return false;
        // Without a chunk it would hold a row that cannot be taken back: it has no pages. (There
        // are splits for the first prompt unless it was preempted after the roots had been
        // granted.)
        if (left_.splits < splits_of_row(1, job.length())) return false;
        if (!admit(job, may_preempt)) return false;
    }
    Prefilling& prompt = std::get<Prefilling>(job.state);
    const std::int64_t first = prompt.computed;
    const std::int64_t rest = job.length() - first;
    const std::int64_t limit = chunk_limit(job, first);
    std::int64_t chunk = 0;
    if (may_preempt) {
        chunk = within_splits(job, first, std::min(limit, options_.prompt_quantum));
        if (chunk == 0 || !reserve(job, prompt.pages, first + chunk)) return false;
    } else {
        // Rows of logits may cut a chunk below the quantum, and splits.
        const std::int64_t least =
            std::min(options_.prompt_quantum, group_of(job).wants_logits() ? limit : rest);
        const std::int64_t spare = pool_.counts().available() * cache::kPageTokens;
        const std::int64_t fitting = std::min(limit, prompt.pages.slots() + spare - first);
        if (fitting < std::max(least, job.grant.tokens)) return job.grant.tokens > 0;
        chunk = within_splits(job, first, fitting);
        if (chunk == 0) return false;
        const bool grown = prompt.pages.grow(first + chunk);
        CHECK(grown, "{} slots for a chunk were counted but not there", first + chunk);
        if (fitting < limit) prompts_blocked_ = true;  // it wants pages: no other gets any
    }
    grant(job, {.tokens = chunk,
                .gather = gather_of_chunk(job, first, chunk),
                .splits = splits_of_chunk(job, first, chunk)});
    return true;
}

// The largest chunk from `first` on that the step's tokens and rows of logits allow.
std::int64_t Scheduler::chunk_limit(const Job& job, std::int64_t first) const {
    const Group& group = groups_[static_cast<std::size_t>(job.group)];
    const std::int64_t rest = job.length() - first;
    const std::int64_t tokens = std::min(rest, left_.tokens + job.grant.tokens);
    const std::int64_t gather = left_.gather + job.grant.gather;
    if (group.wants_logits())
        return std::min(tokens, gather + std::max<std::int64_t>(0, group.logits_done - first));
    return gather > 0 ? tokens : std::min(tokens, rest - 1);  // the prompt's end needs one
}

// The largest chunk up to `most` for which there are splits.
std::int64_t Scheduler::within_splits(const Job& job, std::int64_t first, std::int64_t most) const {
    const std::int64_t splits = left_.splits + job.grant.splits;
    if (splits_of_chunk(job, first, most) <= splits) return most;
    std::int64_t fits = 0, exceeds = most;
    while (exceeds - fits > 1) {
        const std::int64_t middle = fits + (exceeds - fits) / 2;
        (splits_of_chunk(job, first, middle) <= splits ? fits : exceeds) = middle;
    }
    return fits;
}

// Only the absorbed part of a chunk has splits.
std::int64_t Scheduler::splits_of_chunk(const Job& job, std::int64_t first,
                                        std::int64_t chunk) const {
    const std::int64_t end = first + chunk;
    return splits_of_row(end - std::clamp(job.key.decompressed_below, first, end), end);
}

std::int64_t Scheduler::gather_of_chunk(const Job& job, std::int64_t first,
                                        std::int64_t chunk) const {
    const Group& group = groups_[static_cast<std::size_t>(job.group)];
    const std::int64_t end = first + chunk;
    if (group.wants_logits() && end > group.logits_done)
        return end - std::max(first, group.logits_done);
    return end == job.length() ? 1 : 0;
}

// ---- admission ----------------------------------------------------------------------------------

// Gives a waiting request a row and what the prefix index has of it, when there are pages for all
// its tokens and one for every running request before it: these would otherwise take its pages
// back soon. (They are reserved chunk by chunk as it goes on.)
bool Scheduler::admit(Job& job, bool may_preempt) {
    const OrderKey order = job.order();
    const std::int64_t headroom = running_.count_before(order);
    const std::int64_t preemptible = may_preempt ? pages_behind(order) : 0;
    const auto available = [this] { return pool_.counts().available(); };
    Waiting& waiting = std::get<Waiting>(job.state);
    if (preemptible == 0) {
        if (rows() + passed_choices_ >= options_.max_rows) return false;
        if (available() < waiting.pages_wanted + headroom && plan_.number < waiting.retry_plan)
            return false;
    }
    const std::int64_t before = available();
    cache::PageTable pages = take_table(job.key);
    const std::int64_t computed = look_up(job, pages);
    const std::int64_t missing = cache::pages_for(job.length()) - pages.pages();
    waiting.pages_wanted = missing + before - available();  // shared pages that were only cached
    waiting.retry_plan = plan_.number + kRetryPlans;

    const auto lacks_room = [&] {
        return rows() + passed_choices_ >= options_.max_rows || available() < missing + headroom;
    };
    if (available() + preemptible >= missing + headroom)  // otherwise it would be in vain
        for (const OrderEntry* victim = youngest();
             preemptible > 0 && lacks_room() && victim != nullptr && order < victim->key;
             victim = youngest())
            preempt(jobs_[victim->slot]);
    if (lacks_room()) {
        recycle(std::move(pages));
        return false;
    }
    (job.admitted ? totals_.resumed_tokens : totals_.prompt_tokens) += job.length();
    (job.admitted ? totals_.resumed_hit_tokens : totals_.hit_tokens) += computed;
    if (!job.admitted) job.hit_tokens = computed;
    job.admitted = true;
    stop_waiting(job);
    job.grant = {};
    job.state = Prefilling{std::move(pages), computed};
    prefilling_.insert({order, job.id.slot});
    if (leads(job, std::get<Prefilling>(job.state))) group_of(job).leading_plan = plan_.number;
    return true;
}

// A shared page has KV but no logits: while those of the prompt are wanted, only pages whose
// logits are known (the request was preempted later) are looked for.
std::int64_t Scheduler::look_up(const Job& job, cache::PageTable& pages) const {
    const Group& group = groups_[static_cast<std::size_t>(job.group)];
    std::int64_t most = cache::matchable_pages(job.length());
    if (group.wants_logits()) most = std::min(most, group.logits_done / cache::kPageTokens);
    const auto tokens = static_cast<std::size_t>(most * cache::kPageTokens + 1);
    return pages.match(std::span(job.tokens).first(tokens));
}

// Pages of those that have rows behind this one; some may be shared, so fewer may come free.
std::int64_t Scheduler::pages_behind(const OrderKey& key) const {
    std::int64_t pages = 0;
    for (std::int64_t i = running_.size(); i-- > 0;) {
        const OrderEntry& entry = running_[static_cast<std::size_t>(i)];
        if (entry.key < key) break;
        pages += std::get<Running>(jobs_[entry.slot].state).pages.pages();
    }
    for (std::int64_t i = prefilling_.size(); i-- > 0;) {
        const OrderEntry& entry = prefilling_[static_cast<std::size_t>(i)];
        if (entry.key < key) break;
        pages += std::get<Prefilling>(jobs_[entry.slot].state).pages.pages();
    }
    return pages;
}

// ---- choices that share a prompt ----------------------------------------------------------------

// It computes what its siblings wait for: the prompt's full pages, or its logits.
bool Scheduler::leads(const Job& job, const Prefilling& prompt) const {
    const Group& group = groups_[static_cast<std::size_t>(job.group)];
    return group.members > 1 && (prompt.computed < group.full_slots || group.wants_logits());
}

// No record of who leads is kept, so none can be stale: when the leader is cancelled or preempted,
// no request leads, and the next in order does.
bool Scheduler::waits_for_sibling(const Job& job) const {
    return std::holds_alternative<Waiting>(job.state) &&
           groups_[static_cast<std::size_t>(job.group)].leading_plan == plan_.number;
}

}  // namespace espalier::schedule
