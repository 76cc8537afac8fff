// SPDX-License-Identifier: Apache-2.0
// POST /tokenize, /apply-template and /detokenize: a body in, the answer's body out. Any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "server/served_model.hpp"

namespace espalier::server {

// {"prompt", "add_special_tokens": true, "return_token_strs": false}, or "messages" as a chat has
Expected<std::string> tokenize_body(const ServedModel& model, const std::string& body);
// {"messages", "tools", "chat_template_kwargs", "add_generation_prompt"}
Expected<std::string> apply_template_body(const ServedModel& model, const std::string& body);
// {"tokens"}
Expected<std::string> detokenize_body(const ServedModel& model, const std::string& body);

// Their bodies as JSON Schema.
void describe_tokenize(nlohmann::json& schema);
void describe_apply_template(nlohmann::json& schema);
void describe_detokenize(nlohmann::json& schema);

}  // namespace espalier::server
