// SPDX-License-Identifier: Apache-2.0
#include "server/token_routes.hpp"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "server/body.hpp"
#include "server/fields.hpp"
#include "server/logprobs.hpp"

namespace espalier::server {
namespace {

std::string body_of(const OrderedJson& json) {
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// A text or a chat, and what is told of its tokens.
struct TokenizeRequest {
    std::optional<ChatInput> chat;
    std::string prompt;
    bool add_special_tokens = true, return_token_strs = false;
};

TokenizeRequest read_tokenize(Fields& fields, const OrderedJson& ordered) {
    TokenizeRequest request;
    if (fields.has("messages") || fields.describes())
        request.chat = read_chat(fields, ordered);
    else
        fields.require("prompt");
    fields.read("prompt", request.prompt);
    fields.read("add_special_tokens", request.add_special_tokens);
    fields.read("return_token_strs", request.return_token_strs);
    return request;
}

std::vector<std::int32_t> read_detokenize(Fields& fields, std::int64_t most) {
    std::vector<std::int32_t> tokens;
    fields.require("tokens");
    fields.read("tokens", tokens, static_cast<std::size_t>(most));
    return tokens;
}

}  // namespace

void describe_tokenize(nlohmann::json& schema) {
    Fields fields = Fields::describing(schema);
    read_tokenize(fields, {});
    schema.erase("required");
    schema["anyOf"] = {{{"required", {"prompt"}}}, {{"required", {"messages"}}}};
}

void describe_apply_template(nlohmann::json& schema) {
    Fields fields = Fields::describing(schema);
    read_chat(fields, {});
}

void describe_detokenize(nlohmann::json& schema) {
    Fields fields = Fields::describing(schema);
    read_detokenize(fields, std::numeric_limits<std::int32_t>::max());
}

Expected<std::string> tokenize_body(const ServedModel& model, const std::string& body) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    Fields fields(json);
    ESPALIER_ASSIGN_OR_RETURN(const auto ordered, parse_ordered(body, json));
    const TokenizeRequest request = read_tokenize(fields, ordered);
    ESPALIER_RETURN_IF_ERROR(fields.result());
    std::vector<std::int32_t> tokens;
    if (request.chat) {
        ESPALIER_ASSIGN_OR_RETURN(const chat::Rendered rendered, model.render(*request.chat));
        ESPALIER_ASSIGN_OR_RETURN(EchoedPrompt encoded, model.encode(rendered));
        tokens = std::move(encoded.tokens);
    } else {
        ESPALIER_ASSIGN_OR_RETURN(
            tokens, model.encode_text(request.prompt, request.add_special_tokens, "prompt"));
    }
    OrderedJson answer = {
        {"count", tokens.size()}, {"max_model_len", model.max_model_len()}, {"tokens", tokens}};
    if (request.return_token_strs) {
        OrderedJson texts = OrderedJson::array();
        for (const std::int32_t token : tokens)
            texts.push_back(token_text(model.tokenizer(), token));
        answer["token_strs"] = std::move(texts);
    }
    return body_of(answer);
}

Expected<std::string> apply_template_body(const ServedModel& model, const std::string& body) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    Fields fields(json);
    ESPALIER_ASSIGN_OR_RETURN(const auto ordered, parse_ordered(body, json));
    const ChatInput chat = read_chat(fields, ordered);
    ESPALIER_RETURN_IF_ERROR(fields.result());
    ESPALIER_ASSIGN_OR_RETURN(const chat::Rendered rendered, model.render(chat));
    return body_of({{"prompt", rendered.text}});
}

Expected<std::string> detokenize_body(const ServedModel& model, const std::string& body) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    Fields fields(json);
    const std::vector<std::int32_t> tokens = read_detokenize(fields, model.max_model_len());
    const std::int64_t vocabulary = model.tokenizer().vocabulary();
    for (std::size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] >= vocabulary)
            fields.fail_at(
                fmt::format("tokens[{}]", i),
                fmt::format("{} is not an id of the vocabulary of {}", tokens[i], vocabulary));
    ESPALIER_RETURN_IF_ERROR(fields.result());
    return body_of({{"prompt", model.tokenizer().decode(tokens, false)}});
}

}  // namespace espalier::server
