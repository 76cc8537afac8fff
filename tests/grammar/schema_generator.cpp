// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_generator.hpp"

#include <array>

namespace espalier::test {
namespace {

constexpr std::array<const char*, 18> kNames = {"name",
                                                "age",
                                                "id",
                                                "a",
                                                "b",
                                                "ab",
                                                "abc",
                                                "acab",
                                                "na\xc3\xafve",
                                                "\xe2\x82\xac",
                                                "with space",
                                                "quote\"d",
                                                "back\\slash",
                                                "tab\t",
                                                "",
                                                "x/y",
                                                "\xf0\x9f\x98\x80",
                                                "$ref"};
constexpr std::array<const char*, 10> kFormats = {
    "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"};

}  // namespace

SchemaGenerator::Json SchemaGenerator::schema() {
    definitions_.clear();
    const auto count = below(3);
    for (std::uint64_t i = 0; i < count; ++i)
        definitions_.push_back(std::string("D").append(std::to_string(i)));
    Json root = node(0);
    if (definitions_.empty()) return root;
    Json definitions = Json::object();
    for (std::size_t i = 0; i < definitions_.size(); ++i) {
        // Recursion has a way out, and never refers to itself for the same value.
        Json definition = {{"anyOf", Json::array({leaf(), chance(50) ? object(2) : array(2)})}};
        definitions[definitions_[i]] = definition;
    }
    root["$defs"] = definitions;
    return root;
}

std::string SchemaGenerator::name() { return kNames[below(kNames.size())]; }

SchemaGenerator::Json SchemaGenerator::node(int depth) {
    if (depth >= 4) return leaf();
    if (!definitions_.empty() && chance(15))
        return Json{
            {"$ref", std::string("#/$defs/").append(definitions_[below(definitions_.size())])}};
    switch (below(8)) {
        case 0:
        case 1:
        case 2:
            return object(depth);
        case 3:
            return array(depth);
        case 4: {
            Json arms = Json::array();
            for (std::uint64_t i = 0, n = 1 + below(3); i < n; ++i) arms.push_back(node(depth + 1));
            return Json{{"anyOf", arms}};
        }
        case 5:
            return Json{{"oneOf", Json::array({Json{{"type", "null"}}, Json{{"type", "string"}},
                                               array(depth)})}};
        default:
            return leaf();
    }
}

SchemaGenerator::Json SchemaGenerator::leaf() {
    switch (below(7)) {
        case 0:
            return Json{{"type", "boolean"}};
        case 1:
            return Json{{"type", "null"}, {"title", "nothing"}};
        case 2:
            return values();
        case 3:
            return Json{{"type", Json::array({"string", "null", "integer"})}};
        case 4:
        case 5:
            return string();
        default:
            return number();
    }
}

SchemaGenerator::Json SchemaGenerator::values() {
    const Json all =
        Json::array({"red", "green", 1, -7, 2.5, true, nullptr, "\xe2\x82\xac \"q\" \\ /", "",
                     Json::array({1, "a"}), Json{{"k", Json::array()}}, "\n\t", 0, 1e20});
    if (chance(20)) return Json{{"const", all[below(all.size())]}};
    Json list = Json::array();
    const auto count = chance(5) ? 400 : 1 + below(5);
    for (std::uint64_t i = 0; i < count; ++i)
        list.push_back(count > 5
                           ? Json(std::string("value number ").append(std::to_string(i * 7919)))
                           : all[below(all.size())]);
    Json schema = {{"enum", list}};
    if (chance(20)) schema["type"] = "string";
    return schema;
}

SchemaGenerator::Json SchemaGenerator::string() {
    Json schema = {{"type", "string"}};
    switch (below(5)) {
        case 0:
            schema["format"] = kFormats[below(kFormats.size())];
            break;
        case 1:
            schema["pattern"] = std::string("^").append(regex(1)).append("$");
            break;
        case 2: {
            const auto least = below(6);
            if (chance(70)) schema["minLength"] = least;
            if (chance(70)) schema["maxLength"] = least + below(20);
            break;
        }
        default:
            break;
    }
    return schema;
}

SchemaGenerator::Json SchemaGenerator::number() {
    const bool integer = chance(60);
    Json schema = {{"type", integer ? "integer" : "number"}};
    const auto low = static_cast<std::int64_t>(below(4000)) - 2000;
    const auto width = static_cast<std::int64_t>(below(3000)) + 1;
    const auto bound = [&](std::int64_t value) {
        return integer ? Json(value) : Json(static_cast<double>(value) / 8);
    };
    if (chance(40)) schema[chance(50) ? "minimum" : "exclusiveMinimum"] = bound(low);
    if (chance(40)) schema[chance(50) ? "maximum" : "exclusiveMaximum"] = bound(low + width + 2);
    if (integer && schema.size() == 1 && chance(20)) schema["multipleOf"] = 1 + below(12);
    return schema;
}

SchemaGenerator::Json SchemaGenerator::array(int depth) {
    Json schema = {{"type", "array"}};
    if (chance(20)) schema["prefixItems"] = Json::array({node(depth + 1), leaf()});
    if (!schema.contains("prefixItems") || chance(50)) schema["items"] = node(depth + 1);
    const auto least = below(4);
    if (chance(40)) schema["minItems"] = schema.contains("items") ? least : least % 3;
    if (chance(40)) schema["maxItems"] = least + below(5);
    return schema;
}

SchemaGenerator::Json SchemaGenerator::object(int depth) {
    Json schema = {{"type", "object"}};
    Json properties = Json::object();
    Json required = Json::array();
    for (std::uint64_t i = 0, n = below(6); i < n; ++i) {
        const std::string key = name();
        if (properties.contains(key)) continue;
        properties[key] = node(depth + 1);
        if (chance(60)) required.push_back(key);
    }
    if (!properties.empty()) schema["properties"] = properties;
    if (!required.empty()) schema["required"] = required;
    const auto kind = below(4);
    if (kind == 0) schema["additionalProperties"] = false;
    if (kind == 1) schema["additionalProperties"] = leaf();
    if (chance(10)) schema["maxProperties"] = properties.size() + 1;
    if (chance(10)) schema["minProperties"] = 1;
    return schema;
}

std::string SchemaGenerator::regex(int depth) {
    static constexpr std::array<const char*, 14> kAtoms = {
        "a",   "b",        "[a-c]", "\\d", "\\w",    "[^a-z]", ".",
        "x-y", "[0-9A-F]", "\\.",   "@",   "[\\s_]", "abc",    "\\$"};
    std::string text;
    for (std::uint64_t i = 0, n = 1 + below(4); i < n; ++i) {
        text += "(";
        if (depth > 0 && chance(30)) {
            text += regex(depth - 1);
            if (chance(50)) text.append("|").append(regex(depth - 1));
        } else {
            text += kAtoms[below(kAtoms.size())];
        }
        text += ")";
        static constexpr std::array<const char*, 9> kCounts = {"",  "",    "",      "?",    "*",
                                                               "+", "{2}", "{1,3}", "{0,4}"};
        text += kCounts[below(kCounts.size())];
    }
    return text;
}

}  // namespace espalier::test
