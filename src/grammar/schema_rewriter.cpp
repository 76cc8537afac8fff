// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_rewriter.hpp"

#include <algorithm>
#include <set>

#include "grammar/schema_keywords.hpp"

namespace espalier::grammar {
namespace {

using Json = OrderedJson;

bool has_type(const Json& value, std::string_view type) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    if (value.is_number_float())
        return value.get<double>() == static_cast<double>(static_cast<std::int64_t>(
                                          std::clamp(value.get<double>(), -9e15, 9e15)));
    return value.is_number_integer();
}

constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "string", "integer",
                                                    "number", "array",   "object"};

// The type that a group of keywords speaks of.
std::optional<std::string> type_of(KeywordGroup group) {
    switch (group) {
        case KeywordGroup::string:
            return "string";
        case KeywordGroup::number:
            return "number";
        case KeywordGroup::array:
            return "array";
        case KeywordGroup::object:
            return "object";
        default:
            return std::nullopt;
    }
}

// Numbers that xgrammar writes as another value.
bool writable(const Json& value) {
    if (value.is_number_unsigned())
        return value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX);
    if (!value.is_structured()) return true;
    return std::ranges::all_of(value, writable);
}

// One step of a JSON pointer: ~1 stands for a slash, ~0 for a tilde.
std::optional<std::string> unescaped(std::string_view step) {
    std::string name;
    for (std::size_t i = 0; i < step.size(); ++i) {
        if (step[i] == '/' || step[i] == '%') return std::nullopt;
        name += step[i];
        if (step[i] != '~') continue;
        if (++i == step.size() || (step[i] != '0' && step[i] != '1')) return std::nullopt;
        name.back() = step[i] == '1' ? '/' : '~';
    }
    return name;
}

}  // namespace

Expected<Json> SchemaRewriter::run() {
    ESPALIER_ASSIGN_OR_RETURN(Json written, schema(root_, ""));
    Json definitions = Json::object();
    while (!pending_.empty()) {
        const std::string pointer = pending_.back();
        pending_.pop_back();
        const Json* found = definition(pointer);
        if (found == nullptr)
            return refuse(ErrorKind::invalid, "", "$ref '{}' leads nowhere", pointer);
        ESPALIER_ASSIGN_OR_RETURN(definitions[names_.at(pointer)], schema(*found, pointer));
    }
    if (!definitions.empty()) written["$defs"] = std::move(definitions);
    return written;
}

const Json* SchemaRewriter::definition(const std::string& pointer) const {
    for (const std::string_view folder : {"$defs", "definitions"}) {
        const std::string prefix = fmt::format("#/{}/", folder);
        if (!pointer.starts_with(prefix)) continue;
        const auto name = unescaped(std::string_view(pointer).substr(prefix.size()));
        if (!name) return nullptr;
        if (!root_.is_object() || !root_.contains(folder) || !root_[folder].is_object() ||
            !root_[folder].contains(*name))
            return nullptr;
        return &root_[folder][*name];
    }
    return nullptr;
}

Expected<Json> SchemaRewriter::schema(const Json& from, const std::string& place) {
    if (++schemas_ > SchemaLimits::kSchemas)
        return refuse(ErrorKind::exhausted, place, "more than {} schemas", SchemaLimits::kSchemas);
    if (from.is_boolean()) {
        if (from.get<bool>()) return Json::object();
        return refuse(ErrorKind::invalid, place, "false holds for no value");
    }
    if (!from.is_object()) return refuse(ErrorKind::invalid, place, "a schema is an object");
    std::set<KeywordGroup> groups;
    for (const auto& [keyword, value] : from.items()) {
        const auto group = group_of(keyword);
        if (!group)
            return refuse(ErrorKind::unsupported, place, "the keyword '{}' is not supported",
                          keyword);
        if (*group == KeywordGroup::annotation || *group == KeywordGroup::definitions) continue;
        groups.insert(*group);
    }
    const auto alone = [&](KeywordGroup group) {
        return groups.contains(group) && groups.size() == 1;
    };
    if (groups.empty()) return Json::object();
    if (alone(KeywordGroup::reference)) return reference(from, place);
    if (alone(KeywordGroup::combination)) return combination(from, place);
    if (groups.contains(KeywordGroup::reference) || groups.contains(KeywordGroup::combination))
        return refuse(ErrorKind::unsupported, place, "{} beside other keywords is not supported",
                      groups.contains(KeywordGroup::reference) ? "$ref" : "anyOf, oneOf or allOf");
    if (groups.contains(KeywordGroup::values)) {
        groups.erase(KeywordGroup::type);
        if (!alone(KeywordGroup::values))
            return refuse(ErrorKind::unsupported, place,
                          "const or enum beside other keywords than type is not supported");
        return values(from, place);
    }
    ESPALIER_ASSIGN_OR_RETURN(const auto names, types(from, place));
    Json arms = Json::array();
    for (const std::string& type : names) {
        ESPALIER_ASSIGN_OR_RETURN(Json one, typed(from, type, place));
        arms.push_back(std::move(one));
    }
    if (arms.size() == 1) return arms[0];
    return Json{{"anyOf", std::move(arms)}};
}

