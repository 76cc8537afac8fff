// SPDX-License-Identifier: Apache-2.0
// Requests from submit to their end: the lists they stand in, cancelling and expiring. Plans are
// made in scheduler_plan.cpp.
#include "schedule/scheduler.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace espalier::schedule {
namespace {

Expected<void> check_options(const SchedulerOptions& options) {
    const auto at_least = [](const char* name, std::int64_t value,
                             std::int64_t least) -> Expected<void> {
        if (value >= least) return {};
        return fail(ErrorKind::invalid, "scheduler: {} is {}, but must be at least {}", name, value,
                    least);
    };
    ESPALIER_RETURN_IF_ERROR(at_least("page_count", options.page_count, 2));
    ESPALIER_RETURN_IF_ERROR(at_least("max_model_len", options.max_model_len, 2));
    ESPALIER_RETURN_IF_ERROR(at_least("max_rows", options.max_rows, 1));
    ESPALIER_RETURN_IF_ERROR(at_least("prompt_quantum", options.prompt_quantum, 1));
    ESPALIER_RETURN_IF_ERROR(at_least("max_waiting", options.max_waiting, 1));
    ESPALIER_RETURN_IF_ERROR(at_least("max_waiting_tokens", options.max_waiting_tokens, 1));
    // One token for every running request and a prompt's quantum are promised to each step.
    ESPALIER_RETURN_IF_ERROR(at_least("max_step_tokens (max_rows + prompt_quantum)",
                                      options.max_step_tokens,
                                      options.max_rows + options.prompt_quantum));
    ESPALIER_RETURN_IF_ERROR(
        at_least("max_step_gather (max_rows)", options.max_step_gather, options.max_rows));
    ESPALIER_RETURN_IF_ERROR(at_least("max_step_splits", options.max_step_splits, 0));
    if (options.max_step_splits > 0) {
        if (!options.row_splits)
            return fail(ErrorKind::invalid, "scheduler: max_step_splits is {} without row_splits",
                        options.max_step_splits);
        // The longest running request and the longest prompt must both be able to go on.
        ESPALIER_RETURN_IF_ERROR(at_least("max_step_splits (two rows of max_model_len)",
                                          options.max_step_splits,
                                          2 * options.row_splits(1, options.max_model_len)));
    }
    if (options.prefill_segment != 0 && options.prefill_segment != cache::kPageTokens &&
        options.prefill_segment != 256)
        return fail(ErrorKind::unsupported,
                    "scheduler: prefill_segment is {}, but only 64, 256 (traces of older versions) "
                    "and 0 (everything absorbed) are defined",
                    options.prefill_segment);
    return {};
}

}  // namespace

Expected<std::unique_ptr<Scheduler>> Scheduler::create(const SchedulerOptions& options) {
    ESPALIER_RETURN_IF_ERROR(check_options(options));
    return std::unique_ptr<Scheduler>(new Scheduler(options));
}

// All memory that plans need is taken here; a request's own comes with it at submit.
Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), pool_(options.page_count, options.hash_seed) {
    pool_.listen(options_.page_events.get());
    const auto max_rows = static_cast<std::size_t>(options.max_rows);
    const auto slots = static_cast<std::size_t>(options.request_slots());
    jobs_.values().resize(slots);
    groups_.resize(slots);
    for (std::size_t i = slots; i-- > 0;) {  // slot 0 is taken first
        free_slots_.emplace_back(static_cast<std::int32_t>(i));
        free_groups_.push_back(static_cast<std::int32_t>(i));
    }
    for (OrderedSlots* list : {&waiting_, &prefilling_, &running_}) list->reserve(slots);
    ended_.reserve(slots);
    offer_rows_.reserve(max_rows);
    offer_serials_.reserve(max_rows);
    no_drafts_.reserve(max_rows);
    preempted_.reserve(max_rows);
    plan_rows_.reserve(2 * max_rows);
    plan_requests_.reserve(max_rows);
    // One per row, and one for a request that asks for a row and may be sent back.
    const std::int64_t longest =
        std::min(options.max_model_len, (options.page_count - 1) * cache::kPageTokens);
    spare_tables_.reserve(max_rows + 1);
    for (std::size_t i = 0; i < max_rows + 1; ++i)
        spare_tables_.emplace_back(pool_, cache::SequenceKey{}).reserve_memory(longest);
}

