// SPDX-License-Identifier: Apache-2.0
// Functions that /v1/messages and /v1/responses declare, as the ToolRequest of chats: the same
// checks, and the declaration in the form that templates print. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "server/fields.hpp"
#include "server/tool_fields.hpp"

namespace espalier::server {

// Adds the function of one declaration: `name`, `description`, `strict` and, under schema_name, the
// schema of its arguments. Faults are kept in `tool`. ordered: the same declaration.
void add_function(Fields& tool, const nlohmann::ordered_json& ordered, const char* schema_name,
                  ToolRequest& tools);

// The one function that must be called. The fault of a name that no tool has is kept in `choice`.
void choose_function(Fields& choice, const char* name_field, ToolRequest& tools);

}  // namespace espalier::server
