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

TEST(Parser, ReadsThePublishedForms) {
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
