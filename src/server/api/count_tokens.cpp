// SPDX-License-Identifier: Apache-2.0
#include "server/api/count_tokens.hpp"

#include <fmt/format.h>

#include "server/api/messages_reply.hpp"
#include "server/api/messages_request.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

Expected<GenerationRequest> parse_count(const std::string& body, const RequestDefaults& defaults) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json json, parse_body(body));
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::ordered_json ordered,
                              parse_ordered(body, json, kMessagesOrdered));
    return parse_count_request(json, ordered, defaults);
}

Expected<std::string> counted_tokens(const ServedModel& model, const GenerationRequest& request,
                                     const GenerationContext& context) {
    ESPALIER_RETURN_IF_ERROR(check_tools(request.chat.tools, context.tools));
    ESPALIER_ASSIGN_OR_RETURN(const chat::Rendered rendered, model.render(request.chat));
    ESPALIER_ASSIGN_OR_RETURN(const EchoedPrompt prompt, model.encode(rendered));
    return fmt::format(R"({{"input_tokens":{}}})", prompt.tokens.size());
}

}  // namespace

void describe_count_tokens(nlohmann::json& schema) {
    Fields fields = Fields::describing(schema);
    [[maybe_unused]] const auto nothing = read_count_request(fields, {}, {.generation = {}});
}

HttpResponse count_tokens(const ServedModel& model, const std::string& body,
                          const GenerationContext& context) {
    const auto request = parse_count(body, {.generation = model.defaults(),
                                            .drops_billing_header = context.drops_billing_header});
    if (!request) return messages_error_response(api_error(request.error()));
    warn_of_unknown_fields(*request, context.log);
    if (const auto error = check_model(model, *request)) return messages_error_response(*error);
    auto counted = counted_tokens(model, *request, context);
    if (!counted) return messages_error_response(api_error(counted.error()));
    return {.body = std::move(*counted)};
}

}  // namespace espalier::server
