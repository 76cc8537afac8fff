// SPDX-License-Identifier: Apache-2.0
#include "accept/token_counts.hpp"

#include <algorithm>

#include "base/at.hpp"
#include "base/check.hpp"

namespace espalier::accept {

TokenCounts::TokenCounts(std::span<const std::int32_t> prompt) : table_(64, -1) {
    for (const std::int32_t token : prompt) entries_[entry(token)].in_prompt = true;
}

void TokenCounts::add(std::int32_t token) {
    const std::size_t index = entry(token);
    ++entries_[index].in_output;
    recent_[static_cast<std::size_t>(changes_++) % recent_.size()] =
        static_cast<std::int32_t>(index);
}

TokenCount TokenCounts::of(std::int32_t token) const {
    const std::int32_t index = table_[place_of(token)];
    return index < 0 ? TokenCount{.token = token} : espalier::at(entries_, index);
}

NodeCounts TokenCounts::at(std::span<const std::int32_t> path) const {
    NodeCounts counts;
    CHECK(path.size() <= counts.changed_entries.size(), "a path of {} drafts, at most {}",
          path.size(), counts.changed_entries.size());
    counts.committed = entries_;
    for (const std::int32_t token : path) {
        const auto begin = counts.changed_entries.begin();
        const auto end = begin + counts.changed_count;
        const auto found = std::find_if(
            begin, end, [&](const TokenCount& changed) { return changed.token == token; });
        if (found == end) {
            *found = of(token);
            ++counts.changed_count;
        }
        ++found->in_output;
    }
    return counts;
}

std::size_t TokenCounts::entry(std::int32_t token) {
    std::size_t place = place_of(token);
    if (table_[place] < 0) {
        if (2 * (entries_.size() + 1) > table_.size()) {
            grow();
            place = place_of(token);
        }
        table_[place] = static_cast<std::int32_t>(entries_.size());
        entries_.push_back({.token = token});
    }
    return static_cast<std::size_t>(table_[place]);
}

std::size_t TokenCounts::place_of(std::int32_t token) const {
    const std::size_t mask = table_.size() - 1;
    // Knuth's multiplicative hash: neighbouring ids fall far apart.
    std::size_t place = (static_cast<std::uint32_t>(token) * std::size_t{0x9E3779B1u} >> 8) & mask;
    while (table_[place] >= 0 && espalier::at(entries_, table_[place]).token != token)
        place = (place + 1) & mask;
    return place;
}

void TokenCounts::grow() {
    table_.assign(2 * table_.size(), -1);
    for (std::size_t i = 0; i < entries_.size(); ++i)
        table_[place_of(entries_[i].token)] = static_cast<std::int32_t>(i);
}

}  // namespace espalier::accept
