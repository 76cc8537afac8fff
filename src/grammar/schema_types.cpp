// SPDX-License-Identifier: Apache-2.0
// The part of SchemaRewriter that writes each type's keywords.
#include <algorithm>
#include <cmath>
#include <set>

#include "grammar/regex.hpp"
#include "grammar/schema_rewriter.hpp"

namespace espalier::grammar {
namespace {

using Json = OrderedJson;

}  // namespace

Expected<std::optional<std::int64_t>> SchemaRewriter::count(const Json& from, const char* keyword,
                                                            std::int64_t most,
                                                            const std::string& place) const {
    if (!from.contains(keyword)) return std::nullopt;
    const Json& value = from[keyword];
    if (!value.is_number_integer() || value < 0)
        return refuse(ErrorKind::invalid, place, "{} is {}, not a count", keyword, value.dump());
    if (value > most)
        return refuse(ErrorKind::exhausted, place, "{} is {}, more than the limit of {}", keyword,
                      value.dump(), most);
    return value.get<std::int64_t>();
}

Expected<Json> SchemaRewriter::string(const Json& from, const std::string& place) {
    ESPALIER_ASSIGN_OR_RETURN(const auto least,
                              count(from, "minLength", SchemaLimits::kLength, place));
    ESPALIER_ASSIGN_OR_RETURN(const auto most,
                              count(from, "maxLength", SchemaLimits::kLength, place));
    const int ways = (least || most ? 1 : 0) + (from.contains("pattern") ? 1 : 0) +
                     (from.contains("format") ? 1 : 0);
    if (ways > 1)
        return refuse(ErrorKind::unsupported, place,
                      "only one of lengths, pattern and format is supported");
    Json to = {{"type", "string"}};
    if (least && most && *least > *most)
        return refuse(ErrorKind::invalid, place, "minLength {} is more than maxLength {}", *least,
                      *most);
    if (least) to["minLength"] = *least;
    if (most) to["maxLength"] = *most;
    if (from.contains("format")) {
        if (!from["format"].is_string())
            return refuse(ErrorKind::invalid, place, "format is no text");
        const std::string format = from["format"].get<std::string>();
        if (format_pattern(format).empty())
            return refuse(ErrorKind::unsupported, place, "the format '{}' is not supported",
                          format);
        ESPALIER_ASSIGN_OR_RETURN(to["pattern"],
                                  rewrite_regex(format_pattern(format), RegexUse::json_string));
    }
    if (from.contains("pattern")) {
        if (!from["pattern"].is_string())
            return refuse(ErrorKind::invalid, place, "pattern is no text");
        auto pattern = rewrite_regex(from["pattern"].get<std::string>(), RegexUse::json_string);
        if (!pattern)
            return refuse(pattern.error().kind, place, "pattern: {}", pattern.error().message);
        to["pattern"] = std::move(*pattern);
    }
    return to;
}

Expected<Json> SchemaRewriter::number(const Json& from, const std::string& type,
                                      const std::string& place) {
    Json to = {{"type", type}};
    for (const char* keyword :
         {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
        if (!from.contains(keyword)) continue;
        const Json& value = from[keyword];
        if (!value.is_number())
            return refuse(ErrorKind::invalid, place, "{} is {}, not a number", keyword,
                          value.dump());
        // Within what a double holds exactly: beyond, xgrammar's bounds and a checker's differ.
        const double size = std::abs(value.get<double>());
        if (size > 9007199254740992.0 || (size != 0 && size < 1e-6))
            return refuse(ErrorKind::unsupported, place, "{} is {}: not within 1e-6 and 2^53",
                          keyword, value.dump());
        to[keyword] = value;
    }
    return to;
}

Expected<Json> SchemaRewriter::array(const Json& from, const std::string& place) {
    if (from.contains("uniqueItems") && from["uniqueItems"] != false)
        return refuse(ErrorKind::unsupported, place, "the keyword 'uniqueItems' is not supported");
    ESPALIER_ASSIGN_OR_RETURN(const auto least,
                              count(from, "minItems", SchemaLimits::kItems, place));
    ESPALIER_ASSIGN_OR_RETURN(const auto most,
                              count(from, "maxItems", SchemaLimits::kItems, place));
    if (least && most && *least > *most)
        return refuse(ErrorKind::invalid, place, "minItems {} is more than maxItems {}", *least,
                      *most);
    Json to = {{"type", "array"}};
    std::int64_t prefix = 0;
    if (from.contains("prefixItems")) {
        const Json& list = from["prefixItems"];
        if (!list.is_array() || list.empty())
            return refuse(ErrorKind::invalid, place, "prefixItems is a list of schemas");
        for (const Json& item : list) {
            ESPALIER_ASSIGN_OR_RETURN(
                Json one, schema(item, fmt::format("{}/prefixItems/{}", place, prefix)));
            if (!most || prefix < *most) to["prefixItems"].push_back(std::move(one));
            ++prefix;
        }
    }
    Json items = prefix > 0 && strict_ ? Json(false) : Json(true);
    if (from.contains("items")) items = from["items"];
    if (items.is_array())
        return refuse(ErrorKind::unsupported, place, "items as a list: prefixItems is supported");
    const bool more = items != false && (!most || *most > prefix);
    if (more) {
        ESPALIER_ASSIGN_OR_RETURN(to["items"], schema(items, place + "/items"));
    } else {
        to["items"] = false;
        if (least.value_or(0) > prefix)
            return refuse(ErrorKind::invalid, place,
                          "minItems {} is more than the {} items allowed", *least, prefix);
    }
    if (least) to["minItems"] = *least;
    if (most) to["maxItems"] = *most;
    return to;
}

Expected<Json> SchemaRewriter::object(const Json& from, const std::string& place) {
    Json to = {{"type", "object"}};
    if (from.contains("properties") && !from["properties"].is_object())
        return refuse(ErrorKind::invalid, place, "properties is an object");
    const Json named = from.contains("properties") ? from["properties"] : Json::object();
    for (const auto& [name, property] : named.items()) {
        ESPALIER_ASSIGN_OR_RETURN(to["properties"][name],
                                  schema(property, place + "/properties/" + name));
    }
    Json other = named.empty() || !strict_ ? Json(true) : Json(false);
    if (from.contains("additionalProperties")) other = from["additionalProperties"];
    std::set<std::string> required;
    const Json none = Json::array();
    const Json& list = from.contains("required") ? from["required"] : none;
    if (!list.is_array()) return refuse(ErrorKind::invalid, place, "required is a list of names");
    for (const Json& name : list) {
        if (!name.is_string()) return refuse(ErrorKind::invalid, place, "required has no names");
        const std::string text = name.get<std::string>();
        if (!required.insert(text).second) continue;
        to["required"].push_back(text);
        if (named.contains(text)) continue;
        if (other == false)
            return refuse(ErrorKind::invalid, place,
                          "'{}' is required, but neither a property nor allowed beside them", text);
        ESPALIER_ASSIGN_OR_RETURN(to["properties"][text],
                                  schema(other, place + "/additionalProperties"));
    }
    if (to.contains("properties") && to["properties"].size() > SchemaLimits::kProperties)
        return refuse(ErrorKind::exhausted, place, "{} properties, more than the limit of {}",
                      to["properties"].size(), SchemaLimits::kProperties);
    ESPALIER_RETURN_IF_ERROR(object_counts(from, other != false, place, to));
    ESPALIER_RETURN_IF_ERROR(other_members(other, place, to));
    return to;
}

Expected<void> SchemaRewriter::object_counts(const Json& from, bool others,
                                             const std::string& place, Json& to) {
    ESPALIER_ASSIGN_OR_RETURN(const auto least,
                              count(from, "minProperties", SchemaLimits::kProperties, place));
    ESPALIER_ASSIGN_OR_RETURN(const auto most,
                              count(from, "maxProperties", SchemaLimits::kProperties, place));
    const auto needed =
        to.contains("required") ? static_cast<std::int64_t>(to["required"].size()) : 0;
    if (most && (*most < needed || *most < least.value_or(0)))
        return refuse(ErrorKind::invalid, place, "maxProperties {} is less than what is required",
                      *most);
    // Members that are not named may repeat a name, and a repeated one counts once.
    if (others && least.value_or(0) > std::max<std::int64_t>(needed, 1))
        return refuse(ErrorKind::unsupported, place,
                      "minProperties {} where names are free is not supported", *least);
    if (least && *least > needed) to["minProperties"] = *least;
    if (most) to["maxProperties"] = *most;
    return {};
}

Expected<void> SchemaRewriter::other_members(const Json& other, const std::string& place,
                                             Json& to) {
    if (other == false) {
        to["additionalProperties"] = false;
        return {};
    }
    ESPALIER_ASSIGN_OR_RETURN(Json written, schema(other, place + "/additionalProperties"));
    if (!to.contains("properties")) {
        to["additionalProperties"] = std::move(written);
        return {};
    }
    std::vector<std::string> names;
    for (const auto& [name, property] : to["properties"].items()) names.push_back(name);
    to["patternProperties"][pattern_of_other_names(names)] = std::move(written);
    to["additionalProperties"] = false;
    return {};
}

const Json* SchemaRewriter::resolved(const Json& from) const {
    const Json* at = &from;
    for (int steps = 0; steps < 32 && at != nullptr; ++steps) {
        if (!at->is_object() || !at->contains("$ref")) return at;
        if (!(*at)["$ref"].is_string()) return nullptr;
        at = definition((*at)["$ref"].get<std::string>());
    }
    return nullptr;
}

namespace {

// Type names of a schema that says nothing else; integer counts as number.
std::set<std::string> type_names(const Json& schema) {
    std::set<std::string> names;
    const auto add = [&](const Json& name) {
        if (name.is_string()) names.insert(name == "integer" ? "number" : name.get<std::string>());
    };
    if (!schema.is_object() || !schema.contains("type")) return names;
    const Json& type = schema["type"];
    if (type.is_array())
        std::ranges::for_each(type, add);
    else
        add(type);
    return names;
}

// The values of a required property; empty where the schema does not list them.
std::set<std::string> property_values(const Json& schema, const std::string& name) {
    std::set<std::string> values;
    if (!schema.is_object() || type_names(schema) != std::set<std::string>{"object"}) return values;
    if (!schema.contains("required") || !schema["required"].is_array() ||
        std::ranges::find(schema["required"], Json(name)) == schema["required"].end())
        return values;
    if (!schema.contains("properties") || !schema["properties"].is_object() ||
        !schema["properties"].contains(name) || !schema["properties"][name].is_object())
        return values;
    const Json& property = schema["properties"][name];
    const Json list = property.contains("const")  ? Json::array({property["const"]})
                      : property.contains("enum") ? property["enum"]
                                                  : Json::array();
    for (const Json& value : list) {
        if (!value.is_string()) return {};  // 1 and 1.0 are one value
        values.insert(value.get<std::string>());
    }
    return values;
}

// Every set has something, and nothing is in two.
bool apart(const std::vector<std::set<std::string>>& sets) {
    std::set<std::string> all;
    std::size_t count = 0;
    for (const auto& set : sets) {
        if (set.empty()) return false;
        all.insert(set.begin(), set.end());
        count += set.size();
    }
    return all.size() == count;
}

}  // namespace

bool SchemaRewriter::disjoint(const Json& list) const {
    std::vector<const Json*> arms;
    for (const Json& arm : list) {
        arms.push_back(resolved(arm));
        if (arms.back() == nullptr || !arms.back()->is_object()) return false;
    }
    std::vector<std::set<std::string>> sets;
    for (const Json* arm : arms) sets.push_back(type_names(*arm));
    if (apart(sets)) return true;
    if (!arms[0]->contains("required") || !(*arms[0])["required"].is_array()) return false;
    for (const Json& name : (*arms[0])["required"]) {
        if (!name.is_string()) continue;
        sets.clear();
        for (const Json* arm : arms) sets.push_back(property_values(*arm, name.get<std::string>()));
        if (apart(sets)) return true;
    }
    return false;
}

}  // namespace espalier::grammar
