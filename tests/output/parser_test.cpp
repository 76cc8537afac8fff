// SPDX-License-Identifier: Apache-2.0
// Texts of models to reasoning, content and calls: each published form, what only looks like one,
// and the property that a text gives the same however it is cut, held to a plain reading of the
// whole.
#include "output/parser.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "output/parser_oracle.hpp"

namespace espalier::output {
namespace {

using Kind = Event::Kind;

const ToolFormat& tools(std::string_view name) {
    for (const ToolFormat& format : tool_formats())
        if (format.name == name) return format;
    throw std::runtime_error("no such format");
}

const ReasoningFormat& reasoning(std::string_view name) {
    for (const ReasoningFormat& format : reasoning_formats())
        if (format.name == name) return format;
    throw std::runtime_error("no such format");
}

std::string parse(const ParserOptions& options, const std::vector<std::string_view>& pieces) {
    Parser parser(options);
    std::vector<Event> events;
    for (const std::string_view piece : pieces) {
        parser.push(piece, events);
        EXPECT_LE(parser.held_bytes(), kMaxHeldBytes);
    }
    parser.finish(events);
    EXPECT_EQ(parser.held_bytes(), 0u);
    return told(events);
}

ParserOptions options_of(std::string_view format, std::string_view reasoning_format = {}) {
    ParserOptions options;
    options.tools = &tools(format);
    options.functions = {"get_weather", "add", "a-b"};
    options.types["get_weather"] = {{"city", kStringValue}, {"days", kNumberValue}};
    options.types["add"] = {{"note", kStringValue | kNullValue}, {"list", kArrayValue}};
    if (reasoning_format.empty()) return options;
    options.reasoning = &reasoning(reasoning_format);
    options.reasoning_open = true;
    return options;
}

// ---- what published models write ----------------------------------------------------------------

const std::string kV3 =
    "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
    "```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function"
    "<｜tool▁sep｜>add\n```json\n{\"a\": [1, {\"b\": 2}]}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>";
const std::string kV31 =
    "Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": "
    "\"Paris\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>a-b<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>";
const std::string kKimi =
    "Look.<|tool_calls_section_begin|>\n<|tool_call_begin|>functions.get_weather:0\n"
    "<|tool_call_argument_begin|> {\"city\": \"Pa}ris\\\"}\"} <|tool_call_end|>\n"
    "<|tool_call_begin|>add:12<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>";

const std::string kGlm =
    "Look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Pa\"r\\is\n2</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>add\n<arg_key>list"
    "</arg_key>\n<arg_value>[1, {\"b\": \"</arg_value>\"}]</arg_value>\n<arg_key>note</arg_key>"
    "<arg_value>null</arg_value><arg_key>free</arg_key><arg_value>true story</arg_value>\n"
    "</tool_call>\n<tool_call>a-b</tool_call>";

TEST(Parser, ReadsThePublishedForms) {
    EXPECT_EQ(
        parse(options_of("glm47"), {kGlm}),
        "C:Look.\nF:get_weather\nA:{\"city\": \"Pa\\\"r\\\\is\\n2\", \"days\": 3}\nF:add\n"
        "A:{\"list\": [1, {\"b\": \"</arg_value>\"}], \"note\": null, \"free\": \"true story\"}\n"
        "F:a-b\nA:{}");
    EXPECT_EQ(parse(options_of("deepseek_v3"), {kV3}),
              "C:Let me look.\nF:get_weather\nA:{\"city\": \"Paris\"}\nF:add\n"
              "A:{\"a\": [1, {\"b\": 2}]}");
    EXPECT_EQ(parse(options_of("deepseek_v31"), {kV31}),
              "C:Look.\nF:get_weather\nA:{\"city\": \"Paris\"}\nF:a-b\nA:{}");
    EXPECT_EQ(parse(options_of("kimi_k2"), {kKimi}),
              "C:Look.\nF:get_weather functions.get_weather:0\nA:{\"city\": \"Pa}ris\\\"}\"}\n"
              "F:add add:12\nA:{}");
}

TEST(Parser, TakesReasoningApart) {
    for (const char* format : {"deepseek_r1", "deepseek_v31", "kimi_k2"}) {
        const ParserOptions options = options_of("deepseek_v31", format);
        EXPECT_EQ(parse(options, {"a < b</think>yes"}), "R:a < b\nC:yes");
        EXPECT_EQ(parse(options, {"\n<think>\na</think>yes<think>"}), "R:\na\nC:yes<think>");
        EXPECT_EQ(parse(options, {"</think>yes"}), "C:yes");
        EXPECT_EQ(parse(options, {"never ends </thin"}), "R:never ends </thin");
        EXPECT_EQ(parse(options, {"r</think>" + kV31}),
                  "R:r\n" + parse(options_of("deepseek_v31"), {kV31}));
    }
    // A call in the reasoning is thought of, not made, but where the model leaves the end out.
    const std::string inside = "r" + kKimi;
    EXPECT_EQ(parse(options_of("kimi_k2", "deepseek_r1"), {inside}), "R:" + inside);
    EXPECT_EQ(parse(options_of("kimi_k2", "kimi_k2"), {inside}).substr(0, 20),
              "R:rLook.\nF:get_weath");
    // Not open: the marker is text.
    ParserOptions closed = options_of("deepseek_v31", "deepseek_v31");
    closed.reasoning_open = false;
    EXPECT_EQ(parse(closed, {"<think>a</think>"}), "C:<think>a</think>");
}

TEST(Parser, LeavesWhatIsNoCallAsItIs) {
    const std::string texts[] = {
        "",
        "<",
        "<｜tool▁calls▁begin｜>",
        "about <｜tool▁calls▁begin｜> and <｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>[1]<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + std::string(300, 'x') + "<｜tool▁sep｜>{}",
        "<｜tool▁calls▁begin｜>" + std::string(100, ' ') +
            "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}",
        kV3,
        kKimi,
    };
    for (const std::string& text : texts) {
        const std::string expected = text.empty() ? "" : "C:" + text;
        EXPECT_EQ(parse(options_of("deepseek_v31"), {text}), expected);
    }
    // The second of two beginnings is the one.
    EXPECT_EQ(parse(options_of("deepseek_v31"), {"<｜tool▁calls▁begin｜>" + kV31.substr(5)}),
              "C:<｜tool▁calls▁begin｜>\n" + parse(options_of("deepseek_v31"), {kV31.substr(5)}));
}

// The schema says whether a value is a string; what it leaves open is JSON where it can be.
TEST(Parser, PairsAreTheObjectThatTheyStandFor) {
    const auto value = [](const std::string& key, const std::string& text) {
        const std::string all = parse(
            options_of("glm47"), {"<tool_call>get_weather<arg_key>" + key +
                                  "</arg_key><arg_value>" + text + "</arg_value></tool_call>"});
        const std::string head = "F:get_weather\nA:{\"" + key + "\": ";
        EXPECT_TRUE(all.starts_with(head) && all.ends_with("}")) << all;
        return all.substr(head.size(), all.size() - head.size() - 1);
    };
    EXPECT_EQ(value("city", "5"), "\"5\"");
    EXPECT_EQ(value("city", ""), "\"\"");
    EXPECT_EQ(value("city", " {\"a\": 1} "), "\" {\\\"a\\\": 1} \"");
    EXPECT_EQ(value("city", "a\tb\x01"), "\"a\\u0009b\\u0001\"");
    EXPECT_EQ(value("days", " 5\n"), "5");
    EXPECT_EQ(value("days", "five"), "\"five\"");
    EXPECT_EQ(value("days", "true"), "\"true\"");
    EXPECT_EQ(value("days", "{}"), "\"{}\"");
    EXPECT_EQ(value("other", "true"), "true");
    EXPECT_EQ(value("other", "-1.5e3"), "-1.5e3");
    EXPECT_EQ(value("other", "05"), "\"05\"");
    EXPECT_EQ(value("other", "\"5\""), "\"\\\"5\\\"\"");
    EXPECT_EQ(value("other", ""), "\"\"");
    EXPECT_EQ(value("other", std::string(64, '1')), std::string(64, '1'));
    EXPECT_EQ(value("other", std::string(65, '1')), "\"" + std::string(65, '1') + "\"");
    EXPECT_EQ(value("other", "{\"a\": \"</arg_value>\"}"), "{\"a\": \"</arg_value>\"}");
}

TEST(Parser, PairsThatBreakOffAreToldSoFar) {
    const auto told = [](const std::string& text) {
        return parse(options_of("glm47"), {"<tool_call>" + text});
    };
    EXPECT_EQ(told("unknown<arg_key>"), "C:<tool_call>unknown<arg_key>");
    EXPECT_EQ(told("add"), "C:<tool_call>add");
    EXPECT_EQ(told("add<arg_key>"), "F:add\nA:{");
    EXPECT_EQ(told("add<arg_key>a</arg_key><arg_value>te"), "F:add\nA:{\"a\": \"te");
    EXPECT_EQ(told("add<arg_key>a</arg_key><arg_value>te</arg_value"),
              "F:add\nA:{\"a\": \"te</arg_value");
    EXPECT_EQ(told("add<arg_key>a</arg_key>x"), "F:add\nA:{}\nC:<arg_key>a</arg_key>x");
    EXPECT_EQ(told("add</tool_call>\n"), "F:add\nA:{}");
    EXPECT_EQ(told("add</tool_call>\n<tool_"), "F:add\nA:{}");
    EXPECT_EQ(told("add</tool_call>\nx"), "F:add\nA:{}\nC:\nx");
    EXPECT_EQ(told("add</tool_call><tool_call>none</tool_call>"),
              "F:add\nA:{}\nC:<tool_call>none</tool_call>");
}

TEST(Parser, AMarkerInsideAStringBeginsNothing) {
    const std::string text =
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{}\"}<｜tool▁call▁end｜><"
        "｜tool▁calls▁end｜>";
    EXPECT_EQ(parse(options_of("deepseek_v31"), {text}),
              "F:add\nA:{\"x\": \"<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
              "{}\"}");
}

TEST(Parser, WhatFollowsAWholeCallIsContent) {
    const std::string call = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{}";
    const auto rest = [&](const std::string& text) {
        const std::string all = parse(options_of("deepseek_v31"), {call + text});
        EXPECT_TRUE(all.starts_with("F:add\nA:{}")) << all;
        return all.substr(10);
    };
    EXPECT_EQ(rest(""), "");
    EXPECT_EQ(rest(" x"), "\nC: x");
    EXPECT_EQ(rest("\n<｜tool▁call"), "");
    EXPECT_EQ(rest("<｜tool▁calls▁end｜>done"), "\nC:done");
    EXPECT_EQ(rest("\n<｜tool▁call▁begin｜>a-b<｜tool▁sep｜>{}"), "\nF:a-b\nA:{}");
    EXPECT_EQ(rest("<｜tool▁call▁end｜>\n"), "");
    EXPECT_EQ(rest("<｜tool▁call▁end｜>\nx"), "\nC:\nx");
    EXPECT_EQ(rest("<｜tool▁call▁end｜><｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}"),
              "\nC:<｜tool▁call▁begin｜>unknown<｜tool▁sep｜>{}");
    EXPECT_EQ(rest("<｜tool▁call▁end｜><｜tool▁calls▁end｜>" + call), "\nF:add\nA:{}");
}

// ---- however it is cut --------------------------------------------------------------------------

struct Case {
    ParserOptions options;
    std::string text;
};

std::vector<Case> cases() {
    return {{options_of("deepseek_v3"), kV3 + "x"},
            {options_of("deepseek_v3", "deepseek_r1"), "<think>\nhm</think>\n" + kV3},
            {options_of("deepseek_v31", "deepseek_v31"), "hm</think>" + kV31},
            {options_of("kimi_k2"), kKimi},
            {options_of("glm47"), kGlm},
            {options_of("glm47", "deepseek_v31"), "hm</think>" + kGlm + "x"},
            {options_of("kimi_k2", "kimi_k2"), "<think>hm" + kKimi + " done"}};
}

TEST(Parser, EveryCutGivesTheSame) {
    for (const Case& one : cases()) {
        const std::string_view text = one.text;
        const std::string expected = parse(one.options, {text});
        EXPECT_EQ(expected, Oracle(one.options).run(one.text));
        for (std::size_t cut = 0; cut <= text.size(); ++cut)
            ASSERT_EQ(parse(one.options, {text.substr(0, cut), text.substr(cut)}), expected) << cut;
        std::vector<std::string_view> bytes;
        for (std::size_t i = 0; i < text.size(); ++i) bytes.push_back(text.substr(i, 1));
        ASSERT_EQ(parse(one.options, bytes), expected);
    }
}

// Pieces of calls in any order, some bytes changed, cut anywhere.
std::string mutated(const Case& one, std::mt19937_64& random) {
    const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    const ToolFormat& format = *one.options.tools;
    const std::string_view parts[] = {format.section_begin,
                                      format.section_end,
                                      format.call_begin,
                                      format.call_end,
                                      format.after_name,
                                      format.before_name,
                                      format.after_arguments,
                                      format.pairs.key_begin,
                                      format.pairs.key_end,
                                      format.pairs.value_begin,
                                      format.pairs.value_end,
                                      "city",
                                      "5",
                                      "<think>",
                                      "</think>",
                                      "add",
                                      "functions.add:3",
                                      "{}",
                                      "{\"k\": \"}\\\\\"}",
                                      "{\"",
                                      " ",
                                      "\n",
                                      "text",
                                      "<",
                                      "get_weather"};
    std::string text = one.text;
    for (std::size_t edits = below(6); edits > 0; --edits) {
        const std::size_t at = below(text.size() + 1);
        switch (below(4)) {
            case 0:
                text.erase(at, below(30));
                break;
            case 1:
                text.insert(at, parts[below(std::size(parts))]);
                break;
            case 2: {
                const std::size_t from = below(text.size() + 1);
                text.insert(at, text.substr(from, below(80)));
                break;
            }
            default:
                text = text.substr(0, at) + std::string(parts[below(std::size(parts))]);
        }
    }
    return text;
}

TEST(Parser, AnyTextGivesTheSameHoweverItIsCut) {
    std::mt19937_64 random(7);
    const std::vector<Case> all = cases();
    std::vector<Oracle> oracles;
    for (const Case& one : all) oracles.emplace_back(one.options);
    int with_calls = 0;
    for (int round = 0; round < 4000; ++round) {
        const std::size_t which = random() % all.size();
        const Case& one = all[which];
        const std::string text = mutated(one, random);
        const std::string expected = oracles[which].run(text);
        with_calls += expected.find("F:") != std::string::npos ? 1 : 0;
        std::vector<std::string_view> pieces;
        for (std::string_view rest = text; !rest.empty();) {
            const std::uint64_t longest = random() % 3 == 0 ? 40 : 3;
            const std::size_t size = 1 + random() % longest;
            pieces.push_back(rest.substr(0, size));
            rest.remove_prefix(std::min(size, rest.size()));
        }
        ASSERT_EQ(parse(one.options, {text}), expected) << text;
        ASSERT_EQ(parse(one.options, pieces), expected) << text;
        if (expected.find("F:") == std::string::npos && !one.options.reasoning_open) {
            ASSERT_EQ(expected, text.empty() ? "" : "C:" + text);
        }
    }
    EXPECT_GT(with_calls, 1000);
}

TEST(Parser, HoldsLittleAndIsLinearInItsText) {
    std::string text;
    for (int i = 0; i < 40'000; ++i) text += "<｜tool▁calls▁begin｜>";
    EXPECT_EQ(parse(options_of("deepseek_v31"), {text}), "C:" + text);
    std::string deep = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>";
    const std::string open = "{" + std::string(1'000'000, '[');
    EXPECT_EQ(parse(options_of("deepseek_v31"), {deep + open}), "F:add\nA:" + open);
}

}  // namespace
}  // namespace espalier::output
