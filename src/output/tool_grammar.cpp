// SPDX-License-Identifier: Apache-2.0
#include "output/tool_grammar.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "grammar/schema.hpp"
#include "output/pair_grammar.hpp"
#include "output/structural_tag.hpp"

namespace espalier::output {
namespace {

using Json = nlohmann::ordered_json;

Json text_format(std::string_view text) { return {{"type", "const_string"}, {"value", text}}; }

// One of several, or the one.
Json one_of(Json elements) {
    if (elements.size() == 1) return std::move(elements[0]);
    return {{"type", "or"}, {"elements", std::move(elements)}};
}

class Builder {
  public:
    Builder(const ToolFormat& format, const text::Tokenizer& tokenizer)
        : format_(format), tokenizer_(tokenizer), markers_(markers(format)) {}

    // Appends the text, its markers as tokens where the tokenizer has them.
    void append(Json& elements, std::string_view text) const {
        while (!text.empty()) {
            std::size_t first = text.size(), size = 0;
            for (const std::string_view marker : markers_)
                if (const std::size_t at = text.find(marker); at < first) {
                    first = at;
                    size = marker.size();
                }
            if (first > 0) elements.push_back(text_format(text.substr(0, first)));
            if (size > 0) elements.push_back(marker(text.substr(first, size)));
            text.remove_prefix(first + size);
        }
    }

    Json marker(std::string_view text) const {
        if (const auto id = tokenizer_.id_of(text)) return {{"type", "token"}, {"token", *id}};
        return text_format(text);
    }

    Expected<Json> call(const Function& function) const {
        Json elements = Json::array();
        std::string head(format_.call_begin);
        head += format_.before_name;
        if (format_.numbered) {
            append(elements, head + "functions." + function.name + ":");
            elements.push_back({{"type", "regex"}, {"pattern", "[0-9]{1,4}"}});
            head.clear();
        } else {
            head += function.name;
        }
        append(elements, head + std::string(format_.after_name));
        if (format_.has_pairs()) {
            ESPALIER_RETURN_IF_ERROR(append_pairs(pairs(), function.schema(), elements));
        } else {
            elements.push_back({{"type", "json_schema"}, {"json_schema", function.schema()}});
        }
        append(elements, std::string(format_.after_arguments) + std::string(format_.call_end));
        return sequence(std::move(elements));
    }

    // The calls of a section, without its own markers.
    Expected<Json> calls(const std::vector<Function>& functions, bool parallel) const {
        Json each = Json::array();
        for (const Function& function : functions) {
            ESPALIER_ASSIGN_OR_RETURN(Json one, call(function));
            each.push_back(std::move(one));
        }
        Json any = one_of(std::move(each));
        if (!parallel) return any;
        Json more = Json::array();
        append(more, format_.between);
        more.push_back(any);
        Json rest = {
            {"type", "star"},
            {"content", more.size() == 1 ? std::move(more[0]) : sequence(std::move(more))}};
        return sequence(Json::array({std::move(any), std::move(rest)}));
    }

    Expected<Json> section(const std::vector<Function>& functions, bool parallel) const {
        ESPALIER_ASSIGN_OR_RETURN(Json inner, calls(functions, parallel));
        if (format_.section_begin.empty()) return inner;
        return sequence(Json::array(
            {marker(format_.section_begin), std::move(inner), marker(format_.section_end)}));
    }

    // Free text, and a section behind it. Where markers are tokens, none of them is text, so the
    // first one leaves the text; where they are not, a section's first marker is looked for in it.
    Expected<Json> text_then_section(const std::vector<Function>& functions, bool parallel) const {
        if (has_tokens() || format_.section_begin.empty()) {
            ESPALIER_ASSIGN_OR_RETURN(Json inner, section(functions, parallel));
            return sequence(
                Json::array({{{"type", "regex"}, {"pattern", has_tokens() ? "(.|\\n)*" : "[^<]*"}},
                             {{"type", "optional"}, {"content", std::move(inner)}}}));
        }
        ESPALIER_ASSIGN_OR_RETURN(Json inner, calls(functions, parallel));
        const Json tag = {{"type", "tag"},
                          {"begin", format_.section_begin},
                          {"content", std::move(inner)},
                          {"end", format_.section_end}};
        return Json{{"type", "triggered_tags"},
                    {"triggers", Json::array({format_.section_begin})},
                    {"tags", Json::array({tag})},
                    {"stop_after_first", !parallel}};
    }

  private:
    bool has_tokens() const { return tokenizer_.id_of(format_.opening()).has_value(); }
    PairGrammar pairs() const {
        return {.format = format_.pairs,
                .append = [this](Json& elements, std::string_view text) { append(elements, text); },
                .markers_are_tokens = has_tokens()};
    }

    const ToolFormat& format_;
    const text::Tokenizer& tokenizer_;
    const std::vector<std::string_view> markers_;
};

// Specification's demand as a part of a structural tag.
Expected<Json> as_format(const grammar::Specification& text) {
    using grammar::Kind;
    switch (text.kind) {
        case Kind::json_object:
            return Json{{"type", "json_schema"}, {"json_schema", {{"type", "object"}}}};
        case Kind::json_schema: {
            ESPALIER_ASSIGN_OR_RETURN(Json schema,
                                      grammar::parse_bounded_json(text.text, "json_schema"));
            return Json{{"type", "json_schema"}, {"json_schema", std::move(schema)}};
        }
        case Kind::regex:
            return Json{{"type", "regex"}, {"pattern", text.text}};
        case Kind::ebnf:
            return Json{{"type", "grammar"}, {"grammar", text.text}};
        case Kind::structural_tag:
        case Kind::choice:
            break;
    }
    CHECK(text.kind == Kind::choice, "a structural tag of its own beside calls");
    Json choices = Json::array();
    for (const std::string& choice : text.choices) choices.push_back(text_format(choice));
    return one_of(std::move(choices));
}

}  // namespace

Json Function::schema() const {
    if (parameters.is_null() || strict == false) return {{"type", "object"}};
    return parameters;
}

Expected<grammar::Specification> call_grammar(const ToolFormat& format,
                                              const std::vector<Function>& functions,
                                              const CallRules& rules,
                                              const text::Tokenizer& tokenizer) {
    const Builder builder(format, tokenizer);
    Expected<Json> made = rules.required || rules.text
                              ? builder.section(functions, rules.parallel)
                              : builder.text_then_section(functions, rules.parallel);
    if (!made) return tl::unexpected<Error>(std::move(made.error()));
    if (!rules.required && rules.text) {
        ESPALIER_ASSIGN_OR_RETURN(Json text, as_format(*rules.text));
        made = one_of(Json::array({std::move(text), std::move(*made)}));
    }
    return grammar::Specification{
        .kind = grammar::Kind::structural_tag,
        .text = Json({{"type", "structural_tag"}, {"format", std::move(*made)}}).dump()};
}

}  // namespace espalier::output
