// SPDX-License-Identifier: Apache-2.0
// The structural tags of calls: the parts in their order, markers as tokens where there are any.
#include "output/tool_grammar.hpp"

#include <gtest/gtest.h>

#include "output/small_tokenizer.hpp"

namespace espalier::output {
namespace {

using Json = nlohmann::ordered_json;

// The format as a line: texts as they are, tokens by their bytes, ~ a regex, {} a schema.
std::string line(const Json& format, const text::Tokenizer& known) {
    const std::string type = format["type"];
    if (type == "const_string") return format["value"];
    if (type == "token") return "'" + std::string(known.token_bytes(format["token"])) + "'";
    if (type == "json_schema") return format["json_schema"].dump();
    if (type == "regex") return "~" + format["pattern"].get<std::string>();
    if (type == "optional") return "(" + line(format["content"], known) + ")?";
    if (type == "star") return "(" + line(format["content"], known) + ")*";
    if (type == "tag")
        return format["begin"].get<std::string>() + line(format["content"], known) +
               format["end"].get<std::string>();
    if (type == "triggered_tags") {
        const bool once = format["stop_after_first"];
        return (once ? "text once[" : "text[") + line(format["tags"][0], known) + "]";
    }
    std::string made;
    for (const Json& element : format["elements"]) {
        if (type == "or" && !made.empty()) made += "|";
        made += line(element, known);
    }
    return type == "or" ? "<" + made + ">" : made;
}

std::string made(std::string_view format, const std::vector<Function>& functions,
                 const CallRules& rules, bool has_markers = true) {
    const text::Tokenizer known = tokenizer(has_markers);
    for (const ToolFormat& one : tool_formats())
        if (one.name == format) {
            const auto specification = call_grammar(one, functions, rules, known);
            if (!specification) return specification.error().message;
            EXPECT_EQ(specification->kind, grammar::Kind::structural_tag);
            return line(Json::parse(specification->text)["format"], known);
        }
    return "no such format";
}

const std::vector<Function> kTwo = {
    {.name = "f", .parameters = Json::parse(R"({"z":1,"a":2})"), .strict = {}},
    {.name = "g", .parameters = Json::parse(R"({"type":"object","x":1})"), .strict = false}};
const std::vector<Function> kOne = {{.name = "f", .parameters = nullptr, .strict = true}};

TEST(ToolGrammar, RequiredCallsAreTheWholeText) {
    EXPECT_EQ(made("deepseek_v31", kOne, {.required = true, .parallel = false}),
              "'<｜tool▁calls▁begin｜>''<｜tool▁call▁begin｜>'f'<｜tool▁sep｜>'"
              R"({"type":"object"})"
              "'<｜tool▁call▁end｜>''<｜tool▁calls▁end｜>'");
    EXPECT_EQ(made("deepseek_v3", kOne, {.required = true, .parallel = false}, false),
              "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
              R"({"type":"object"})"
              "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
}

// The order of a schema's keys is kept; a function that is not strict takes any object.
TEST(ToolGrammar, ParallelCallsRepeat) {
    const std::string call =
        "<'<|tool_call_begin|>'functions.f:~[0-9]{1,4}'<|tool_call_argument_begin|>'"
        R"({"z":1,"a":2})"
        "'<|tool_call_end|>'|'<|tool_call_begin|>'functions.g:~[0-9]{1,4}"
        "'<|tool_call_argument_begin|>'"
        R"({"type":"object"})"
        "'<|tool_call_end|>'>";
    EXPECT_EQ(
        made("kimi_k2", kTwo, {.required = true}),
        "'<|tool_calls_section_begin|>'" + call + "(" + call + ")*'<|tool_calls_section_end|>'");
    EXPECT_EQ(made("kimi_k2", kTwo, {.parallel = false}),
              "~(.|\\n)*('<|tool_calls_section_begin|>'" + call + "'<|tool_calls_section_end|>')?");
    EXPECT_TRUE(made("kimi_k2", kTwo, {.parallel = false}, false)
                    .starts_with("text once[<|tool_calls_section_begin|><<|tool_call_begin|>"));
}

std::string pairs(const char* schema, bool has_markers = true, std::optional<bool> strict = true) {
    return made("glm47", {{.name = "f", .parameters = Json::parse(schema), .strict = strict}},
                {.required = true, .parallel = false}, has_markers);
}

TEST(ToolGrammar, PairsFollowTheProperties) {
    EXPECT_EQ(pairs(R"({"properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                        "required": ["a"]})"),
              "'<tool_call>'f'<arg_key>'a'</arg_key>''<arg_value>'~(.|\\n)*'</arg_value>'"
              "('<arg_key>'b'</arg_key>''<arg_value>'{\"type\":\"integer\"}'</arg_value>')?"
              "'</tool_call>'");
    EXPECT_EQ(pairs(R"({"properties": {"a": {"type": "string", "minLength": 2}},
                        "required": ["a"]})",
                    false),
              "<tool_call>f<arg_key>a</arg_key><arg_value>~[^<]{2,}</arg_value></tool_call>");
    EXPECT_EQ(
        pairs(R"({"properties": {"a": {"$ref": "#/$defs/E"}}, "required": ["a"],
                        "$defs": {"E": {"enum": ["x", "y"]}}})"),
        "'<tool_call>'f'<arg_key>'a'</arg_key>''<arg_value>'<x|y>'</arg_value>''</tool_call>'");
    EXPECT_EQ(
        pairs(R"({"properties": {"a": {"$ref": "#/$defs/E"}}, "required": ["a"],
                        "$defs": {"E": {"type": "array"}}})"),
        "'<tool_call>'f'<arg_key>'a'</arg_key>''<arg_value>'{\"$ref\":\"#/$defs/E\",\"$defs\":"
        "{\"E\":{\"type\":\"array\"}}}'</arg_value>''</tool_call>'");
    EXPECT_EQ(pairs(R"({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
                        "required": ["a"]})"),
              "'<tool_call>'f'<arg_key>'a'</arg_key>''<arg_value>'~([^ \\n\\r\\t{\\[<](.|\\n)*)?"
              "'</arg_value>''</tool_call>'");
    EXPECT_EQ(pairs("{}", true, false),
              "'<tool_call>'f('<arg_key>'~[A-Za-z0-9_.-]{1,64}'</arg_key>''<arg_value>'"
              "<~([^ \\n\\r\\t{\\[<](.|\\n)*)?|{\"type\":\"object\"}|{\"type\":\"array\"}>"
              "'</arg_value>')*'</tool_call>'");
}

