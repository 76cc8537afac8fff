// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses: a body in the form of OpenAI's newer API as the GenerationRequest that every
// API becomes. No response is kept, so what refers to one is refused by name. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "server/generation_request.hpp"

namespace espalier::server {

// The fields whose order of keys has a meaning (parse_ordered).
inline constexpr const char* kResponsesOrdered[] = {"tools", "text", "tool_choice"};

// Without what an answer repeats of its request.
Expected<GenerationRequest> read_responses_request(Fields& fields,
                                                   const nlohmann::ordered_json& ordered,
                                                   const RequestDefaults& defaults);
Expected<GenerationRequest> parse_responses_request(const nlohmann::json& body,
                                                    const nlohmann::ordered_json& ordered,
                                                    const RequestDefaults& defaults);

}  // namespace espalier::server
