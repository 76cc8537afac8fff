// SPDX-License-Identifier: Apache-2.0
// Errors as OpenAI's clients know them: {"error":{"message","type","param","code"}}, as a whole
// answer or as the last event of a stream.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "server/http.hpp"

namespace espalier::server {

struct ApiError {
    int status = 400;
    std::string message;
    std::string type = "invalid_request_error";
    std::string param = {};       // the field at fault; empty: null
    std::string code = {};        // empty: null
    int retry_after_seconds = 0;  // 0: not said
};

// invalid and unsupported are the client's (400), exhausted is a full queue (429), all else is
// ours.
ApiError api_error(const Error& error);
struct TokenCount {
    std::int64_t number = 0;
    bool is_bound = false;  // there are these at least
};
// A prompt of these tokens leaves no room. In OpenAI's words and with its code, by which
// clients shorten the prompt or take another model.
ApiError context_length_exceeded(TokenCount tokens, std::int64_t limit, const std::string& field);
// 503: the model is not there yet, or the server is on its way down.
ApiError unavailable(const std::string& message);

// Messages repeat what clients sent, who must not get it back by the megabyte.
std::string shortened_message(const std::string& message);
std::string error_json(const ApiError& error);
HttpResponse error_response(const ApiError& error);

}  // namespace espalier::server
