// SPDX-License-Identifier: Apache-2.0
#include "chat/text.hpp"

#include <algorithm>

namespace espalier::chat {

void Text::add_range(Range range) {
    if (range.begin == range.end) return;
    if (!content_.empty() && content_.back().end == range.begin) {
        content_.back().end = range.end;
    } else {
        content_.push_back(range);
    }
}

void Text::append(std::string_view bytes, bool is_content) {
    const std::size_t begin = bytes_.size();
    bytes_ += bytes;
    if (is_content) add_range({begin, bytes_.size()});
}

void Text::append_slice(const Text& other, std::size_t begin, std::size_t end) {
    const std::size_t shift = bytes_.size();
    bytes_.append(other.bytes_, begin, end - begin);
    auto range = std::ranges::upper_bound(other.content_, begin, {}, &Range::end);
    for (; range != other.content_.end() && range->begin < end; ++range)
        add_range({std::max(range->begin, begin) - begin + shift,
                   std::min(range->end, end) - begin + shift});
}

}  // namespace espalier::chat
