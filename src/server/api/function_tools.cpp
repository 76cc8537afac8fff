// SPDX-License-Identifier: Apache-2.0
#include "server/api/function_tools.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace espalier::server {

using OrderedJson = nlohmann::ordered_json;

void add_function(Fields& tool, const OrderedJson& ordered, const char* schema_name,
                  ToolRequest& tools) {
    output::Function made;
    std::string description;
    read_signature(tool, schema_name, tools, made);
    tool.read("description", description);
    const nlohmann::json* schema = tool.find(schema_name);
    if (!tool.ok() || tool.describes()) return;
    if (schema != nullptr) made.parameters = ordered[schema_name];
    tools.declared.push_back(
        {{"type", "function"},
         {"function",
          {{"name", made.name},
           {"description", description},
           {"parameters",
            schema != nullptr
                ? made.parameters
                : OrderedJson({{"type", "object"}, {"properties", OrderedJson::object()}})}}}});
    tools.functions.push_back(std::move(made));
}

void choose_function(Fields& choice, const char* name_field, ToolRequest& tools) {
    std::string name;
    choice.require(name_field);
    choice.read(name_field, name);
    const auto found = std::ranges::find(tools.functions, name, &output::Function::name);
    if (found == tools.functions.end())
        choice.fail_at(name_field, fmt::format("'{}' is not among the tools", name.substr(0, 80)));
    tools.choice = ToolRequest::Choice::named;
    tools.named = static_cast<std::size_t>(found - tools.functions.begin());
}

}  // namespace espalier::server
