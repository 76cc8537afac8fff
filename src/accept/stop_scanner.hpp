// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in a text that arrives byte by byte, and says how much of its end could still
// become one. Which string stops a text is a function of the text alone: the one that is complete
// first, of those complete with the same byte the longest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace espalier::accept {

struct StopMatch {
    std::int32_t index = 0;  // in the list of stop strings
    std::size_t bytes = 0;   // of the stop string; it ends with the byte just pushed
};

// Knuth–Morris–Pratt, one state per string.
class StopScanner {
  public:
    explicit StopScanner(std::span<const std::string> strings);  // none of them empty
    bool empty() const { return strings_.empty(); }              // nothing to find
    // A caller that does not stop at a match may keep pushing; overlapping matches are found too.
    std::optional<StopMatch> push(char byte);
    // Length of the longest end of the text that begins a stop string (and is not all of it).
    std::size_t held_bytes() const;

  private:
    struct String {
        std::string text;
        // [bytes + 1]: of the first k bytes, the longest proper beginning that is also their end
        std::vector<std::size_t> border;
        std::size_t matched = 0;  // < text.size()
    };
    std::vector<String> strings_;
};

}  // namespace espalier::accept
