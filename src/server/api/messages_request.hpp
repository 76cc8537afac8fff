// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages and /v1/messages/count_tokens: a body in Anthropic's form as the
// GenerationRequest that every API becomes. Each field is checked once and named when it is wrong.
// Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "server/generation_request.hpp"

namespace espalier::server {

// The fields whose order of keys has a meaning (parse_ordered).
inline constexpr const char* kMessagesOrdered[] = {"messages", "tools", "output_config",
                                                   "output_format"};

Expected<GenerationRequest> read_messages_request(Fields& fields,
                                                  const nlohmann::ordered_json& ordered,
                                                  const RequestDefaults& defaults);
Expected<GenerationRequest> parse_messages_request(const nlohmann::json& body,
                                                   const nlohmann::ordered_json& ordered,
                                                   const RequestDefaults& defaults);

// The same without what is of the output: no max_tokens is wanted.
Expected<GenerationRequest> read_count_request(Fields& fields,
                                               const nlohmann::ordered_json& ordered,
                                               const RequestDefaults& defaults);
Expected<GenerationRequest> parse_count_request(const nlohmann::json& body,
                                                const nlohmann::ordered_json& ordered,
                                                const RequestDefaults& defaults);

}  // namespace espalier::server
