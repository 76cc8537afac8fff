// SPDX-License-Identifier: Apache-2.0
#include "server/api/billing_header.hpp"

#include <algorithm>

namespace espalier::server {
namespace {

constexpr std::string_view kBillingName = "x-anthropic-billing-header:";

bool is_pair(std::string_view text) {
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) return false;
    const auto of_key = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-';
    };
    const auto of_value = [](char c) { return c > ' ' && c < '\x7f'; };
    return std::ranges::all_of(text.substr(0, equals), of_key) &&
           std::ranges::all_of(text.substr(equals + 1), of_value);
}

}  // namespace

std::size_t billing_header_bytes(std::string_view system) {
    if (!system.starts_with(kBillingName)) return 0;
    const std::size_t line_end = system.find('\n');
    std::string_view rest = system.substr(0, line_end);
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    rest.remove_prefix(kBillingName.size());
    std::size_t pairs = 0;
    for (; !rest.empty(); ++pairs) {
        rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
        if (rest.empty()) break;
        const std::size_t end = rest.find(';');
        if (end == std::string_view::npos || !is_pair(rest.substr(0, end))) return 0;
        rest.remove_prefix(end + 1);
    }
    if (pairs == 0) return 0;
    return line_end == std::string_view::npos ? system.size() : line_end + 1;
}

}  // namespace espalier::server
