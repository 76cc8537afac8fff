// SPDX-License-Identifier: Apache-2.0
#include "client/url.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

namespace espalier::client {
namespace {

constexpr std::string_view kPlainScheme = "http://";
constexpr std::string_view kSecureScheme = "https://";
constexpr std::string_view kVersion = "/v1";

// Characters that may stand in a request line and in a header unchanged.
bool is_visible(std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f'; });
}

bool is_port(std::string_view text) {
    std::uint32_t port = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
    return error == std::errc() && end == text.data() + text.size() && port > 0 && port < 65536;
}

// Host and port; the rest of the text is the path.
Expected<Url> split_url(std::string_view text) {
    const auto wrong = [&] {
        return fail(ErrorKind::invalid,
                    "'{}' is no address of the form http://host:port or https://host", text);
    };
    Url url{.host = {}, .port = {}, .path = {}, .secure = text.starts_with(kSecureScheme)};
    if (!url.secure && !text.starts_with(kPlainScheme)) return wrong();
    if (!is_visible(text)) return wrong();
    const std::string_view rest = text.substr((url.secure ? kSecureScheme : kPlainScheme).size());
    const std::size_t slash = std::min(rest.find_first_of("/?#"), rest.size());
    const std::string_view place = rest.substr(0, slash);
    url.path = rest.substr(slash);
    url.port = url.secure ? "443" : "80";
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
    // Names and passwords belong into no address.
    if (url.host.empty() || place.find('@') != std::string_view::npos) return wrong();
    return url;
}

}  // namespace

std::string Url::authority() const {
    const bool is_v6 = host.find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

std::string Url::origin() const {
    return fmt::format("{}{}", secure ? kSecureScheme : kPlainScheme, authority());
}

Expected<Url> parse_url(std::string_view text) {
    ESPALIER_ASSIGN_OR_RETURN(Url url, split_url(text));
    if (url.path.find_first_of("?#@") != std::string::npos)
        return fail(ErrorKind::invalid, "'{}': an address of a server has no '?', '#' or '@'",
                    text);
    std::string_view path = url.path;
    while (path.ends_with('/')) path.remove_suffix(1);
    if (path.ends_with(kVersion)) path.remove_suffix(kVersion.size());
    url.path = std::string(path);
    return url;
}

Expected<Target> parse_target(std::string_view text) {
    ESPALIER_ASSIGN_OR_RETURN(Url url, split_url(text.substr(0, text.find('#'))));
    std::string path = std::exchange(url.path, {});
    if (!path.starts_with('/')) path.insert(path.begin(), '/');
    return Target{std::move(url), std::move(path)};
}

}  // namespace espalier::client
