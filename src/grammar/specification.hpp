// SPDX-License-Identifier: Apache-2.0
// What a request asks its text to be, before it is compiled. Plain data: the server and the command
// line fill it in, a trace can write it down, grammar::Compiler makes a grammar of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::grammar {

enum class Kind : std::uint8_t {
    json_object,     // some JSON object; text is empty
    json_schema,     // text: a JSON Schema, as JSON
    regex,           // text: the whole output matches it, as Python's re.fullmatch
    choice,          // choices: the output is one of them
    ebnf,            // text: rules in xgrammar's EBNF (GBNF's); the rule "root" is the output
    structural_tag,  // text: xgrammar's structural tag, as JSON
};

// "json_schema" and so on; the names of requests, traces and error messages.
std::string_view name(Kind kind);
std::optional<Kind> kind_named(std::string_view name);

struct Specification {
    Kind kind = Kind::json_object;
    std::string text{};
    std::vector<std::string> choices{};
    // json_schema: an object that names properties and says nothing of others has no others, and an
    // array with prefixItems and no items has no more. False: as JSON Schema has it, anything.
    bool strict = true;
    // json_schema and json_object: white space between JSON's tokens is the model's choice, at most
    // kMaxWhitespace characters at a place. False: one way to write a value, ", " and ": " as
    // Python's json.dumps; much longer forced texts.
    bool any_whitespace = true;

    bool operator==(const Specification&) const = default;
};

inline constexpr int kMaxWhitespace = 32;

}  // namespace espalier::grammar
