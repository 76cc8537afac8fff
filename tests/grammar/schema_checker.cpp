// SPDX-License-Identifier: Apache-2.0
#include "grammar/schema_checker.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "grammar/plain_regex.hpp"

namespace espalier::test {
namespace {

using Json = nlohmann::ordered_json;

std::size_t code_points(const std::string& text) {
    return static_cast<std::size_t>(std::ranges::count_if(
        text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

class Checker {
  public:
    Checker(const Json& root, bool strict) : root_(root), strict_(strict) {}

    std::string error(const Json& value, const Json& schema) {
        if (schema.is_boolean()) return schema.get<bool>() ? "" : "false";
        if (schema.contains("$ref")) return error(value, target(schema["$ref"].get<std::string>()));
        if (schema.contains("const") && !equal(value, schema["const"])) return "const";
        if (schema.contains("enum") && std::ranges::none_of(schema["enum"], [&](const Json& one) {
                return equal(value, one);
            }))
            return "enum: " + value.dump();
        if (schema.contains("type") && !of_type(value, schema["type"]))
            return "type: " + value.dump();
        for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
            if (!schema.contains(keyword)) continue;
            std::size_t valid = 0;
            std::string first;
            for (const Json& arm : schema[keyword]) {
                const std::string wrong = error(value, arm);
                if (wrong.empty())
                    ++valid;
                else if (first.empty())
                    first = wrong;
            }
            const std::string_view name = keyword;
            if ((name == "anyOf" && valid == 0) || (name == "oneOf" && valid != 1) ||
                (name == "allOf" && valid != schema[keyword].size()))
                return std::string(name) + " (" + first + ")";
        }
        if (value.is_string()) return of_string(value.get<std::string>(), schema);
        if (value.is_number()) return of_number(value, schema);
        if (value.is_array()) return of_array(value, schema);
        if (value.is_object()) return of_object(value, schema);
        return "";
    }

  private:
    const Json& target(const std::string& pointer) const {
        return pointer == "#" ? root_ : root_.at(Json::json_pointer(pointer.substr(1)));
    }

    // nlohmann compares 1 and 1.0 as equal, and objects by order: members here are few.
    static bool equal(const Json& a, const Json& b) {
        return nlohmann::json::parse(a.dump()) == nlohmann::json::parse(b.dump());
    }

    static bool of_type(const Json& value, const Json& type) {
        if (type.is_array())
            return std::ranges::any_of(type, [&](const Json& one) { return of_type(value, one); });
        const std::string name = type.get<std::string>();
        if (name == "integer")
            return value.is_number_integer() ||
                   (value.is_number_float() &&
                    value.get<double>() == std::floor(value.get<double>()));
        return name == "number" ? value.is_number() : name == value.type_name();
    }

    static std::string of_string(const std::string& text, const Json& schema) {
        if (schema.contains("minLength") && code_points(text) < schema["minLength"])
            return "minLength";
        if (schema.contains("maxLength") && code_points(text) > schema["maxLength"])
            return "maxLength";
        if (schema.contains("pattern") &&
            !PlainRegex(schema["pattern"].get<std::string>()).search(text))
            return "pattern " + schema["pattern"].get<std::string>() + ": " + text;
        if (schema.contains("format") && !of_format(text, schema["format"].get<std::string>()))
            return "format " + schema["format"].get<std::string>() + ": " + text;
        return "";
    }

    // Rough shapes: what would be wrong with them would be wrong for any reader.
    static bool of_format(const std::string& text, const std::string& format) {
        static const std::map<std::string, std::string> shapes = {
            {"date", "\\d{4}-\\d\\d-\\d\\d"},
            {"time", "\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"},
            {"date-time",
             "\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\d(\\.\\d+)?(Z|[+-]\\d\\d:\\d\\d)"},
            {"duration", "P[0-9YMDTHSW]+"},
            {"email", "[^@\\s]+@[^@\\s]+"},
            {"hostname", "[a-z0-9.-]+"},
            {"ipv4", "(\\d{1,3}\\.){3}\\d{1,3}"},
            {"ipv6", "[0-9a-fA-F:]+"},
            {"uuid", "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
            {"uri", "[A-Za-z][A-Za-z0-9+.-]*://[^\\s]+"}};
        return PlainRegex(shapes.at(format)).full_match(text);
    }

    static std::string of_number(const Json& value, const Json& schema) {
        const double x = value.get<double>();
        const auto bound = [&](const char* keyword) { return schema[keyword].get<double>(); };
        if (schema.contains("minimum") && x < bound("minimum")) return "minimum: " + value.dump();
        if (schema.contains("maximum") && x > bound("maximum")) return "maximum: " + value.dump();
        if (schema.contains("exclusiveMinimum") && x <= bound("exclusiveMinimum"))
            return "exclusiveMinimum: " + value.dump();
        if (schema.contains("exclusiveMaximum") && x >= bound("exclusiveMaximum"))
            return "exclusiveMaximum: " + value.dump();
        // Beyond 2⁵³ a double no longer says what the digits did.
        if (schema.contains("multipleOf") && std::abs(x) < 9e15 &&
            std::fmod(x, bound("multipleOf")) != 0)
            return "multipleOf: " + value.dump();
        return "";
    }

    std::string of_array(const Json& value, const Json& schema) {
        if (schema.contains("minItems") && value.size() < schema["minItems"]) return "minItems";
        if (schema.contains("maxItems") && value.size() > schema["maxItems"]) return "maxItems";
        const std::size_t prefix =
            schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
        for (std::size_t i = 0; i < value.size(); ++i) {
            std::string wrong;
            if (i < prefix)
                wrong = error(value[i], schema["prefixItems"][i]);
            else if (schema.contains("items"))
                wrong = error(value[i], schema["items"]);
            else if (prefix > 0 && strict_)
                wrong = "an item too many";
            if (!wrong.empty()) return "[" + std::to_string(i) + "] " + wrong;
        }
        return "";
    }

    std::string of_object(const Json& value, const Json& schema) {
        if (schema.contains("minProperties") && value.size() < schema["minProperties"])
            return "minProperties";
        if (schema.contains("maxProperties") && value.size() > schema["maxProperties"])
            return "maxProperties";
        if (schema.contains("required"))
            for (const Json& name : schema["required"])
                if (!value.contains(name.get<std::string>())) return "required: " + name.dump();
        for (const auto& [name, member] : value.items()) {
            std::string wrong;
            if (schema.contains("properties") && schema["properties"].contains(name))
                wrong = error(member, schema["properties"][name]);
            else if (schema.contains("additionalProperties"))
                wrong = error(member, schema["additionalProperties"]);
            else if (schema.contains("properties") && strict_)
                wrong = "a member too many";
            if (!wrong.empty()) return name + ": " + wrong;
        }
        return "";
    }

    const Json& root_;
    bool strict_;
};

}  // namespace

std::string schema_error(const std::string& text, const Json& schema, bool strict) {
    const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) return "not JSON";
    return Checker(schema, strict).error(value, schema);
}

}  // namespace espalier::test
