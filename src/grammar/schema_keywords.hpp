// SPDX-License-Identifier: Apache-2.0
// The keywords of JSON Schema that are known here; any other is refused by its name.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace espalier::grammar {

enum class KeywordGroup {
    annotation,  // says nothing about what is valid
    definitions,
    reference,
    values,       // const, enum
    combination,  // anyOf, oneOf, allOf
    type,
    string,
    number,
    array,
    object,
};

inline constexpr std::array<std::pair<std::string_view, KeywordGroup>, 41> kKeywords = {{
    {"$schema", KeywordGroup::annotation},
    {"$id", KeywordGroup::annotation},
    {"id", KeywordGroup::annotation},
    {"$comment", KeywordGroup::annotation},
    {"title", KeywordGroup::annotation},
    {"description", KeywordGroup::annotation},
    {"default", KeywordGroup::annotation},
    {"example", KeywordGroup::annotation},
    {"examples", KeywordGroup::annotation},
    {"deprecated", KeywordGroup::annotation},
    {"readOnly", KeywordGroup::annotation},
    {"writeOnly", KeywordGroup::annotation},
    {"discriminator", KeywordGroup::annotation},
    {"$defs", KeywordGroup::definitions},
    {"definitions", KeywordGroup::definitions},
    {"$ref", KeywordGroup::reference},
    {"const", KeywordGroup::values},
    {"enum", KeywordGroup::values},
    {"anyOf", KeywordGroup::combination},
    {"oneOf", KeywordGroup::combination},
    {"allOf", KeywordGroup::combination},
    {"type", KeywordGroup::type},
    {"minLength", KeywordGroup::string},
    {"maxLength", KeywordGroup::string},
    {"pattern", KeywordGroup::string},
    {"format", KeywordGroup::string},
    {"minimum", KeywordGroup::number},
    {"maximum", KeywordGroup::number},
    {"exclusiveMinimum", KeywordGroup::number},
    {"exclusiveMaximum", KeywordGroup::number},
    {"multipleOf", KeywordGroup::number},
    {"items", KeywordGroup::array},
    {"prefixItems", KeywordGroup::array},
    {"minItems", KeywordGroup::array},
    {"maxItems", KeywordGroup::array},
    {"uniqueItems", KeywordGroup::array},  // false only
    {"properties", KeywordGroup::object},
    {"required", KeywordGroup::object},
    {"additionalProperties", KeywordGroup::object},
    {"minProperties", KeywordGroup::object},
    {"maxProperties", KeywordGroup::object},
}};

constexpr std::optional<KeywordGroup> group_of(std::string_view keyword) {
    if (keyword.starts_with("x-")) return KeywordGroup::annotation;  // OpenAPI's extensions
    for (const auto& [name, group] : kKeywords)
        if (name == keyword) return group;
    return std::nullopt;
}

}  // namespace espalier::grammar
