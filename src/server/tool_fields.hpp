// SPDX-License-Identifier: Apache-2.0
// The functions that a chat's request declares and what it wants done with them, as types. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "output/tool_grammar.hpp"
#include "server/fields.hpp"

namespace espalier::server {

struct ToolRequest {
    enum class Choice : std::uint8_t {
        automatic,  // text or calls, as the model likes
        none,       // declared, but the text is text
        required,   // at least one call
        named,      // one call of one function
    };
    std::vector<output::Function> functions;
    nlohmann::ordered_json declared;  // as templates read them; null: none
    Choice choice = Choice::automatic;
    std::size_t named = 0;  // in functions
    bool parallel = true;
    std::int64_t bytes = 0;  // of the declarations, as JSON

    bool may_call() const { return !functions.empty() && choice != Choice::none; }
    bool must_call() const { return choice == Choice::required || choice == Choice::named; }
};

// Faults are kept in `fields`. ordered: see Body.
ToolRequest read_tools(Fields& fields, const nlohmann::ordered_json& ordered);

// One declared tool; ordered: the same.
using DeclarationReader = void (*)(Fields& tool, const nlohmann::ordered_json& ordered,
                                   ToolRequest& tools);
// The list `tools`, one by one.
void read_declarations(Fields& fields, const nlohmann::ordered_json& ordered, ToolRequest& tools,
                       DeclarationReader read);
// Name, description, strict and the schema of a function's arguments, which has another name in
// each API.
void read_signature(Fields& function, const char* schema_name, const ToolRequest& tools,
                    output::Function& made);

// A name that markers and grammars can stand around, and that no function before has. Its fault is
// kept in `function`.
void check_function_name(Fields& function, const std::string& name, const ToolRequest& tools);

struct ToolLimits {
    std::int64_t functions = 128;
    std::int64_t bytes = 1 << 20;
};
Expected<void> check_tools(const ToolRequest& tools, const ToolLimits& limits);

}  // namespace espalier::server
