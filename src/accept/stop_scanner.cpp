// SPDX-License-Identifier: Apache-2.0
#include "accept/stop_scanner.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::accept {

StopScanner::StopScanner(std::span<const std::string> strings) {
    for (const std::string& text : strings) {
        CHECK(!text.empty(), "stop string {} is empty", strings_.size());
        std::vector<std::size_t> border(text.size() + 1, 0);
        for (std::size_t k = 1, length = 0; k < text.size(); ++k) {
            while (length > 0 && text[length] != text[k]) length = border[length];
            if (text[length] == text[k]) ++length;
            border[k + 1] = length;
        }
        strings_.push_back({text, std::move(border), 0});
    }
}

std::optional<StopMatch> StopScanner::push(char byte) {
    std::optional<StopMatch> match;
    for (std::size_t i = 0; i < strings_.size(); ++i) {
        auto& [text, border, matched] = strings_[i];
        while (matched > 0 && text[matched] != byte) matched = border[matched];
        if (text[matched] == byte) ++matched;
        if (matched < text.size()) continue;
        matched = border[matched];
        if (!match || text.size() > match->bytes)
            match = StopMatch{static_cast<std::int32_t>(i), text.size()};
    }
    return match;
}

std::size_t StopScanner::held_bytes() const {
    std::size_t held = 0;
    for (const String& string : strings_) held = std::max(held, string.matched);
    return held;
}

}  // namespace espalier::accept
