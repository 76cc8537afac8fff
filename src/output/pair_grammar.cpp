// SPDX-License-Identifier: Apache-2.0
#include "output/pair_grammar.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "output/structural_tag.hpp"
#include "output/value_types.hpp"

namespace espalier::output {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kAnnotations = {"title",      "description", "default",   "examples",
                                     "deprecated", "readOnly",    "writeOnly", "$comment"};
constexpr std::array kTextWords = {"type", "enum", "const", "minLength", "maxLength"};
constexpr std::array kUnionWords = {"type", "anyOf", "oneOf"};

Json regex(std::string pattern) { return {{"type", "regex"}, {"pattern", std::move(pattern)}}; }

class PairWriter {
  public:
    PairWriter(const PairGrammar& grammar, const Json& root) : grammar_(grammar), root_(root) {}

    Expected<void> properties(Json& elements) const {
        const Json required = root_.value("required", Json::array());
        for (const auto& [key, schema] : root_["properties"].items()) {
            ESPALIER_ASSIGN_OR_RETURN(Json value, value_format(key, schema));
            Json one = pair(key, std::move(value));
            const bool needed = required.is_array() &&
                                std::find(required.begin(), required.end(), key) != required.end();
            elements.push_back(needed ? std::move(one)
                                      : Json{{"type", "optional"}, {"content", std::move(one)}});
        }
        return {};
    }

    Json any_pairs() const {
        Json one = Json::array();
        grammar_.append(one, grammar_.format.key_begin);
        one.push_back(regex("[A-Za-z0-9_.-]{1,64}"));
        close_key(one);
        one.push_back(free_value(kAnyValue));
        grammar_.append(one, grammar_.format.value_end);
        return {{"type", "star"}, {"content", sequence(std::move(one))}};
    }

  private:
    void close_key(Json& elements) const {
        grammar_.append(elements, std::string(grammar_.format.key_end) +
                                      std::string(grammar_.format.value_begin));
    }
    Json pair(const std::string& key, Json value) const {
        Json elements = Json::array();
        grammar_.append(elements, std::string(grammar_.format.key_begin) + key);
        close_key(elements);
        elements.push_back(std::move(value));
        grammar_.append(elements, grammar_.format.value_end);
        return sequence(std::move(elements));
    }

    Expected<Json> value_format(const std::string& key, const Json& given) const {
        const ValueTypes types = value_types(given, root_);
        const Json* schema = resolved(given, root_);
        if (types == kStringValue && schema != nullptr) return text_value(key, *schema);
        if ((types & kStringValue) != kNoValue) {
            if (!is_plain(given)) return refuse(key, "alternatives between strings and others");
            return free_value(types);
        }
        // Definitions go with it.
        Json held = given;
        for (const char* definitions : {"$defs", "definitions"})
            if (root_.contains(definitions)) held[definitions] = root_[definitions];
        return Json{{"type", "json_schema"}, {"json_schema", std::move(held)}};
    }

    Expected<Json> text_value(const std::string& key, const Json& schema) const {
        for (const auto& [word, value] : schema.items())
            if (!is_one_of(word, kTextWords) && !is_one_of(word, kAnnotations))
                return refuse(key, fmt::format("'{}' of a string", word));
        Json listed = Json::array();
        if (schema.contains("const")) listed.push_back(schema["const"]);
        if (schema.contains("enum")) listed = schema["enum"];
        if (!listed.empty()) {
            Json choices = Json::array();
            for (const Json& value : listed)
                choices.push_back({{"type", "const_string"}, {"value", value}});
            if (choices.size() == 1) return std::move(choices[0]);
            return Json{{"type", "or"}, {"elements", std::move(choices)}};
        }
        if (!schema.contains("minLength") && !schema.contains("maxLength"))
            return regex(character() + "*");
        const auto length = [&](const char* word) {
            return schema.contains(word) ? schema[word].dump() : std::string();
        };
        const std::string least = length("minLength");
        return regex(character() +
                     fmt::format("{{{},{}}}", least.empty() ? "0" : least, length("maxLength")));
    }

    // Any text that will be read as a string or as a scalar, or JSON where that may stand there.
    Json free_value(ValueTypes types) const {
        Json choices = Json::array();
        choices.push_back(regex("([^ \\n\\r\\t{\\[<]" + character() + "*)?"));
        for (const auto& [type, name] :
             {std::pair(kObjectValue, "object"), std::pair(kArrayValue, "array")})
            if ((types & type) != kNoValue)
                choices.push_back({{"type", "json_schema"}, {"json_schema", {{"type", name}}}});
        if (choices.size() == 1) return std::move(choices[0]);
        return {{"type", "or"}, {"elements", std::move(choices)}};
    }

    // Nothing but types and annotations, in all alternatives.
    bool is_plain(const Json& given) const {
        const Json* schema = resolved(given, root_);
        if (schema == nullptr || !schema->is_object()) return schema != nullptr;
        for (const auto& [word, value] : schema->items()) {
            if (is_one_of(word, kAnnotations) || word == "type") continue;
            if (!is_one_of(word, kUnionWords) || !value.is_array()) return false;
            if (!std::ranges::all_of(value, [&](const Json& one) {
                    return one.is_object() && !one.contains("$ref") && is_plain(one);
                }))
                return false;
        }
        return true;
    }

    std::string character() const { return grammar_.markers_are_tokens ? "(.|\\n)" : "[^<]"; }

    template <std::size_t kCount>
    static bool is_one_of(std::string_view word, const std::array<const char*, kCount>& words) {
        return std::ranges::find(words, word) != words.end();
    }

    static tl::unexpected<Error> refuse(const std::string& key, std::string_view what) {
        return fail_field(ErrorKind::unsupported, "tools",
                          "parameter '{}': {} cannot be held where arguments are plain text, as "
                          "this model writes them",
                          key.substr(0, 80), what);
    }

    const PairGrammar& grammar_;
    const Json& root_;
};

}  // namespace

Expected<void> append_pairs(const PairGrammar& grammar, const Json& schema, Json& elements) {
    const PairWriter writer(grammar, schema);
    if (schema.is_object() && schema.contains("properties") && schema["properties"].is_object())
        return writer.properties(elements);
    elements.push_back(writer.any_pairs());
    return {};
}

}  // namespace espalier::output
