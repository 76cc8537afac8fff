// SPDX-License-Identifier: Apache-2.0
#include "server/request_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace espalier::server {

bool is_request_id(std::string_view id) {
    return !id.empty() && id.size() <= 128 &&
           std::ranges::all_of(id, [](char c) { return c > 0x20 && c < 0x7f; });
}

std::string new_request_id() {
    thread_local std::mt19937_64 bits(std::random_device{}());
    return fmt::format("{:016x}{:016x}", bits(), bits());
}

bool is_traceparent(std::string_view text) {
    constexpr std::string_view kForm = "00-00000000000000000000000000000000-0000000000000000-00";
    if (text.size() < kForm.size() || text.size() > 128 || text.starts_with("ff")) return false;
    for (std::size_t i = 0; i < kForm.size(); ++i) {
        const bool is_hex =
            (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
        if (kForm[i] == '-' ? text[i] != '-' : !is_hex) return false;
    }
    if (text.substr(3, 32) == kForm.substr(3, 32) || text.substr(36, 16) == kForm.substr(36, 16))
        return false;
    if (text.size() == kForm.size()) return true;
    return !text.starts_with("00") && text[kForm.size()] == '-' && is_request_id(text);
}

}  // namespace espalier::server
