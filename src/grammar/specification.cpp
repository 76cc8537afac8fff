// SPDX-License-Identifier: Apache-2.0
#include "grammar/specification.hpp"

#include <array>
#include <utility>

namespace espalier::grammar {
namespace {

constexpr std::array<std::pair<Kind, std::string_view>, 6> kNames = {{
    {Kind::json_object, "json_object"},
    {Kind::json_schema, "json_schema"},
    {Kind::regex, "regex"},
    {Kind::choice, "choice"},
    {Kind::ebnf, "ebnf"},
    {Kind::structural_tag, "structural_tag"},
}};

}  // namespace

std::string_view name(Kind kind) {
    for (const auto& [value, text] : kNames)
        if (value == kind) return text;
    return "unknown";
}

std::optional<Kind> kind_named(std::string_view name) {
    for (const auto& [value, text] : kNames)
        if (text == name) return value;
    return std::nullopt;
}

}  // namespace espalier::grammar
