// SPDX-License-Identifier: Apache-2.0
// A generation request as types: what every API's body becomes, and how those of /v1/completions
// and /v1/chat/completions do, each field checked once and named when it is wrong (api/ has the
// others). What a model or an engine limits besides, check_request says. Pure; nothing of the JSON
// goes further than this, but for a chat's messages and what its template is given.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/model_config.hpp"
#include "engine/request.hpp"
#include "server/chat_messages.hpp"
#include "server/grammar_fields.hpp"

namespace espalier::server {

enum class Api { completions, chat, messages, responses };
// The prompt is a chat, through the model's template.
constexpr bool is_chat(Api api) { return api != Api::completions; }
constexpr const char* path_of(Api api) {
    switch (api) {
        case Api::completions:
            return "/v1/completions";
        case Api::chat:
            return "/v1/chat/completions";
        case Api::messages:
            return "/v1/messages";
        case Api::responses:
            return "/v1/responses";
    }
    return "";
}
// Names that APIs have for the same field.
constexpr const char* prompt_field(Api api) {
    if (api == Api::responses) return "input";
    return is_chat(api) ? "messages" : "prompt";
}
constexpr const char* stop_field(Api api) {
    return api == Api::messages ? "stop_sequences" : "stop";
}

// A text, or tokens that are taken as they are.
using PromptInput = std::variant<std::string, std::vector<std::int32_t>>;

// Prompts of one request, times n: all of them are answered at once.
inline constexpr std::int64_t kMaxChoicesPerRequest = engine::kMaxChoices;
// Larger goes later; clients cannot pass others by.
inline constexpr std::int32_t kMaxPriority = 1000;
// Seeds that are drawn here are reported, and JavaScript reads integers as doubles.
inline constexpr int kDrawnSeedBits = 53;

struct GenerationRequest {
    Api api = Api::completions;
    std::string model;                 // empty: not said
    std::vector<PromptInput> prompts;  // of completions, at least one
    bool add_special_tokens = true;    // a text among them gets the model's first token
    ChatInput chat;                    // of the other APIs
    // Without prompt, deadline, salt, grammar and reasoning, which are set later.
    engine::Request engine;
    std::optional<GrammarField> grammar;
    std::optional<std::int64_t> reasoning_budget;  // tokens
    const char* reasoning_budget_field = "thinking_token_budget";
    bool reasoning_is_optional = false;  // a budget means nothing to a model without reasoning
    bool omits_reasoning = false;        // the answer says only that there was some
    std::string cache_salt;
    bool seed_given = false;
    bool stream = false;
    bool include_usage = false;
    bool echo = false;
    bool speculation_report = false;              // the answer tells what drafts did for it
    bool token_ids = false;                       // the answer has the tokens of prompt and output
    std::string prediction;                       // the text that the client expects; empty: none
    std::optional<std::int32_t> prompt_logprobs;  // alternatives told with each of the prompt's
    // Settings as the client wrote them, for answers and for the names in errors.
    bool logprobs = false;
    std::optional<std::int64_t> max_tokens;
    const char* max_tokens_field = "max_tokens";
    nlohmann::ordered_json repeated;   // of /v1/responses: what its answer repeats
    std::vector<std::string> unknown;  // fields that mean nothing here or at OpenAI
};

// Defaults that a server gives to every request.
struct RequestDefaults {
    const checkpoint::GenerationDefaults& generation;
    bool drops_billing_header = true;  // of /v1/messages: api/billing_header.hpp
};

// The fields that every API takes beside its own: sampling, when an output ends, drafts, priority
// and salt.
void read_engine_fields(Fields& fields, GenerationRequest& request,
                        const checkpoint::GenerationDefaults& defaults);

// Length limit of the reasoning before an answer.
void read_reasoning_budget(Fields& fields, GenerationRequest& request);

// ordered: parse_ordered()'s of the same body.
Expected<GenerationRequest> read_generation_request(Fields& fields,
                                                    const nlohmann::ordered_json& ordered, Api api,
                                                    const RequestDefaults& defaults);
Expected<GenerationRequest> parse_generation_request(
    const nlohmann::json& body, const nlohmann::ordered_json& ordered, Api api,
    const checkpoint::GenerationDefaults& defaults);

// An error of check_request by the name that the request's own field has.
Error named_as_in_request(Error error, const GenerationRequest& request);
// Likewise the schema of a tool's arguments, function.parameters to chats, and their messages.
Error named_as_in_chat(Error error, Api api);

}  // namespace espalier::server
