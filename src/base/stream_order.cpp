// SPDX-License-Identifier: Apache-2.0
#include "base/stream_order.hpp"

#include <algorithm>

namespace espalier {

bool Ranges::holds(const MemoryRange& range) const {
    return std::any_of(begin(), end(), [&](const MemoryRange& one) {
        return one.slots == range.slots && one.begin <= range.begin && range.end <= one.end;
    });
}

bool Ranges::meet(const Ranges& others) const {
    return std::any_of(begin(), end(), [&](const MemoryRange& one) {
        return std::any_of(others.begin(), others.end(),
                           [&](const MemoryRange& other) { return overlap(one, other); });
    });
}

bool StreamOrder::written(const Ranges& ranges) const {
    if (ranges.empty()) return false;
    const auto log = running();
    return unknown_ || std::any_of(log.begin(), log.end(),
                                   [&](const Entry& entry) { return entry.writes.meet(ranges); });
}

bool StreamOrder::read(const Ranges& ranges) const {
    if (ranges.empty()) return false;
    const auto log = running();
    return unknown_ || std::any_of(log.begin(), log.end(),
                                   [&](const Entry& entry) { return entry.reads.meet(ranges); });
}

LaunchGrant StreamOrder::launch(LaunchNeeds needs) {
    if (watch_ != nullptr) watch_->declared(needs);
    LaunchGrant grant;
    grant.holds_next = written(needs.holds_back);
    // Early work runs beside all that may still run: it neither reads what they write
    // nor writes what they touch.
    grant.ahead = !needs.ahead.empty() && !written(needs.ahead);
    grant.early = needs.early && !grant.holds_next && !written(needs.ahead) &&
                  !written(needs.reads) && !written(needs.writes) && !read(needs.writes);
    const Release release = grant.holds_next ? Release::behind_wait
                            : grant.early    ? needs.release_early
                            : grant.ahead    ? needs.release_ahead
                                             : needs.release;
    if (release == Release::behind_wait) settle();
    append(needs);
    if (watch_ != nullptr) watch_->granted(needs, grant);
    return grant;
}

void StreamOrder::append(const LaunchNeeds& needs) {
    if (count_ == kMostRunning) forget();
    Entry& entry = log_[count_++];
    entry = {needs.reads, needs.writes};
    entry.reads.add(needs.ahead);
}

void StreamOrder::forget() {
    count_ = 0;
    unknown_ = true;
}

void StreamOrder::settle() {
    count_ = 0;
    unknown_ = false;
}

}  // namespace espalier
