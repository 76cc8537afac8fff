// SPDX-License-Identifier: Apache-2.0
#include "client/url.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace espalier::client {
namespace {

constexpr std::string_view kScheme = "http://";
constexpr std::string_view kVersion = "/v1";

// Characters that may stand in a request line and in a header unchanged.
bool is_plain(std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f' && c != '@'; });
}

bool is_port(std::string_view text) {
    std::uint32_t port = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    return error == std::errc() && end == text.data() + text.size() && port > 0 && port < 65536;
}

}  // namespace

std::string Url::authority() const {
    const bool is_v6 = host.find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

Expected<Url> parse_url(std::string_view text) {
    if (text.starts_with("https://"))
        return fail(ErrorKind::unsupported, "{}: https is not built; put a proxy in between", text);
    const auto wrong = [&] {
        return fail(ErrorKind::invalid, "'{}' is no address of the form http://host:port", text);
    };
    if (!text.starts_with(kScheme) || !is_plain(text)) return wrong();
    const std::string_view rest = text.substr(kScheme.size());
    const std::size_t slash = std::min(rest.find_first_of("/?#"), rest.size());
    std::string_view place = rest.substr(0, slash);
    std::string_view path = rest.substr(slash);
    if (path.find_first_of("?#") != std::string_view::npos) return wrong();
    while (path.ends_with('/')) path.remove_suffix(1);
    if (path.ends_with(kVersion)) path.remove_suffix(kVersion.size());

    Url url{.host = {}, .port = "80", .path = std::string(path)};
    std::string_view after_host;
    if (place.starts_with('[')) {
        const std::size_t bracket = place.find(']');
        if (bracket == std::string_view::npos) return wrong();
        url.host = place.substr(1, bracket - 1);
        after_host = place.substr(bracket + 1);
    } else {
        const std::size_t colon = std::min(place.find(':'), place.size());
        url.host = place.substr(0, colon);
        after_host = place.substr(colon);
    }
    if (!after_host.empty()) {
        if (after_host.front() != ':' || !is_port(after_host.substr(1))) return wrong();
        url.port = after_host.substr(1);
    }
    if (url.host.empty()) return wrong();
    return url;
}

}  // namespace espalier::client
