// SPDX-License-Identifier: Apache-2.0
#include "server/guard.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace espalier::server {
namespace {

std::string lower(std::string_view text) {
    std::string made(text);
    std::ranges::transform(made, made.begin(), [](unsigned char c) {
        return static_cast<char>(c < 128 ? std::tolower(c) : c);
    });
    return made;
}

// "name:port", "[::1]:port" → the name or address alone; all of it where no port follows.
std::string name_of_host(std::string_view host) {
    const std::size_t bracket = host.starts_with('[') ? host.find(']') : 0;
    const std::size_t colon = host.find(':', std::min(bracket, host.size()));
    if (colon == std::string_view::npos) return lower(host);
    const std::string_view port = host.substr(colon + 1);
    const bool is_port = std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
    return lower(is_port ? host.substr(0, colon) : host);
}

bool is_address(const std::string& name) {
    std::array<unsigned char, 16> bytes{};
    if (name.starts_with('[') && name.ends_with(']'))
        return inet_pton(AF_INET6, name.substr(1, name.size() - 2).c_str(), bytes.data()) == 1;
    return inet_pton(AF_INET, name.c_str(), bytes.data()) == 1;
}

bool has(const std::vector<std::string>& list, std::string_view value) {
    return std::ranges::any_of(
        list, [&](const std::string& entry) { return entry == "*" || lower(entry) == value; });
}

// "application/json; charset=utf-8" is one too.
bool is_json(std::string_view content_type) {
    std::string type = lower(content_type.substr(0, content_type.find(';')));
    while (type.ends_with(' ') || type.ends_with('\t')) type.pop_back();
    return type == "application/json";
}

constexpr std::string_view kBearer = "bearer ";

std::string_view bearer_of(const HttpRequest& head) {
    if (lower(head.authorization.substr(0, kBearer.size())) != kBearer) return {};
    return std::string_view(head.authorization).substr(kBearer.size());
}

ApiError forbidden(std::string message) {
    return {.status = 403, .message = std::move(message), .type = "permission_error"};
}

}  // namespace

std::shared_ptr<const ApiKey> Guard::key_of(const HttpRequest& head) const {
    const auto key = keys_.find(bearer_of(head));
    return key ? key : keys_.find(head.x_api_key);
}

bool Guard::allows_host(std::string_view host) const {
    if (!keys_.empty()) return true;  // a page elsewhere does not know the key
    const std::string name = name_of_host(host);
    return is_address(name) || name == "localhost" || name.ends_with(".localhost") ||
           has(rules_.allowed_hosts, name);
}

bool Guard::allows_origin(std::string_view origin) const {
    return has(rules_.allowed_origins, lower(origin));
}

std::optional<ApiError> Guard::check(const HttpRequest& head, bool is_open) const {
    // Browsers name the host; what asks without, by HTTP/1.0, is a load balancer or an old tool.
    if (head.host.empty() && !head.is_http_1_0)
        return ApiError{.status = 400, .message = "the request has no Host header"};
    if (!head.host.empty() && !allows_host(head.host))
        return forbidden("Host: " + head.host +
                         " is none of this server's names; start it with --allowed-host " +
                         name_of_host(head.host) + ", or with an --api-key");
    if (!head.origin.empty() && !allows_origin(head.origin)) {
        const std::string own = lower(head.host);
        const std::string origin = lower(head.origin);
        if (origin != "http://" + own && origin != "https://" + own)
            return forbidden("Origin: " + head.origin +
                             " is another page's; start the server with --allowed-origin " +
                             head.origin);
    }
    if (!is_open && !keys_.empty() && !key_of(head))
        return ApiError{.status = 401,
                        .message = head.authorization.empty() && head.x_api_key.empty()
                                       ? "this server wants an API key: Authorization: Bearer …, "
                                         "or x-api-key: …"
                                       : "the API key is not one of this server's",
                        .type = "authentication_error",
                        .code = "invalid_api_key"};
    if (head.method != "POST") return std::nullopt;
    if (!is_json(head.content_type))
        return ApiError{.status = 415,
                        .message = "Content-Type: application/json is expected, not '" +
                                   head.content_type + "'"};
    if (!head.content_encoding.empty() && lower(head.content_encoding) != "identity")
        return ApiError{.status = 415,
                        .message = "Content-Encoding: " + head.content_encoding +
                                   " is not taken; send the body as it is"};
    return std::nullopt;
}

}  // namespace espalier::server
