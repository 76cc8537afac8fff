// SPDX-License-Identifier: Apache-2.0
// A chat's messages as clients send them, checked and brought into the one form that templates
// read: role and content, both strings; of the assistant's calls the functions' names and their
// arguments as texts.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "server/fields.hpp"
#include "server/tool_fields.hpp"

namespace espalier::server {

// The input of a chat template.
struct ChatInput {
    nlohmann::json messages;                              // objects of role, content, perhaps more
    nlohmann::json arguments = nlohmann::json::object();  // chat_template_kwargs
    bool add_generation_prompt = true;
    bool continues_final = false;  // the last message, which check_continued() has passed
    ToolRequest tools;
    std::string reasoning_effort;  // empty: not said
};

// What text_of_content() takes, as JSON Schema.
nlohmann::json content_schema();
// A string, or parts of type text, which are joined by line ends. Nothing: a fault at this path,
// kept in `fields`.
std::optional<std::string> text_of_content(const nlohmann::json& content, Fields& fields,
                                           const std::string& path);

// Faults are kept in `fields`. ordered: parse_ordered()'s.
ChatInput read_chat(Fields& fields, const nlohmann::ordered_json& ordered);

// Turns the arguments of earlier calls, which clients send as JSON text, into objects with their
// keys in order: templates that write arguments as pairs need them so.
Expected<void> parse_call_arguments(nlohmann::ordered_json& messages);

}  // namespace espalier::server
