// SPDX-License-Identifier: Apache-2.0
#include "server/api/api_form.hpp"

#include <utility>

#include "server/api/messages_reply.hpp"
#include "server/api/messages_request.hpp"
#include "server/api/responses_reply.hpp"
#include "server/api/responses_request.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

template <Api api>
Expected<GenerationRequest> parse_openai(std::string_view body, const RequestDefaults& defaults) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered, parse_ordered(body, json));
    return parse_generation_request(json, ordered, api, defaults.generation);
}

using BodyReader = Expected<GenerationRequest> (*)(Fields&, const nlohmann::ordered_json&,
                                                   const RequestDefaults&);

template <BodyReader read>
void describe_body(nlohmann::json& schema) {
    Fields fields = Fields::describing(schema);
    [[maybe_unused]] const auto nothing = read(fields, {}, {.generation = {}});
}

template <Api api>
Expected<GenerationRequest> read_openai(Fields& fields, const nlohmann::ordered_json& ordered,
                                        const RequestDefaults& defaults) {
    return read_generation_request(fields, ordered, api, defaults);
}

std::unique_ptr<ReplyWriter> make_openai_reply(ReplyParts parts) {
    const GenerationRequest& request = parts.request;
    const char* kind = request.api == Api::chat ? "chatcmpl-" : "cmpl-";
    return std::make_unique<Reply>(ReplyOptions{.api = request.api,
                                                .id = kind + parts.id_digits,
                                                .created = parts.created,
                                                .model = std::move(parts.model),
                                                .stream = request.stream,
                                                .include_usage = request.include_usage,
                                                .logprobs = request.logprobs,
                                                .echo = request.echo,
                                                .token_ids = request.token_ids,
                                                .top_logprobs = request.engine.output.top_logprobs,
                                                .prompt_logprobs = request.prompt_logprobs,
                                                .speculation = request.speculation_report,
                                                .drafters = std::move(parts.drafters),
                                                .drafter_states = std::move(parts.drafter_states),
                                                .parser = std::move(parts.parser),
                                                .choices = request.engine.choices,
                                                .seed = request.engine.sampling.seed},
                                   parts.tokenizer, std::move(parts.prompts));
}

Expected<GenerationRequest> parse_messages(std::string_view body, const RequestDefaults& defaults) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered,
                              parse_ordered(body, json, kMessagesOrdered));
    return parse_messages_request(json, ordered, defaults);
}

std::unique_ptr<ReplyWriter> make_messages_reply(ReplyParts parts) {
    const GenerationRequest& request = parts.request;
    return std::make_unique<MessagesReply>(
        PartsReplyOptions{.id = "msg_" + parts.id_digits,
                          .call_prefix = "toolu_",
                          .created = parts.created,
                          .model = std::move(parts.model),
                          .stream = request.stream,
                          .parser = std::move(parts.parser)},
        MessagesAnswer{.stop_sequences = request.engine.output.stop,
                       .max_tokens = *request.max_tokens,
                       .omits_thinking = request.omits_reasoning});
}

Expected<GenerationRequest> parse_responses(std::string_view body,
                                            const RequestDefaults& defaults) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered,
                              parse_ordered(body, json, kResponsesOrdered));
    return parse_responses_request(json, ordered, defaults);
}

std::unique_ptr<ReplyWriter> make_responses_reply(ReplyParts parts) {
    return std::make_unique<ResponsesReply>(PartsReplyOptions{.id = "resp_" + parts.id_digits,
                                                              .call_prefix = "call_",
                                                              .created = parts.created,
                                                              .model = std::move(parts.model),
                                                              .stream = parts.request.stream,
                                                              .parser = std::move(parts.parser)},
                                            parts.request.repeated);
}

constexpr ApiForm kOpenAiCompletions = {parse_openai<Api::completions>,
                                        describe_body<read_openai<Api::completions>>,
                                        make_openai_reply, error_response, context_length_exceeded};
constexpr ApiForm kOpenAiChat = {parse_openai<Api::chat>, describe_body<read_openai<Api::chat>>,
                                 make_openai_reply, error_response, context_length_exceeded};
constexpr ApiForm kMessages = {parse_messages, describe_body<read_messages_request>,
                               make_messages_reply, messages_error_response, messages_too_long};
constexpr ApiForm kResponses = {parse_responses, describe_body<read_responses_request>,
                                make_responses_reply, error_response, context_length_exceeded};

}  // namespace

const ApiForm& form_of(Api api) {
    switch (api) {
        case Api::completions:
            return kOpenAiCompletions;
        case Api::chat:
            return kOpenAiChat;
        case Api::messages:
            return kMessages;
        case Api::responses:
            return kResponses;
    }
    return kOpenAiChat;
}

HttpResponse error_response(const ApiError& error, std::string_view path) {
    return path.starts_with("/v1/messages") ? messages_error_response(error)
                                            : error_response(error);
}

}  // namespace espalier::server
