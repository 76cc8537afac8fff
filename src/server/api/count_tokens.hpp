// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages/count_tokens: the tokens of the prompt that /v1/messages would make of the same
// body. Any thread.
#pragma once

#include <string>

#include "server/generation.hpp"
#include "server/http.hpp"

namespace espalier::server {

HttpResponse count_tokens(const ServedModel& model, const std::string& body,
                          const GenerationContext& context);

// Its body as JSON Schema.
void describe_count_tokens(nlohmann::json& schema);

}  // namespace espalier::server
