// SPDX-License-Identifier: Apache-2.0
// Reads the parts of a call one after the other; the first that is not there decides. Of parser.cpp
// and pair_parser.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace espalier::output {

inline constexpr std::size_t kMaxHeadBytes = 128;  // of a name or key, without its markers
inline constexpr std::size_t kMaxSpaceBytes = 64;  // at each place that may have white space

enum class Match : std::uint8_t { yes, no, unfinished };

inline bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

inline std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    return text;
}

// Length of the longest end of the text that begins the marker, and is not all of it.
inline std::size_t begun(std::string_view text, std::string_view marker) {
    for (std::size_t size = std::min(text.size(), marker.size() - 1); size > 0; --size)
        if (text.ends_with(marker.substr(0, size))) return size;
    return 0;
}

class Cursor {
  public:
    Cursor(std::string_view text, std::size_t at) : text_(text), at_(at) {}

    void spaces() {
        const std::size_t most = std::min(text_.size(), at_ + kMaxSpaceBytes);
        while (at_ < most && is_space(text_[at_])) ++at_;
    }
    Match literal(std::string_view marker) {
        const std::string_view rest = text_.substr(at_);
        if (rest.starts_with(marker)) {
            at_ += marker.size();
            return Match::yes;
        }
        return marker.starts_with(rest) ? Match::unfinished : Match::no;
    }
    // The text in front of the first of the markers, which is where the cursor then is.
    Match text_before(std::initializer_list<std::string_view> markers, std::string_view& found) {
        std::size_t longest = 0, end = std::string_view::npos;
        for (const std::string_view marker : markers) longest = std::max(longest, marker.size());
        const std::string_view rest = text_.substr(at_, kMaxHeadBytes + longest);
        for (const std::string_view marker : markers) end = std::min(end, rest.find(marker));
        if (end == std::string_view::npos)
            return rest.size() == kMaxHeadBytes + longest ? Match::no : Match::unfinished;
        if (end > kMaxHeadBytes) return Match::no;
        found = rest.substr(0, end);
        at_ += end;
        return Match::yes;
    }
    std::size_t at() const { return at_; }

  private:
    std::string_view text_;
    std::size_t at_;
};

}  // namespace espalier::output
