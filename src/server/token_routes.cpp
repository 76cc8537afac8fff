// SPDX-License-Identifier: Apache-2.0
#include "server/token_routes.hpp"

#include <utility>

#include "server/body.hpp"
#include "server/fields.hpp"
#include "server/logprobs.hpp"

namespace espalier::server {
namespace {

std::string body_of(const OrderedJson& json) {
    return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

Expected<std::string> tokenize_body(const ServedModel& model, const std::string& body) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    Fields fields(json);
    std::string prompt;
    bool add_special_tokens = true, return_token_strs = false;
    const bool is_chat = fields.has("messages");
    ChatInput conversation;
    ESPALIER_ASSIGN_OR_RETURN(const auto ordered, parse_ordered(body, json));
    if (is_chat)
        conversation = read_chat(fields, ordered);
    else if (!fields.has("prompt"))
        fields.fail_at("prompt", "is missing");
    fields.read("prompt", prompt);
    fields.read("add_special_tokens", add_special_tokens);
    fields.read("return_token_strs", return_token_strs);
    ESPALIER_RETURN_IF_ERROR(fields.result());
    std::vector<std::int32_t> tokens;
    if (is_chat) {
        ESPALIER_ASSIGN_OR_RETURN(const chat::Rendered rendered, model.render(conversation));
        ESPALIER_ASSIGN_OR_RETURN(EchoedPrompt encoded, model.encode(rendered));
        tokens = std::move(encoded.tokens);
    } else {
        ESPALIER_ASSIGN_OR_RETURN(tokens, model.encode_text(prompt, add_special_tokens, "prompt"));
    }
    OrderedJson answer = {
        {"count", tokens.size()}, {"max_model_len", model.max_model_len()}, {"tokens", tokens}};
    if (return_token_strs) {
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
    std::vector<std::int32_t> tokens;
    if (!fields.has("tokens")) fields.fail_at("tokens", "is missing");
    fields.read("tokens", tokens, static_cast<std::size_t>(model.max_model_len()));
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
