// SPDX-License-Identifier: Apache-2.0
// Structural tags: free text in which given begins lead to schemas, grammars or expressions. The
// parts are held to the same rules as if they stood alone.
#include <algorithm>
#include <array>

#include "grammar/prepare.hpp"
#include "grammar/regex.hpp"

namespace espalier::grammar {
namespace {

using Json = OrderedJson;

constexpr std::array<std::string_view, 14> kTagFormats = {
    "const_string", "json_schema", "any_text",       "sequence",
    "or",           "tag",         "triggered_tags", "tags_with_separator",
    "optional",     "plus",        "star",           "grammar",
    "regex",        "token"};

class TagRewriter {
  public:
    explicit TagRewriter(bool strict) : strict_(strict) {}

    // A format, or a value inside one.
    Expected<void> rewrite(Json& value) {
        if (value.is_array()) {
            for (Json& item : value) ESPALIER_RETURN_IF_ERROR(rewrite(item));
            return {};
        }
        if (!value.is_object()) return {};
        ESPALIER_RETURN_IF_ERROR(check_fields(value));
        if (value.contains("type")) ESPALIER_RETURN_IF_ERROR(rewrite_format(value));
        for (auto& [name, field] : value.items())
            if (name != "json_schema") ESPALIER_RETURN_IF_ERROR(rewrite(field));
        return {};
    }

    std::vector<TokenId> named;

  private:
    Expected<void> check_fields(const Json& format) const {
        for (const char* name : {"max_tokens", "max_chars", "style", "any_order"})
            if (format.contains(name) && format[name] != "json" && format[name] != false &&
                !format[name].is_null())
                return fail(ErrorKind::unsupported, "structural_tag: '{}' is not supported", name);
        if (format.contains("json_schema") && format.contains("excludes"))
            return fail(ErrorKind::unsupported,
                        "structural_tag: 'excludes' of a json_schema is not supported");
        // Without a type xgrammar tries one format after the other; only a tag needs none.
        if (!format.contains("type") && !(format.contains("begin") && format.contains("content")))
            return fail(ErrorKind::invalid, "structural_tag: a format has no 'type'");
        return {};
    }

    Expected<void> rewrite_format(Json& format) {
        const std::string type =
            format["type"].is_string() ? format["type"].get<std::string>() : format["type"].dump();
        if (std::ranges::find(kTagFormats, type) == kTagFormats.end())
            return fail(ErrorKind::unsupported, "structural_tag: the format '{}' is not supported",
                        type);
        if (type == "json_schema") {
            if (!format.contains("json_schema"))
                return fail(ErrorKind::invalid, "structural_tag: a json_schema is missing");
            ESPALIER_ASSIGN_OR_RETURN(format["json_schema"],
                                      rewrite_schema(format["json_schema"], strict_));
            format["max_whitespace_cnt"] = kMaxWhitespace;
        } else if (type == "regex") {
            if (!format.contains("pattern") || !format["pattern"].is_string())
                return fail(ErrorKind::invalid, "structural_tag: a regex has no 'pattern'");
            auto written = rewrite_regex(format["pattern"].get<std::string>(), RegexUse::text);
            if (!written)
                return fail(written.error().kind, "structural_tag: {}", written.error().message);
            format = Json{{"type", "grammar"}, {"grammar", fmt::format("root ::= {}", *written)}};
        } else if (type == "grammar") {
            if (!format.contains("grammar") || !format["grammar"].is_string())
                return fail(ErrorKind::invalid, "structural_tag: a grammar is missing");
            ESPALIER_RETURN_IF_ERROR(check_ebnf(format["grammar"].get<std::string>()));
        } else if (type == "token") {
            if (!format.contains("token") || !format["token"].is_number_integer() ||
                format["token"] < 0 || format["token"] > INT32_MAX)
                return fail(ErrorKind::unsupported,
                            "structural_tag: a token is named by its id, not otherwise");
            named.push_back(format["token"].get<TokenId>());
        }
        return {};
    }

    bool strict_;
};

// The first form of structural tags: {"structures": [{"begin", "schema", "end"}], "triggers"}.
Json of_first_form(const Json& tag) {
    Json tags = Json::array();
    for (const Json& one : tag["structures"]) {
        Json content = {{"type", "json_schema"},
                        {"json_schema", one.is_object() ? one.value("schema", Json()) : Json()}};
        tags.push_back(Json{{"begin", one.is_object() ? one.value("begin", Json()) : Json()},
                            {"content", std::move(content)},
                            {"end", one.is_object() ? one.value("end", Json()) : Json()}});
    }
    return Json{{"type", "triggered_tags"},
                {"triggers", tag.value("triggers", Json())},
                {"tags", std::move(tags)}};
}

}  // namespace

Expected<Prepared> prepare_structural_tag(const Specification& specification) {
    ESPALIER_ASSIGN_OR_RETURN(Json tag, parse_bounded_json(specification.text, "structural_tag"));
    if (!tag.is_object()) return fail(ErrorKind::invalid, "structural_tag: not an object");
    Json format;
    if (tag.contains("structures") && tag["structures"].is_array())
        format = of_first_form(tag);
    else if (tag.contains("format"))
        format = tag["format"];
    else
        return fail(ErrorKind::invalid, "structural_tag: it has neither 'format' nor 'structures'");
    TagRewriter rewriter(specification.strict);
    ESPALIER_RETURN_IF_ERROR(rewriter.rewrite(format));
    const Json written = {{"type", "structural_tag"}, {"format", std::move(format)}};
    return Prepared{Prepared::Form::structural_tag, written.dump(), std::move(rewriter.named)};
}

}  // namespace espalier::grammar
