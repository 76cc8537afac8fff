// SPDX-License-Identifier: Apache-2.0
#include "text/unicode_stand_ins.hpp"

#include <algorithm>
#include <array>
#include <cstdint>

#include "text/utf8.hpp"

namespace espalier::text {
namespace {

struct StandIn {
    std::uint32_t first;
    std::uint32_t last;
    std::uint32_t shown;
};

constexpr StandIn kStandIns[] = {
#include "text/unicode_stand_ins.inc"
};

// One flag per 256 code points, so that ordinary text costs one look-up per code point above ASCII.
constexpr auto kPageHasStandIns = [] {
    std::array<bool, 0x1100> pages{};
    for (const StandIn& row : kStandIns)
        for (std::uint32_t page = row.first >> 8; page <= row.last >> 8; ++page) pages[page] = true;
    return pages;
}();

constexpr std::uint32_t kFirst = kStandIns[0].first;

const StandIn* find(std::uint32_t code_point) {
    if (code_point < kFirst || !kPageHasStandIns[code_point >> 8]) return nullptr;
    const auto* row = std::ranges::lower_bound(kStandIns, code_point, {}, &StandIn::last);
    return row != std::end(kStandIns) && row->first <= code_point ? row : nullptr;
}

}  // namespace

std::string_view with_stand_ins(std::string_view valid_text, std::string& scratch) {
    bool copied = false;
    std::string shown;
    for (std::size_t at = 0; at < valid_text.size();) {
        const auto lead = static_cast<unsigned char>(valid_text[at]);
        const std::size_t length = utf8_length(lead);
        if (length > 1) {
            if (const StandIn* row = find(code_point_at(valid_text, at))) {
                if (!copied) scratch.assign(valid_text);
                copied = true;
                shown.clear();
                append_code_point(row->shown, shown);
                scratch.replace(at, length, shown);
            }
        }
        at += length;
    }
    return copied ? std::string_view(scratch) : valid_text;
}

}  // namespace espalier::text
