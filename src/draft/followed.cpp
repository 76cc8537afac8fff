// SPDX-License-Identifier: Apache-2.0
#include "draft/followed.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::draft {

using cache::kPageTokens;

void Followed::begin(RequestSlot request) { texts_.grown_to(request) = {}; }

void Followed::forget() {
    std::fill(texts_.begin(), texts_.end(), Text{});
    std::fill(filled_.begin(), filled_.end(), std::int8_t{0});
}

bool Followed::whole(RequestSlot request, std::int64_t position) const {
    return texts_.has(request) && texts_[request].whole && texts_[request].end == position;
}

// True if all slots before the extension were seen, whichever request wrote them.
bool Followed::pages_whole(const speculate::Extension& extension) const {
    for (std::int64_t first = 0; first < extension.first_position; first += kPageTokens) {
        const auto page = static_cast<std::size_t>(
            extension.block_table[static_cast<std::size_t>(first / kPageTokens)]);
        if (filled_[page] < std::min<std::int64_t>(kPageTokens, extension.first_position - first))
            return false;
    }
    return true;
}

void Followed::add(const speculate::Extension& extension) {
    if (extension.tokens.empty()) return;
    Text& seen = texts_.grown_to(extension.request);
    const std::int64_t first = extension.first_position;
    const bool goes_on = first > 0 && seen.end == first;
    if (!goes_on) seen.whole = pages_whole(extension);
    fill(extension, goes_on || seen.whole);
    seen.end = first + std::ssize(extension.tokens);
}

// A token's KV is made from the state of the one before it: where that was missed, it is a hole.
void Followed::fill(const speculate::Extension& extension, bool state_known) {
    const std::int64_t end = extension.first_position + std::ssize(extension.tokens);
    for (std::int64_t from = extension.first_position; from < end;) {
        const std::int64_t page = from / kPageTokens;
        const std::int64_t to = std::min(end, (page + 1) * kPageTokens);
        std::int8_t& filled = filled_[static_cast<std::size_t>(
            extension.block_table[static_cast<std::size_t>(page)])];
        const std::int64_t before = from % kPageTokens;
        if (!state_known && from == extension.first_position)
            filled = static_cast<std::int8_t>(std::min<std::int64_t>(filled, before));
        else if (before <= filled)
            filled = static_cast<std::int8_t>(to - page * kPageTokens);
        from = to;
    }
}

}  // namespace espalier::draft
