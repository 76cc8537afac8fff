// SPDX-License-Identifier: Apache-2.0
// Any bytes as a body of /v1/messages, count_tokens and /v1/responses: refused with a message, or
// accepted as a request whose numbers are in range and whose chat templates can read.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "fuzz/require.hpp"
#include "server/api/messages_request.hpp"
#include "server/api/responses_request.hpp"
#include "server/body.hpp"

namespace {

using espalier::test::require;
using namespace espalier;

void check_chat(const server::GenerationRequest& request) {
    for (const auto& message : request.chat.messages) {
        require(message["role"].is_string());
        require(message["content"].is_string() ||
                (message["content"].is_null() && message.contains("tool_calls")));
        // /v1/messages makes them of an object; elsewhere they are the client's own text.
        if (request.api != server::Api::messages || !message.contains("tool_calls")) continue;
        for (const auto& call : message["tool_calls"])
            require(nlohmann::json::accept(
                call["function"]["arguments"].get_ref<const std::string&>()));
    }
    const server::ToolRequest& tools = request.chat.tools;
    require(tools.choice != server::ToolRequest::Choice::named ||
            tools.named < tools.functions.size());
    require(tools.functions.empty() || tools.declared.size() == tools.functions.size());
}

void check(const Expected<server::GenerationRequest>& request) {
    if (!request) return require(!request.error().message.empty());
    require(request->engine.choices == 1);
    require(request->engine.output.stop.size() <= accept::kMaxStopStrings);
    require(request->engine.priority >= 0);
    check_chat(*request);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto body = server::parse_body(text);
    if (!body) {
        require(!body.error().message.empty());
        return 0;
    }
    if (const auto ordered = server::parse_ordered(text, *body, server::kMessagesOrdered)) {
        for (const bool drops : {false, true}) {
            const auto request = server::parse_messages_request(
                *body, *ordered, {.generation = {}, .drops_billing_header = drops});
            check(request);
            if (request) require(request->engine.output.max_tokens > 0);
        }
        check(server::parse_count_request(*body, *ordered, {.generation = {}}));
    }
    if (const auto ordered = server::parse_ordered(text, *body, server::kResponsesOrdered))
        check(server::parse_responses_request(*body, *ordered, {.generation = {}}));
    return 0;
}