TEST(ToolGrammar, PairsRefuseWhatTheyCannotHold) {
    EXPECT_EQ(pairs(R"({"properties": {"a": {"type": "string", "pattern": "x"}}})"),
              "tools: parameter 'a': 'pattern' of a string cannot be held where arguments are "
              "plain text, "
              "as this model writes them");
    EXPECT_TRUE(pairs(R"({"properties": {"a": {"anyOf": [{"type": "string"},
                          {"type": "integer", "minimum": 3}]}}})")
                    .starts_with("tools: parameter 'a': alternatives between strings and others"));
}

TEST(ToolGrammar, CallsWithoutASectionFollowEachOther) {
    const std::string call = "'<tool_call>'f'</tool_call>'";
    const std::vector<Function> bare = {
        {.name = "f", .parameters = Json::parse(R"({"properties": {}})"), .strict = true}};
    EXPECT_EQ(made("glm47", bare, {.required = true}), call + "(" + call + ")*");
    EXPECT_EQ(made("glm47", bare, {.parallel = false}), "~(.|\\n)*(" + call + ")?");
}

TEST(ToolGrammar, TextMayBeHeldBesideCalls) {
    const grammar::Specification regex{.kind = grammar::Kind::regex, .text = "[0-9]+"};
    EXPECT_EQ(made("deepseek_v31", kOne, {.parallel = false, .text = regex}),
              "<~[0-9]+|'<｜tool▁calls▁begin｜>''<｜tool▁call▁begin｜>'f'<｜tool▁sep｜>'"
              R"({"type":"object"})"
              "'<｜tool▁call▁end｜>''<｜tool▁calls▁end｜>'>");
    const grammar::Specification choice{.kind = grammar::Kind::choice, .choices = {"a", "b"}};
    EXPECT_TRUE(made("deepseek_v31", kOne, {.text = choice}).starts_with("<<a|b>|'"));
}

}  // namespace
}  // namespace espalier::output
