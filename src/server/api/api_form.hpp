// SPDX-License-Identifier: Apache-2.0
// What differs between the APIs that generate, by API: how a body is read and how the answer and
// its errors are written. Between them there is one path, on GenerationRequest.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/reply_writer.hpp"
#include "server/generation_request.hpp"
#include "server/http.hpp"
#include "server/reply.hpp"

namespace espalier::server {

// Parts that a writer is made of.
struct ReplyParts {
    const GenerationRequest& request;
    std::string id_digits;
    std::int64_t created = 0;
    std::string model;
    std::vector<std::string> drafters;
    std::vector<std::string_view> drafter_states;
    output::ParserOptions parser;
    const text::Tokenizer& tokenizer;  // outlives the writer
    std::vector<EchoedPrompt> prompts;
};

struct ApiForm {
    Expected<GenerationRequest> (*parse)(std::string_view body, const RequestDefaults& defaults);
    // The body as JSON Schema: what parse reads, in its types and ranges.
    void (*describe)(nlohmann::json& schema);
    std::unique_ptr<ReplyWriter> (*make_reply)(ReplyParts parts);
    HttpResponse (*error)(const ApiError& error);
    // The prompt has more tokens than limit, in words by which this API's clients know.
    ApiError (*too_long)(TokenCount tokens, std::int64_t limit, const std::string& field);
};

const ApiForm& form_of(Api api);

// An error in the form of the path's clients.
HttpResponse error_response(const ApiError& error, std::string_view path);

}  // namespace espalier::server