Scheduler::~Scheduler() = default;

// ---- submit -------------------------------------------------------------------------------------

std::vector<RequestId> Scheduler::submit(Request request) {
    check_fits(request);
    std::vector<RequestId> ids;
    ids.reserve(static_cast<std::size_t>(request.choices));
    const std::int32_t group = take_group(request);
    for (std::int32_t choice = 0; choice < request.choices; ++choice)
        ids.push_back(enlist(request, choice, group));
    return ids;
}

void Scheduler::check_fits(const Request& request) const {
    const auto prompt = static_cast<std::int64_t>(request.prompt.size());
    CHECK(prompt > 0, "a prompt of {} tokens", prompt);
    CHECK(request.max_tokens >= 0 && request.max_tokens <= options_.max_model_len - prompt,
          "a prompt of {} tokens with max_tokens {} exceeds max_model_len {}", prompt,
          request.max_tokens, options_.max_model_len);
    CHECK(request.max_drafts >= 0 && request.max_drafts <= kMaxDrafts, "{} drafts of {}",
          request.max_drafts, kMaxDrafts);
    const std::int64_t pages = cache::pages_for(written_slots(prompt, request.max_tokens));
    CHECK(pages <= pool_.counts().total,
          "a prompt of {} tokens with max_tokens {} needs {} pages; the cache has {}", prompt,
          request.max_tokens, pages, pool_.counts().total);
    CHECK(request.choices >= 1 && request.choices <= static_cast<std::int64_t>(free_slots_.size()),
          "{} choices for {} free slots", request.choices, free_slots_.size());
}

std::int32_t Scheduler::take_group(const Request& request) {
    const std::int32_t index = free_groups_.back();
    free_groups_.pop_back();
    const auto prompt = static_cast<std::int64_t>(request.prompt.size());
    Group& group = groups_[static_cast<std::size_t>(index)];
    group = Group{};
    group.members = request.choices;
    group.full_slots = cache::matchable_pages(prompt) * cache::kPageTokens;
    group.logits_wanted = request.prompt_logits ? prompt : 0;
    return index;
}

RequestId Scheduler::enlist(const Request& request, std::int32_t choice, std::int32_t group) {
    const RequestSlot slot = free_slots_.back();
    free_slots_.pop_back();
    Job& job = jobs_[slot];
    job = Job{};
    job.id = {slot, next_serial_++};
    job.priority = request.priority;
    job.choice = choice;
    job.group = group;
    job.max_drafts = request.max_drafts;
    job.deadline = request.deadline;
    job.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
    job.max_length = job.prompt_tokens + request.max_tokens;
    job.tokens.reserve(static_cast<std::size_t>(job.max_length));
    job.tokens.assign(request.prompt.begin(), request.prompt.end());
    // Without a shared cache the salt is the group's own: its choices share pages, no other request
    // does.
    job.key.salt =
        options_.prefix_cache ? request.salt : static_cast<std::uint64_t>(job.id.serial - choice);
    job.key.decompressed_below = cache::decompressed_below(
        job.prompt_tokens, options_.prefill_segment, options_.decompressed_keys.value_or(0));
    job.key.accept_absorbed = options_.reuse_generated;
    ++totals_.submitted;
    wait(job);
    remember_deadline(job);
    return job.id;
}

// ---- lists and ends -----------------------------------------------------------------------------

void Scheduler::wait(Job& job) {
    job.state = Waiting{};
    waiting_.insert({job.order(), job.id.slot});
    waiting_tokens_ += job.length();
}

void Scheduler::stop_waiting(Job& job) {
    waiting_.erase(job.order());
    waiting_tokens_ -= job.length();
}

bool Scheduler::cancel(RequestId id) {
    if (!jobs_.has(id.slot) || !is_live(id)) return false;
    Job& job = jobs_[id.slot];
    if (std::holds_alternative<Leaving>(job.state)) return false;
    if (stage_ != Stage::planned || job.grant.tokens == 0) {
        end(job, EndReason::cancelled);
        return true;
    }
    // The step that runs may write its pages, and the batch may still read its block table.
    if (auto* prompt = std::get_if<Prefilling>(&job.state)) {
        prefilling_.erase(job.order());
        job.state = Leaving{std::move(prompt->pages)};
    } else {
        running_.erase(job.order());
        job.state = Leaving{std::move(std::get<Running>(job.state).pages)};
    }
    return true;
}

