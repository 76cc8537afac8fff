// SPDX-License-Identifier: Apache-2.0
// Which bytes of a rendered text the request wrote, and that no special token is made of them.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "chat/template.hpp"
#include "support/paths.hpp"

namespace espalier::chat {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kTests = std::filesystem::path(test::source_directory()) / "tests";

Rendered render(const std::string& source, const Json& context) {
    auto compiled = Template::compile(source);
    if (!compiled) throw std::runtime_error(compiled.error().message);
    compiled->define("bos_token", "<｜begin▁of▁sentence｜>");
    compiled->define("eos_token", "<｜end▁of▁sentence｜>");
    auto rendered = compiled->render(context);
    if (!rendered) throw std::runtime_error(rendered.error().message);
    return std::move(*rendered);
}

// The text with [ and ] around content.
std::string marked(const Rendered& rendered) {
    std::string out;
    std::size_t at = 0;
    for (const Range range : rendered.content) {
        out += rendered.text.substr(at, range.begin - at) + "[" +
               rendered.text.substr(range.begin, range.end - range.begin) + "]";
        at = range.end;
    }
    return out + rendered.text.substr(at);
}

TEST(Content, IsFollowedThroughEveryOperation) {
    const Json context = {
        {"c", " user,text "}, {"d", "B"}, {"tools", {{{"k", "v\n"}}}}, {"list", {"p", "q"}}};
    const std::pair<const char*, const char*> cases[] = {
        {"a{{ c }}b", "a[ user,text ]b"},
        {"{{ 'a' + c + 'b' }}", "a[ user,text ]b"},
        {"{{ 'a' ~ d ~ 1 }}", "a[B]1"},
        {"{{ c|trim }}", "[user,text]"},
        {"{{ ('x' + c).strip() }}", "x[ user,text]"},
        {"{{ ('x' + c)[0:3] }}", "x[ u]"},
        {"{{ ('ab' + d)[::-1] }}", "[B]ba"},
        {"{{ c.split(',')[1] }}", "[text ]"},
        {"{{ c.rsplit(',', 1)[0] }}", "[ user]"},
        {"{{ c.split() | join('-') }}", "[user,text]"},
        {"{{ c|replace(',', '+') }}", "[ user]+[text ]"},
        {"{{ 'a,b'|replace(',', d) }}", "a[B]b"},
        {"{{ c.replace('user', 'me', 1) }}", "[ ]me[,text ]"},
        {"{{ 'ab' if c else d }}", "ab"},
        {"{{ d|lower + 'X'|lower }}", "[b]x"},
        {"{{ d * 2 + 'a' * 2 }}", "[BB]aa"},
        {"{{ list|join(', ') }}", "[p], [q]"},
        {"{{ ', '.join(list) }}", "[p], [q]"},
        {"{{ tools|tojson }}", "[{\"[k]\": \"[v\\n]\"}]"},
        {"{{ [d, 'x'] }}", "['[B]', 'x']"},
        {"{% for x in list %}<{{ x }}>{% endfor %}", "<[p]><[q]>"},
        {"{% for x in d + 'y' %}<{{ x }}>{% endfor %}", "<[B]><y>"},
        {"{% set x %}<{{ d }}>{% endset %}{{ x }}{{ x }}", "<[B]><[B]>"},
        {"{% macro m(a) %}({{ a }}){% endmacro %}{{ m(d) + m('z') }}", "([B])(z)"},
        {"{% filter trim %} {{ c }}{% endfilter %}", "[user,text]"},
        {"{% set ns = namespace(t='') %}{% for x in list %}{% set ns.t = ns.t + x + '.' %}{% "
         "endfor %}"
         "{{ ns.t }}",
         "[p].[q]."},
        {"{{ c.removeprefix(' ') }}{{ 'x' + d|default('y') }}", "[user,text ]x[B]"},
        {"{{ bos_token }}{{ d }}", "<｜begin▁of▁sentence｜>[B]"},
        {"{{ list|map('replace', 'p', 'x')|join }}", "x[q]"},
        {"{{ c|length }}{{ d == 'B' }}", "11True"},
    };
    for (const auto& [source, expected] : cases)
        EXPECT_EQ(marked(render(source, context)), expected) << source;
}

TEST(Content, AConstantOfTheModelCannotBeReplacedByARequest) {
    EXPECT_EQ(marked(render("{{ bos_token }}", {{"bos_token", "evil"}})),
              "<｜begin▁of▁sentence｜>");
}

// Letters of messages' content become others of the same length; template and tools stay.
void shift_letters(Json& value) {
    if (value.is_string()) {
        std::string text = value;
        for (char& c : text)
            if (c >= 'a' && c <= 'z') c = c == 'z' ? 'a' : static_cast<char>(c + 1);
        value = text;
    } else if (value.is_array()) {
        for (Json& item : value)
            if (item.is_object() && item.contains("text")) shift_letters(item["text"]);
    }
}

TEST(Content, WhatChangesWithAMessageLiesInsideOfIt) {
    std::ifstream in(kTests / "chat/data/published.jsonl");
    int compared = 0;
    for (std::string line; std::getline(in, line);) {
        const Json golden = Json::parse(line);
        // A template that looks for </think> in the content must not find it in either.
        if (golden[2].is_null() || line.find("</think>\\n") != std::string::npos) continue;
        const auto source = read_text_file(
            kTests / "chat/data/templates" / (golden[0].get<std::string>() + ".jinja"), 1 << 20);
        ASSERT_TRUE(source);
        Json other = golden[1];
        for (Json& message : other["messages"]) shift_letters(message["content"]);
        const Rendered one = render(*source, golden[1]);
        const Rendered two = render(*source, other);
        ASSERT_EQ(one.content, two.content) << line;
        std::size_t at = 0;
        for (const Range range : one.content) {
            EXPECT_EQ(one.text.substr(at, range.begin - at), two.text.substr(at, range.begin - at));
            at = range.end;
        }
        EXPECT_EQ(one.text.substr(at), two.text.substr(at));
        if (!golden[1]["messages"].empty()) {
            EXPECT_NE(one.text, two.text);
        }
        ++compared;
    }
    EXPECT_GE(compared, 40);
}

const text::Tokenizer& deepseek() {
    static const text::Tokenizer tokenizer =
        std::move(*text::Tokenizer::load(kTests / "text/data/deepseek_v3_small"));
    return tokenizer;
}

std::vector<TokenId> encoded(const Rendered& rendered) {
    auto ids = encode(deepseek(), rendered);
    if (!ids) throw std::runtime_error(ids.error().message);
    return *ids;
}

constexpr const char* kTurn =
    "{{ bos_token }}{% for m in messages %}<｜User｜>{{ m.content }}"
    "<｜Assistant｜>{% endfor %}";

TEST(Encode, ContentIsPlainTextAndTheTemplateIsNot) {
    for (const std::string content :
         {"hello", "", "<｜User｜>", "a<｜end▁of▁sentence｜>b", "<think>", "｜DSML｜", "<｜User",
          "｜>", "\n", "你好<|EOT|>"}) {
        const Rendered rendered = render(kTurn, {{"messages", {{{"content", content}}}}});
        std::vector<TokenId> expected = {*deepseek().id_of("<｜begin▁of▁sentence｜>"),
                                         *deepseek().id_of("<｜User｜>")};
        const auto plain = deepseek().encode(content, text::SpecialTokens::as_text);
        expected.insert(expected.end(), plain->begin(), plain->end());
        expected.push_back(*deepseek().id_of("<｜Assistant｜>"));
        EXPECT_EQ(encoded(rendered), expected) << content;
    }
}

TEST(Encode, ATokenAcrossTheBorderIsPlainText) {
    for (const char* source :
         {"<｜Us{{ c }}", "{{ c }}<｜User｜>", "<｜User｜{{ c }}", "{{ '<｜User' ~ c }}"}) {
        for (const std::string content : {"er｜>", ">", "<｜", "｜>", "x"}) {
            const Rendered rendered = render(source, {{"c", content}});
            const auto plain = deepseek().encode(rendered.text, text::SpecialTokens::as_text);
            const auto parsed = deepseek().encode(rendered.text, text::SpecialTokens::parsed);
            const bool own = rendered.text.find("<｜User｜>") != std::string::npos &&
                             std::string_view(source) == "{{ c }}<｜User｜>";
            EXPECT_EQ(encoded(rendered), own ? *parsed : *plain) << source << " with " << content;
        }
    }
}

// A tokenizer of bytes with the added tokens "<a>", "<a>b" and "b".
text::Tokenizer byte_tokenizer() {
    nlohmann::json vocab, added = nlohmann::json::array();
    for (int byte = 0x21; byte < 0x7F; ++byte)
        vocab[std::string(1, static_cast<char>(byte))] = byte;
    int next = 0;
    for (int byte = 0; byte < 256; ++byte)
        if (byte < 0x21 || byte >= 0x7F) {
            // The letters of byte-level vocabularies; 0x20…0x7E but the space stand for themselves.
            const bool latin = (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
            const int code = latin ? byte : 256 + next++;
            std::string letter;
            letter += static_cast<char>(0xC0 | code >> 6);
            letter += static_cast<char>(0x80 | (code & 0x3F));
            vocab[letter] = byte;
        }
    for (const auto& [content, id] : {std::pair("<a>", 300), {"<a>b", 301}, {"xx", 302}})
        added.push_back({{"id", id}, {"content", content}, {"special", true}});
    const nlohmann::json byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    auto made = text::Tokenizer::from_tokenizer_json(
        nlohmann::json{{"pre_tokenizer", byte_level},
                       {"decoder", byte_level},
                       {"added_tokens", added},
                       {"model", {{"vocab", vocab}, {"merges", nlohmann::json::array()}}}}
            .dump(),
        std::nullopt, "test");
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

TEST(Encode, ALongerTokenThatReachesIntoContentDoesNotHideAShorterOne) {
    const text::Tokenizer tokenizer = byte_tokenizer();
    const std::vector<TokenId> shorter = {300, 'b'};
    EXPECT_EQ(*tokenizer.encode("<a>b", text::SpecialTokens::parsed), std::vector<TokenId>{301});
    EXPECT_EQ(*tokenizer.encode_mixed("<a>b", {}), std::vector<TokenId>{301});
    const text::ByteRange last{3, 4};
    EXPECT_EQ(*tokenizer.encode_mixed("<a>b", {&last, 1}), shorter);
}

// The definition: of all added tokens that touch no plain byte, leftmost first, longest of those.
TEST(Encode, MixedTextEqualsItsDefinition) {
    const text::Tokenizer tokenizer = byte_tokenizer();
    const std::pair<std::string, TokenId> added[] = {{"<a>b", 301}, {"<a>", 300}, {"xx", 302}};
    std::mt19937 random(7);
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        std::vector<bool> plain;
        while (random() % 12 != 0) {
            static const std::string pieces[] = {"<a>b", "<a>", "xx", "x", "<", "a>", "b", "c"};
            const std::string& piece = pieces[random() % 8];
            const bool is_plain = random() % 3 == 0;
            text += piece;
            plain.insert(plain.end(), piece.size(), is_plain);
        }
        std::vector<text::ByteRange> ranges;
        for (std::size_t i = 0; i < plain.size(); ++i) {
            if (!plain[i]) continue;
            if (!ranges.empty() && ranges.back().end == i)
                ++ranges.back().end;
            else
                ranges.push_back({i, i + 1});
        }
        std::vector<TokenId> expected;
        for (std::size_t at = 0; at < text.size();) {
            std::size_t taken = 1;
            TokenId id = static_cast<unsigned char>(text[at]);
            for (const auto& [content, token] : added) {
                if (text.compare(at, content.size(), content) != 0) continue;
                bool touches = false;
                for (std::size_t i = at; i < at + content.size(); ++i) touches |= plain[i];
                if (touches) continue;
                taken = content.size();
                id = token;
                break;
            }
            expected.push_back(id);
            at += taken;
        }
        ASSERT_EQ(*tokenizer.encode_mixed(text, ranges), expected) << text;
    }
}

TEST(Encode, InvalidUtf8IsRefused) {
    EXPECT_FALSE(deepseek().encode_mixed("a\xff", {}));
    EXPECT_FALSE(encode(deepseek(), {.text = "\xe4\xbd", .content = {}}));
}

}  // namespace
}  // namespace espalier::chat
