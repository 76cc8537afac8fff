// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of a generation request: refused with a message, or accepted as a request
// whose numbers are in range.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "fuzz/require.hpp"
#include "server/body.hpp"
#include "server/generation_request.hpp"

namespace {

using espalier::test::require;

void check(const espalier::server::GenerationRequest& request) {
    using namespace espalier;
    const engine::Request& engine = request.engine;
    require(engine.choices >= 1 && engine.choices <= engine::kMaxChoices);
    require(engine.output.max_tokens >= 0);
    require(engine.output.max_tokens > 0 || engine.output.prompt_top_logprobs);
    require(!request.prompt_logprobs || (!request.stream && engine.output.prompt_top_logprobs));
    require(engine.output.top_logprobs >= 0 &&
            engine.output.top_logprobs <= accept::kMaxTopLogprobs);
    require(engine.output.stop.size() <= accept::kMaxStopStrings);
    require(engine.sampling.logit_bias.size() <= accept::kMaxLogitBiases);
    require(engine.priority >= 0);
    if (request.api == server::Api::chat) {
        require(!request.chat.messages.empty());
        for (const auto& message : request.chat.messages)
            require(message["role"].is_string() &&
                    (message["content"].is_string() || message.contains("tool_calls")));
    } else {
        require(!request.prompts.empty() &&
                request.prompts.size() * static_cast<std::size_t>(engine.choices) <=
                    server::kMaxChoicesPerRequest);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace espalier;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const auto body = server::parse_body(text);
    if (!body) {
        require(!body.error().message.empty());
        return 0;
    }
    const auto ordered = server::parse_ordered(text, *body);
    if (!ordered) return 0;
    for (const server::Api api : {server::Api::completions, server::Api::chat}) {
        const auto request = server::parse_generation_request(*body, *ordered, api, {});
        if (request)
            check(*request);
        else
            require(!request.error().message.empty());
    }
    return 0;
}
