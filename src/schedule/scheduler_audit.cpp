// SPDX-License-Identifier: Apache-2.0
// The scheduler's books, checked from scratch: for tests and at shutdown.
#include "base/check.hpp"
#include "schedule/scheduler.hpp"

namespace espalier::schedule {
namespace {

std::int64_t pages_of(const State& state) {
    if (const auto* prompt = std::get_if<Prefilling>(&state)) return prompt->pages.pages();
    if (const auto* running = std::get_if<Running>(&state)) return running->pages.pages();
    if (const auto* leaving = std::get_if<Leaving>(&state)) return leaving->pages.pages();
    return 0;
}

template <typename Wanted>
void audit_list(const OrderedSlots& list, const IndexedVector<RequestSlot, Job>& jobs) {
    const OrderEntry* previous = nullptr;
    for (const OrderEntry& entry : list) {
        const Job& job = jobs[entry.slot];
        CHECK(std::holds_alternative<Wanted>(job.state), "slot {} stands in the wrong list",
              entry.slot.value());
        CHECK(entry.key == job.order(), "slot {} stands at the place of request {}",
              entry.slot.value(), entry.key.serial);
        CHECK(previous == nullptr || previous->key < entry.key, "request {} stands out of order",
              entry.key.serial);
        previous = &entry;
    }
}

}  // namespace

void Scheduler::audit() const {
    audit_list<Waiting>(waiting_, jobs_);
    audit_list<Prefilling>(prefilling_, jobs_);
    audit_list<Running>(running_, jobs_);
    std::int64_t listed = 0, pages = 0, queued_tokens = 0, tables = 0;
    std::vector<std::int32_t> members(groups_.size(), 0);
    for (const Job& job : jobs_) {
        pages += pages_of(job.state);
        if (std::holds_alternative<Waiting>(job.state)) queued_tokens += job.length();
        const bool live = !std::holds_alternative<std::monostate>(job.state) &&
                          !std::holds_alternative<Finished>(job.state);
        if (!live) continue;
        ++members[static_cast<std::size_t>(job.group)];
        const bool leaving = std::holds_alternative<Leaving>(job.state);
        listed += leaving ? 0 : 1;
        tables += std::holds_alternative<Waiting>(job.state) ? 0 : 1;
    }
    const std::int64_t in_lists = waiting_.size() + rows();
    CHECK(listed == in_lists, "{} live requests, {} in lists", listed, in_lists);
    CHECK(queued_tokens == waiting_tokens_, "{} tokens wait, {} were counted", queued_tokens,
          waiting_tokens_);
    const auto spare = static_cast<std::int64_t>(spare_tables_.size());
    CHECK(tables + spare == options_.max_rows + 1, "{} page tables in use and {} spare of {}",
          tables, spare, options_.max_rows + 1);
    std::size_t free_groups = 0;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
        CHECK(groups_[i].members == members[i], "group {} counts {} members, has {}", i,
              groups_[i].members, members[i]);
        free_groups += members[i] == 0 ? 1 : 0;
    }
    CHECK(free_groups == free_groups_.size(), "{} groups are free, {} listed", free_groups,
          free_groups_.size());
    CHECK(pool_.handles() == pages, "{} pages are held, requests have {}", pool_.handles(), pages);
    pool_.audit();
}

}  // namespace espalier::schedule
