// SPDX-License-Identifier: Apache-2.0
#include "draft/backlog.hpp"

#include "base/check.hpp"

namespace espalier::draft {

using cache::kPageTokens;

Backlog::Backlog(std::int64_t capacity) : capacity_(capacity) {
    entries_.reserve(static_cast<std::size_t>(capacity));
}

std::int32_t Backlog::last_row(RequestSlot request, std::int64_t position) const {
    if (!last_row_.has(request)) return kNone;
    const std::int32_t row = last_row_[request].entry;
    if (row == kNone) return kNone;
    return entries_[static_cast<std::size_t>(row)].position == position ? row : kNone;
}

bool Backlog::keeps_state(std::size_t row) const {
    const Entry& entry = entries_[row];
    if (entry.slot < 0) return false;
    return entry.position % kPageTokens == kPageTokens - 1 ||
           last_row_[entry.request].entry == static_cast<std::int32_t>(row);
}

void Backlog::drop(RequestSlot request) {
    if (last(request) == kNone) return;
    last(request) = kNone;
    for (Entry& entry : entries_)
        if (entry.request == request) entry.slot = -1;
}

void Backlog::clear() {
    for (const Entry& entry : entries_) last(entry.request) = kNone;
    entries_.clear();
    completes_page_ = false;
}

void Backlog::add(const speculate::Extension& extension) {
    const std::int64_t count = std::ssize(extension.tokens);
    const std::int64_t end = extension.first_position + count;
    CHECK(count <= capacity_ - size(), "{} tokens beside {} of {}", count, size(), capacity_);
    CHECK(
        extension.first_position >= 0 && std::ssize(extension.block_table) >= cache::pages_for(end),
        "tokens {} to {} with {} pages", extension.first_position, end,
        extension.block_table.size());
    std::int32_t& last_of_request = last(extension.request);
    if (last_of_request != kNone && count > 0) {
        const Entry& before = entries_[static_cast<std::size_t>(last_of_request)];
        CHECK(before.position + 1 == extension.first_position,
              "request {} goes on at {} after {}, but was not preempted", extension.request.value(),
              extension.first_position, before.position);
    }
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t position = extension.first_position + i;
        const auto page_at = [&](std::int64_t at) {
            return extension.block_table[static_cast<std::size_t>(at / kPageTokens)];
        };
        Entry entry{.request = extension.request,
                    .token = extension.tokens[static_cast<std::size_t>(i)],
                    .position = position,
                    .before_row = last_of_request,
                    .page = page_at(position)};
        entry.slot = std::int64_t{entry.page} * kPageTokens + position % kPageTokens;
        if (entry.before_row == kNone && position > 0) entry.before_page = page_at(position - 1);
        completes_page_ = completes_page_ || position % kPageTokens == kPageTokens - 1;
        last_of_request = static_cast<std::int32_t>(entries_.size());
        entries_.push_back(entry);
    }
}

}  // namespace espalier::draft
