// SPDX-License-Identifier: Apache-2.0
#include "server/api_error.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace espalier::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kMaxMessageBytes = 500;

OrderedJson text_or_null(const std::string& text) {
    return text.empty() ? OrderedJson() : OrderedJson(text.substr(0, kMaxMessageBytes));
}

}  // namespace

std::string shortened_message(const std::string& message) {
    if (message.size() <= kMaxMessageBytes) return message;
    return message.substr(0, kMaxMessageBytes) + " …";
}

ApiError api_error(const Error& error) {
    ApiError made{.message = error.message, .param = error.field};
    switch (error.kind) {
        case ErrorKind::invalid:
        case ErrorKind::unsupported:
            break;
        case ErrorKind::exhausted:
            made.status = 429;
            made.type = "rate_limit_error";
            made.code = "queue_full";
            made.retry_after_seconds = 1;
            break;
        case ErrorKind::not_found:
        case ErrorKind::io:
            made.status = 500;
            made.type = "server_error";
            break;
    }
    return made;
}

// LiteLLM looks for the first of these words, LangChain for the last.
ApiError context_length_exceeded(TokenCount tokens, std::int64_t limit, const std::string& field) {
    return {.message = fmt::format(
                "This model's maximum context length is {} tokens. However, your {} resulted in "
                "{}{} tokens, and an answer has one more at least: the prompt is too long. Please "
                "reduce the length of the {}.",
                limit, field, tokens.is_bound ? "at least " : "", tokens.number, field),
            .param = field,
            .code = "context_length_exceeded"};
}

ApiError unavailable(const std::string& message) {
    return {.status = 503,
            .message = message,
            .type = "unavailable_error",
            .code = "503",
            .retry_after_seconds = 1};
}

std::string error_json(const ApiError& error) {
    const OrderedJson json = {{"error",
                               {{"message", shortened_message(error.message)},
                                {"type", error.type},
                                {"param", text_or_null(error.param)},
                                {"code", text_or_null(error.code)}}}};
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

HttpResponse error_response(const ApiError& error) {
    HttpResponse response{.status = error.status, .body = error_json(error)};
    if (error.retry_after_seconds > 0)
        response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
    if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
}

}  // namespace espalier::server
