// SPDX-License-Identifier: Apache-2.0
#include "server/grammar_fields.hpp"

#include <fmt/format.h>

#include <utility>

#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;
using grammar::Kind;
using grammar::Specification;

class GrammarReader {
  public:
    GrammarReader(Fields& fields, const OrderedJson& ordered)
        : fields_(fields), ordered_(ordered) {}

    std::optional<GrammarField> read() {
        read_response_format();
        read_structured_outputs();
        read_text(fields_, "regex", Kind::regex);
        read_text(fields_, "ebnf", Kind::ebnf);
        if (const Json* schema = find_schema(fields_, "json_schema"))
            read_schema(fields_, "json_schema", *schema, ordered_field(ordered_, "json_schema"));
        return std::move(found_);
    }

  private:
    void add(Fields& fields, const char* name, Specification specification) {
        const std::string path = fields.path_of(name);
        if (found_)
            return fields.fail_at(
                name, fmt::format("{} says already what the text is to be", found_->field));
        found_ = GrammarField{std::move(specification), path};
    }

    void read_text(Fields& fields, const char* name, Kind kind) {
        std::string text;
        fields.read(name, text);
        if (!fields.has(name)) return;
        add(fields, name, {.kind = kind, .text = std::move(text)});
    }

    // A schema where one may stand as it is or as a text.
    static const Json* find_schema(Fields& fields, const char* name) {
        if (fields.describes()) fields.describe(name, {{"type", {"object", "string", "boolean"}}});
        return fields.find(name);
    }

    // A schema, as it is or as a text; `ordered`: the same with the order of its keys.
    void read_schema(Fields& fields, const char* name, const Json& schema,
                     const OrderedJson& ordered, bool strict = true, bool any_whitespace = true) {
        if (!schema.is_object() && !schema.is_string() && !schema.is_boolean())
            return fields.fail_at(
                name, fmt::format("a JSON Schema is expected, not {}", json_kind(schema)));
        add(fields, name,
            {.kind = Kind::json_schema,
             .text = schema.is_string() ? schema.get<std::string>() : ordered.dump(),
             .strict = strict,
             .any_whitespace = any_whitespace});
    }

    // OpenAI's: text, json_object, json_schema; structural_tag is vLLM's and SGLang's.
    void read_response_format() {
        auto given = fields_.object("response_format");
        if (!given) return;
        constexpr const char* kTypes[] = {"text", "json_object", "json_schema", "structural_tag"};
        const OrderedJson ordered = ordered_field(ordered_, "response_format");
        Fields& inner = *given;
        std::string type;
        inner.require("type");
        inner.read_word("type", type, kTypes, ErrorKind::unsupported);
        if (inner.describes()) read_named_schema(inner, ordered);
        if (type == "json_object")
            add(inner, "type", {.kind = Kind::json_object});
        else if (type == "json_schema")
            read_named_schema(inner, ordered);
        else if (type == "structural_tag")
            add(inner, "type", {.kind = Kind::structural_tag, .text = ordered.dump()});
        fields_.adopt(inner);
    }

    void read_named_schema(Fields& format, const OrderedJson& ordered) {
        if (!format.describes()) format.require("json_schema");
        auto given = format.object("json_schema");
        if (!given) return;
        Fields& inner = *given;
        std::string name, description;
        bool strict = true;
        inner.require("name");
        inner.read("name", name);
        inner.read("description", description);
        inner.read("strict", strict);
        const bool had = found_.has_value();
        inner.require("schema");
        if (const Json* schema = find_schema(inner, "schema"))
            read_schema(inner, "schema", *schema, ordered["json_schema"]["schema"], strict);
        if (found_ && !had) {
            if (strict)
                found_->advice = R"("strict": false holds the answer to some JSON instead)";
            else
                found_->otherwise = {.kind = Kind::json_schema, .text = "{}", .strict = false};
        }
        format.adopt(inner);
    }

    void read_structured_outputs() {
        auto given = fields_.object("structured_outputs");
        if (!given) return;
        const OrderedJson ordered = ordered_field(ordered_, "structured_outputs");
        Fields& inner = *given;
        const bool had = found_.has_value();
        bool tight = false, no_more_properties = true, any_object = false;
        inner.read("disable_any_whitespace", tight);
        inner.read("disable_additional_properties", no_more_properties);
        if (!inner.describes() && inner.has("whitespace_pattern"))
            inner.fail_at("whitespace_pattern", "is not supported by this server",
                          ErrorKind::unsupported);
        if (const Json* schema = find_schema(inner, "json"))
            read_schema(inner, "json", *schema, ordered["json"], no_more_properties, !tight);
        inner.read("json_object", any_object);
        if (any_object)
            add(inner, "json_object", {.kind = Kind::json_object, .any_whitespace = !tight});
        read_text(inner, "regex", Kind::regex);
        read_text(inner, "grammar", Kind::ebnf);
        read_choice(inner);
        if (inner.describes()) inner.describe("structural_tag", {{"type", {"object", "string"}}});
        if (const Json* tag = inner.find("structural_tag"))
            read_tag(inner, *tag, ordered["structural_tag"]);
        if (inner.ok() && !had && !found_)
            fields_.fail_at("structured_outputs",
                            "one of json, json_object, regex, choice, grammar, structural_tag is "
                            "expected");
        fields_.adopt(inner);
    }

    void read_choice(Fields& fields) {
        if (fields.describes())
            fields.describe("choice",
                            {{"type", "array"}, {"items", {{"type", "string"}}}, {"minItems", 1}});
        const Json* given = fields.find("choice");
        if (given == nullptr) return;
        if (!given->is_array() || given->empty())
            return fields.fail_at("choice",
                                  fmt::format("a list of strings is expected, not {}",
                                              given->empty() ? "nothing" : json_kind(*given)));
        Specification made{.kind = Kind::choice};
        fields.read_strings("choice", made.choices, given->size());
        add(fields, "choice", std::move(made));
    }

    void read_tag(Fields& fields, const Json& tag, const OrderedJson& ordered) {
        if (!tag.is_object() && !tag.is_string())
            return fields.fail_at(
                "structural_tag",
                fmt::format("a structural tag is expected, not {}", json_kind(tag)));
        add(fields, "structural_tag",
            {.kind = Kind::structural_tag,
             .text = tag.is_string() ? tag.get<std::string>() : ordered.dump()});
    }

    Fields& fields_;
    const OrderedJson& ordered_;
    std::optional<GrammarField> found_;
};

}  // namespace

std::optional<GrammarField> read_grammar(Fields& fields, const OrderedJson& ordered) {
    return GrammarReader(fields, ordered).read();
}

}  // namespace espalier::server
