// SPDX-License-Identifier: Apache-2.0
#include "output/value_types.hpp"

#include <string_view>

namespace espalier::output {
namespace {

using Json = nlohmann::ordered_json;

// Alternatives of alternatives, and references to references; deeper ones allow everything.
constexpr int kMaxDepth = 8;

ValueTypes named(std::string_view name) {
    if (name == "string") return kStringValue;
    if (name == "integer" || name == "number") return kNumberValue;
    if (name == "boolean") return kBooleanValue;
    if (name == "null") return kNullValue;
    if (name == "object") return kObjectValue;
    if (name == "array") return kArrayValue;
    return kAnyValue;
}

ValueTypes of_type(const Json& type) {
    if (type.is_string()) return named(type.get_ref<const std::string&>());
    if (!type.is_array()) return kAnyValue;
    ValueTypes all = kNoValue;
    for (const Json& one : type) all = all | of_type(one);
    return all;
}

ValueTypes types_of(const Json& given, const Json& root, int depth) {
    const Json* schema = resolved(given, root);
    if (schema == nullptr || !schema->is_object() || depth == kMaxDepth) return kAnyValue;
    ValueTypes all = kAnyValue;
    if (schema->contains("type")) all = all & of_type((*schema)["type"]);
    if (schema->contains("const")) all = all & type_of((*schema)["const"]);
    if (schema->contains("enum") && (*schema)["enum"].is_array()) {
        ValueTypes listed = kNoValue;
        for (const Json& value : (*schema)["enum"]) listed = listed | type_of(value);
        all = all & listed;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
        if (!schema->contains(key) || !(*schema)[key].is_array()) continue;
        ValueTypes any = kNoValue;
        for (const Json& one : (*schema)[key]) any = any | types_of(one, root, depth + 1);
        all = all & any;
    }
    return all == kNoValue ? kAnyValue : all;
}

}  // namespace

ValueTypes type_of(const Json& value) {
    if (value.is_string()) return kStringValue;
    if (value.is_number()) return kNumberValue;
    if (value.is_boolean()) return kBooleanValue;
    if (value.is_null()) return kNullValue;
    return value.is_object() ? kObjectValue : kArrayValue;
}

const Json* resolved(const Json& schema, const Json& root) {
    const Json* at = &schema;
    for (int depth = 0; depth < kMaxDepth; ++depth) {
        if (!at->is_object() || !at->contains("$ref") || !(*at)["$ref"].is_string()) return at;
        const std::string& path = (*at)["$ref"].get_ref<const std::string&>();
        at = nullptr;
        for (const char* key : {"$defs", "definitions"}) {
            const std::string prefix = std::string("#/") + key + "/";
            if (!path.starts_with(prefix) || !root.is_object() || !root.contains(key)) continue;
            const Json& defined = root[key];
            const std::string name = path.substr(prefix.size());
            if (defined.is_object() && defined.contains(name)) at = &defined[name];
        }
        if (at == nullptr) return nullptr;
    }
    return nullptr;
}

ValueTypes value_types(const Json& schema, const Json& root) { return types_of(schema, root, 0); }

std::map<std::string, ValueTypes, std::less<>> property_types(const Json& parameters) {
    std::map<std::string, ValueTypes, std::less<>> types;
    if (!parameters.is_object() || !parameters.contains("properties") ||
        !parameters["properties"].is_object())
        return types;
    for (const auto& [key, schema] : parameters["properties"].items())
        types.emplace(key, value_types(schema, parameters));
    return types;
}

}  // namespace espalier::output
