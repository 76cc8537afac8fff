// SPDX-License-Identifier: Apache-2.0
// A chat's messages as clients send them, checked and brought into the one form that templates
// read: role and content, both strings.
#pragma once

#include <nlohmann/json.hpp>

#include "server/fields.hpp"

namespace espalier::server {

// What a chat's template is given.
struct ChatInput {
    nlohmann::json messages;                              // objects of role, content, perhaps more
    nlohmann::json arguments = nlohmann::json::object();  // chat_template_kwargs
    bool add_generation_prompt = true;
};

// Faults are kept in `fields`.
ChatInput read_chat(Fields& fields);

}  // namespace espalier::server