void Scheduler::end(Job& job, EndReason reason) {
    if (std::holds_alternative<Waiting>(job.state)) {
        stop_waiting(job);
    } else if (auto* prompt = std::get_if<Prefilling>(&job.state)) {
        group_of(job).leading_plan = 0;
        prefilling_.erase(job.order());
        recycle(std::move(prompt->pages));
    } else if (auto* running = std::get_if<Running>(&job.state)) {
        running_.erase(job.order());
        recycle(std::move(running->pages));
    } else {
        recycle(std::move(std::get<Leaving>(job.state).pages));
    }
    grant(job, {});  // ended between the halves of a plan: others may have it
    job.state = Finished{reason};
    job.tokens = {};
    Group& group = group_of(job);
    if (--group.members == 0) free_groups_.push_back(job.group);
    ended_.push_back({job.id, reason});
    switch (reason) {
        case EndReason::finished:
            ++totals_.finished;
            break;
        case EndReason::failed:
            ++totals_.failed;
            break;
        case EndReason::cancelled:
            ++totals_.cancelled;
            break;
        case EndReason::expired:
            ++totals_.expired;
            break;
    }
}

void Scheduler::expire(Time now) {
    while (!deadlines_.empty() && deadlines_.front().time <= now) {
        std::pop_heap(deadlines_.begin(), deadlines_.end(), later);
        const RequestId id = deadlines_.back().id;
        deadlines_.pop_back();
        if (is_live(id)) end(jobs_[id.slot], EndReason::expired);
    }
}

// Requests that end in time leave their deadlines behind; once those could be the larger part, the
// heap is made anew.
void Scheduler::remember_deadline(const Job& job) {
    if (job.deadline == kNoDeadline) return;
    if (deadlines_.size() >= 2 * jobs_.values().size()) {
        std::erase_if(deadlines_, [this](const Deadline& entry) { return !is_live(entry.id); });
        std::make_heap(deadlines_.begin(), deadlines_.end(), later);
    }
    deadlines_.push_back({job.deadline, job.id});
    std::push_heap(deadlines_.begin(), deadlines_.end(), later);
}

bool Scheduler::is_live(RequestId id) const {
    const Job& job = jobs_[id.slot];
    return job.id == id && !std::holds_alternative<Finished>(job.state);
}

void Scheduler::forget_ended() {
    for (const Ended& ended : ended_) {
        jobs_[ended.id.slot] = Job{};
        free_slots_.push_back(ended.id.slot);
    }
    ended_.clear();
}

cache::PageTable Scheduler::take_table(const cache::SequenceKey& key) {
    CHECK(!spare_tables_.empty(), "{} rows have used up all page tables", rows());
    cache::PageTable table = std::move(spare_tables_.back());
    spare_tables_.pop_back();
    table.restart(key);
    return table;
}

void Scheduler::recycle(cache::PageTable&& table) {
    table.clear();
    spare_tables_.push_back(std::move(table));
}

// ---- what others may ask ------------------------------------------------------------------------

const Job& Scheduler::live_job(RequestSlot slot) const {
    CHECK(jobs_.has(slot), "slot {} of {}", slot.value(), slot_count());
    const Job& job = jobs_[slot];
    CHECK(!std::holds_alternative<std::monostate>(job.state), "slot {} has no request",
          slot.value());
    return job;
}

std::span<const std::int32_t> Scheduler::tokens(RequestSlot slot) const {
    return live_job(slot).tokens;
}
std::int64_t Scheduler::prompt_tokens(RequestSlot slot) const {
    return live_job(slot).prompt_tokens;
}
std::int32_t Scheduler::choice(RequestSlot slot) const { return live_job(slot).choice; }
std::int64_t Scheduler::hit_tokens(RequestSlot slot) const { return live_job(slot).hit_tokens; }
RequestId Scheduler::id(RequestSlot slot) const { return live_job(slot).id; }

bool Scheduler::idle() const { return waiting_.size() + rows() == 0 && stage_ != Stage::planned; }

std::int32_t Scheduler::slot_count() const {
    return static_cast<std::int32_t>(jobs_.values().size());
}

Gauges Scheduler::gauges() const {
    return {waiting_.size(), waiting_tokens_, prefilling_.size(), running_.size(), pool_.counts()};
}

}  // namespace espalier::schedule