Expected<std::vector<std::string>> SchemaRewriter::types(const Json& from,
                                                         const std::string& place) {
    std::vector<std::string> names;
    if (!from.contains("type")) {
        // Keywords of one type speak of values of that type; the others are left out here.
        for (const auto& [keyword, value] : from.items())
            if (const auto type = type_of(*group_of(keyword)))
                if (std::ranges::find(names, *type) == names.end()) names.push_back(*type);
        if (names.size() != 1)
            return refuse(ErrorKind::unsupported, place,
                          "keywords of several types without 'type' are not supported");
        return names;
    }
    const Json& type = from["type"];
    const Json list = type.is_array() ? type : Json::array({type});
    for (const Json& name : list) {
        if (!name.is_string() || std::ranges::find(kTypes, name.get<std::string>()) == kTypes.end())
            return refuse(ErrorKind::invalid, place, "'type' is {}", name.dump());
        if (std::ranges::find(names, name.get<std::string>()) == names.end())
            names.push_back(name.get<std::string>());
    }
    if (names.empty()) return refuse(ErrorKind::invalid, place, "'type' names no type");
    return names;
}

Expected<Json> SchemaRewriter::reference(const Json& from, const std::string& place) {
    if (!from["$ref"].is_string()) return refuse(ErrorKind::invalid, place, "$ref is no text");
    const std::string pointer = from["$ref"].get<std::string>();
    if (pointer == "#") return Json{{"$ref", "#"}};
    if (!pointer.starts_with("#/$defs/") && !pointer.starts_with("#/definitions/"))
        return refuse(ErrorKind::unsupported, place,
                      "$ref '{}' is not supported: '#', '#/$defs/…' and '#/definitions/…' are",
                      pointer);
    const auto [found, fresh] = names_.try_emplace(pointer, fmt::format("d{}", names_.size()));
    if (fresh) pending_.push_back(pointer);
    return Json{{"$ref", fmt::format("#/$defs/{}", found->second)}};
}

Expected<Json> SchemaRewriter::values(const Json& from, const std::string& place) {
    if (from.contains("const") && from.contains("enum"))
        return refuse(ErrorKind::unsupported, place, "const beside enum is not supported");
    const Json list = from.contains("const") ? Json::array({from["const"]}) : from["enum"];
    if (!list.is_array() || list.empty())
        return refuse(ErrorKind::invalid, place, "enum is a list of values");
    std::vector<std::string> names(kTypes.begin(), kTypes.end());
    if (from.contains("type")) {
        ESPALIER_ASSIGN_OR_RETURN(names, types(from, place));
    }
    Json kept = Json::array();
    for (const Json& value : list) {
        if (!writable(value))
            return refuse(ErrorKind::unsupported, place, "{} is beyond 64 bits", value.dump());
        value_bytes_ += value.dump().size();
        if (std::ranges::any_of(names, [&](const auto& name) { return has_type(value, name); }))
            kept.push_back(value);
    }
    if (value_bytes_ > SchemaLimits::kEnumBytes)
        return refuse(ErrorKind::exhausted, place, "const and enum have more than {} bytes",
                      SchemaLimits::kEnumBytes);
    if (kept.empty()) return refuse(ErrorKind::invalid, place, "no value of enum has the type");
    return Json{{"enum", std::move(kept)}};
}

Expected<Json> SchemaRewriter::combination(const Json& from, const std::string& place) {
    const Json* list = nullptr;
    std::string keyword;
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
        if (!from.contains(name)) continue;
        if (list != nullptr)
            return refuse(ErrorKind::unsupported, place, "{} beside {} is not supported", name,
                          keyword);
        list = &from[name];
        keyword = name;
    }
    if (!list->is_array() || list->empty())
        return refuse(ErrorKind::invalid, place, "{} is a list of schemas", keyword);
    if (list->size() == 1) return schema((*list)[0], place + "/" + keyword + "/0");
    if (keyword == "allOf")
        return refuse(ErrorKind::unsupported, place, "allOf of several schemas is not supported");
    if (keyword == "oneOf" && !disjoint(*list))
        return refuse(ErrorKind::unsupported, place,
                      "oneOf is supported where types or a required property's const tell its "
                      "schemas apart; anyOf may do");
    return alternatives(*list, place + "/" + keyword);
}

Expected<Json> SchemaRewriter::alternatives(const Json& list, const std::string& place) {
    Json arms = Json::array();
    for (std::size_t i = 0; i < list.size(); ++i) {
        ESPALIER_ASSIGN_OR_RETURN(Json arm, schema(list[i], fmt::format("{}/{}", place, i)));
        arms.push_back(std::move(arm));
    }
    return Json{{"anyOf", std::move(arms)}};
}

Expected<Json> SchemaRewriter::typed(const Json& from, const std::string& type,
                                     const std::string& place) {
    if (type == "string") return string(from, place);
    if (type == "integer" || type == "number") return number(from, type, place);
    if (type == "array") return array(from, place);
    if (type == "object") return object(from, place);
    return Json{{"type", type}};
}

}  // namespace espalier::grammar
