// SPDX-License-Identifier: Apache-2.0
// Schemas are held, or refused by the name of what is not supported. A random model writes what the
// grammar allows; a checker of our own says whether it is valid.
#include "grammar/schema.hpp"

#include <gtest/gtest.h>

#include "grammar/plain_regex.hpp"
#include "grammar/random_model.hpp"
#include "grammar/regex.hpp"
#include "grammar/schema_checker.hpp"
#include "grammar/schema_generator.hpp"
#include "grammar/small_vocabulary.hpp"

namespace {

using namespace espalier;
using grammar::Compiler;
using grammar::Kind;
using grammar::Matcher;
using grammar::Specification;

// Texts of 3,000 tokens are for the long run: some patterns are so ambiguous that they take
// seconds.
#ifdef ESPALIER_LONG_RUN
constexpr std::uint64_t kSchemas = 5000;
constexpr std::uint64_t kExpressions = 1000;
constexpr int kTokens = 3000;
#else
constexpr std::uint64_t kSchemas = 250;
constexpr std::uint64_t kExpressions = 60;
constexpr int kTokens = 1000;
#endif

Compiler& compiler() {
    static Compiler made(test::SmallVocabulary().make());
    return made;
}

TEST(Schema, RefusesWhatItWouldNotHoldByName) {
    const std::vector<std::pair<std::string, std::string>> refused = {
        {R"({"not":{"type":"null"}})", "'not'"},
        {R"({"if":{},"then":{}})", "'if'"},
        {R"({"type":"array","items":{},"uniqueItems":true})", "'uniqueItems'"},
        {R"({"type":"array","contains":{}})", "'contains'"},
        {R"({"type":"object","propertyNames":{"maxLength":3}})", "'propertyNames'"},
        {R"({"type":"object","patternProperties":{"a":{}}})", "'patternProperties'"},
        {R"({"type":"object","dependentRequired":{"a":["b"]}})", "'dependentRequired'"},
        {R"({"type":"object","unevaluatedProperties":false})", "'unevaluatedProperties'"},
        {R"({"$dynamicRef":"#a"})", "'$dynamicRef'"},
        {R"({"$ref":"https://example.org/a"})", "https://example.org/a"},
        {R"({"$ref":"#/properties/a"})", "#/properties/a"},
        {R"({"$ref":"#/$defs/missing"})", "leads nowhere"},
        {R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{}}})", "$ref beside"},
        {R"({"anyOf":[{},{}],"type":"string"})", "beside other keywords"},
        {R"({"allOf":[{"type":"string"},{"minLength":1}]})", "allOf"},
        {R"({"oneOf":[{"type":"string"},{"type":"string","minLength":1}]})", "oneOf"},
        {R"({"enum":["a"],"minLength":1})", "enum beside"},
        {R"({"enum":["a"],"type":"integer"})", "no value of enum"},
        {R"({"enum":[]})", "enum is a list"},
        {R"({"const":18446744073709551615})", "beyond 64 bits"},
        {R"({"type":"string","format":"color"})", "'color'"},
        {R"({"type":"string","format":"date","minLength":3})", "only one of"},
        {R"({"type":"string","pattern":"(?=a)b"})", "lookahead"},
        {R"({"type":"string","pattern":"a\\b"})", "\\b"},
        {R"({"type":"string","pattern":"\""})", "JSON escapes"},
        {R"({"type":"number","multipleOf":0.5})", "multipleOf"},
        {R"({"type":"integer","minimum":5,"maximum":4})", "range"},
        {R"({"type":"integer","minimum":1e300})", "minimum"},
        {R"({"type":"array","items":[{}]})", "prefixItems"},
        {R"({"type":"array","items":false,"minItems":1})", "minItems"},
        {R"({"type":"object","properties":{"a":{}},"required":["b"]})", "'b'"},
        {R"({"type":"object","additionalProperties":{},"minProperties":3})", "minProperties"},
        {R"({"minimum":3,"pattern":"a"})", "without 'type'"},
        {R"({"type":"thing"})", "thing"},
        {R"({"type":["string","thing"]})", "thing"},
        {"false", "no value"},
        {"3", "a schema is an object"},
        {"{", "json_schema"},
        {R"({"a":1})", "'a'"},
    };
    for (const auto& [text, reason] : refused) {
        const auto compiled = compiler().compile({.kind = Kind::json_schema, .text = text});
        ASSERT_FALSE(compiled) << text;
        EXPECT_NE(compiled.error().message.find(reason), std::string::npos)
            << text << ": " << compiled.error().message;
    }
}

// Bytes beyond ASCII and control characters as \xHH.
std::string visible(const std::string& text) {
    std::string out;
    for (const char c : text)
        out += c >= 0x20 && c < 0x7f ? std::string(1, c)
                                     : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return out;
}

struct Tally {
    int held = 0;
    int finished = 0;
    int texts = 0;
    int refused = 0;
};

void expect_held(const nlohmann::ordered_json& schema, const Specification& specification,
                 int texts, std::uint64_t seed, Tally& tally) {
    const auto compiled = compiler().compile(specification);
    if (!compiled) {
        ++tally.refused;
        EXPECT_FALSE(compiled.error().message.empty());
        return;
    }
    ++tally.held;
    for (int i = 0; i < texts; ++i) {
        const test::Drawn drawn =
            test::draw_text(Matcher(*compiled), seed + static_cast<std::uint64_t>(i), 30, kTokens);
        ++tally.texts;
        ASSERT_FALSE(drawn.stuck) << drawn.failure << "\n"
                                  << schema.dump() << "\n"
                                  << visible(drawn.text);
        if (!drawn.finished) continue;
        ++tally.finished;
        ASSERT_EQ(test::schema_error(drawn.text, schema, specification.strict), "")
            << schema.dump() << "\n"
            << visible(drawn.text);
    }
}

TEST(Schema, DatesAreThoseThatEveryReaderTakes) {
    const test::PlainRegex date{std::string(grammar::format_pattern("date"))};
    for (const char* good : {"0001-01-01", "0010-10-31", "0100-02-28", "2026-11-17", "9999-12-31"})
        EXPECT_TRUE(date.full_match(good)) << good;
    for (const char* bad : {"0000-10-04", "2026-02-29", "2026-11-31", "2026-13-01", "10000-01-01"})
        EXPECT_FALSE(date.full_match(bad)) << bad;
}

// True if a text of these bytes may end.
bool taken(const std::string& schema, const std::string& text) {
    const auto compiled = compiler().compile({.kind = Kind::json_schema, .text = schema});
    Matcher matcher(compiled.value());
    for (const char byte : text)
        if (!matcher.accept(static_cast<unsigned char>(byte))) return false;
    return matcher.may_end();
}

// 1e0022072020 is valid JSON that readers take for infinity, or refuse.
TEST(Schema, NumbersAreFinite) {
    const std::string digits(200, '9');
    const std::string schema = R"({"type":"number"})";
    for (const std::string& good :
         std::vector<std::string>{"0", "-0.5", "1e9", "6.02E+23", "1e-99", digits + "e99"})
        EXPECT_TRUE(taken(schema, good)) << good;
    for (const std::string& bad :
         std::vector<std::string>{"1e100", "1e0022072020042001", "1e-000", digits + "9"})
        EXPECT_FALSE(taken(schema, bad)) << bad;
    EXPECT_FALSE(taken("{}", "[1e400]"));
}

TEST(Schema, HandPickedOnesAreHeld) {
    const std::vector<std::string> picked = {
        "{}",
        "true",
        R"({"type":"object"})",
        R"({"type":"array"})",
        R"({"minLength":3})",
        R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
        R"({"type":"object","properties":{"":{"type":"integer"},"a\"b":{},"\u00e9":{"const":1}},"required":[""],"additionalProperties":true})",
        R"({"type":"object","required":["x","y"],"additionalProperties":{"type":"null"}})",
        R"({"$defs":{"T":{"type":"object","properties":{"v":{"type":"integer"},"l":{"anyOf":[{"$ref":"#/$defs/T"},{"type":"null"}]},"r":{"anyOf":[{"$ref":"#/$defs/T"},{"type":"null"}]}},"required":["v","l","r"]}},"$ref":"#/$defs/T"})",
        R"({"definitions":{"a/b":{"type":"null"}},"type":"array","items":{"$ref":"#/definitions/a~1b"},"minItems":2})",
        R"({"oneOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/d"}],"$defs":{"c":{"type":"object","properties":{"k":{"const":"c"},"n":{"type":"integer"}},"required":["k"]},"d":{"type":"object","properties":{"k":{"enum":["d","e"]}},"required":["k"]}}})",
        R"({"type":"number","minimum":-1.5,"maximum":2.25})",
        R"({"type":"number","exclusiveMinimum":0,"exclusiveMaximum":0.5})",
        R"({"type":"number","exclusiveMinimum":-0.125})",
        R"({"type":"integer","exclusiveMinimum":-3,"maximum":1000000})",
        R"({"type":"integer","multipleOf":7})",
        R"({"type":"integer","minimum":0,"maximum":100,"multipleOf":5})",
        R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"items":{"type":"integer"},"minItems":1,"maxItems":4})",
        R"({"type":"array","prefixItems":[{"type":"null"},{"type":"boolean"}],"maxItems":1})",
        R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"additionalProperties":false,"minProperties":2,"maxProperties":2})",
        R"({"type":["object","string","null"],"properties":{"a":{}},"maxLength":3})",
        R"({"type":"string","pattern":"^[^x]{1,4}$"})",
        R"({"type":"string","pattern":"\\S+@\\S+"})",
        R"({"enum":["\u0001","\ud83d\ude00","a\/b",1.5,1e100,{"a":[1,{"b":null}]}]})",
        R"({"allOf":[{"type":"boolean"}],"description":"one is enough","x-note":1})",
    };
    for (const bool strict : {true, false})
        for (const bool any_whitespace : {true, false}) {
            Tally tally;
            for (const std::string& text : picked) {
                const auto schema = nlohmann::ordered_json::parse(text);
                ASSERT_NO_FATAL_FAILURE(expect_held(schema,
                                                    {.kind = Kind::json_schema,
                                                     .text = text,
                                                     .strict = strict,
                                                     .any_whitespace = any_whitespace},
                                                    12, 1, tally));
                EXPECT_EQ(tally.refused, 0) << text;
            }
            EXPECT_GT(tally.finished, tally.texts * 9 / 10);
        }
}

TEST(Schema, RandomOnesAreHeldOrRefused) {
    Tally tally;
    for (std::uint64_t seed = 0; seed < kSchemas; ++seed) {
        test::SchemaGenerator generator(seed);
        const auto schema = generator.schema();
        ASSERT_NO_FATAL_FAILURE(expect_held(schema,
                                            {.kind = Kind::json_schema,
                                             .text = schema.dump(),
                                             .strict = seed % 4 != 0,
                                             .any_whitespace = seed % 2 == 0},
                                            2, seed, tally));
    }
    RecordProperty("held", tally.held);
    RecordProperty("refused", tally.refused);
    RecordProperty("finished", tally.finished);
    EXPECT_GT(tally.held, static_cast<int>(kSchemas) * 85 / 100);
    EXPECT_GT(tally.finished, tally.texts * 8 / 10);
}

TEST(Regex, TextsMatchByTheDefinition) {
    std::uint64_t finished = 0;
    for (std::uint64_t seed = 0; seed < kExpressions; ++seed) {
        test::SchemaGenerator generator(seed);
        const std::string regex = generator.regex();
        const auto compiled = compiler().compile({.kind = Kind::regex, .text = regex});
        ASSERT_TRUE(compiled) << regex << ": " << compiled.error().message;
        for (std::uint64_t i = 0; i < 4; ++i) {
            const test::Drawn drawn = test::draw_text(Matcher(*compiled), seed + i, 10, 60);
            ASSERT_FALSE(drawn.stuck) << regex;
            if (!drawn.finished) continue;
            ++finished;
            EXPECT_TRUE(test::PlainRegex(regex).full_match(drawn.text)) << regex << "\n"
                                                                        << visible(drawn.text);
        }
    }
    EXPECT_GT(finished, kExpressions * 3 / 2);
}

// Every text over the letters up to that length: it may end exactly where it matches.
void expect_language(const std::string& regex, std::string_view letters, std::size_t length) {
    const auto compiled = compiler().compile({.kind = Kind::regex, .text = regex});
    ASSERT_TRUE(compiled) << regex << ": " << compiled.error().message;
    const test::PlainRegex plain(regex);
    Matcher matcher(*compiled);
    std::string text;
    const auto walk = [&](const auto& self) -> void {
        ASSERT_EQ(matcher.may_end(), plain.full_match(text)) << regex << "\n" << text;
        if (text.size() == length) return;
        for (const char letter : letters) {
            text += letter;
            if (matcher.accept(static_cast<unsigned char>(letter))) {
                self(self);
                matcher.rollback(1);
            }
            text.pop_back();
        }
    };
    walk(walk);
}

bool is_automaton(std::string_view regex) {
    const auto written = grammar::rewrite_regex(regex, grammar::RegexUse::text);
    return written.value().find("state0_0 ::=") != std::string::npos;
}

// A parser keeps every way to read a text: these took 50 ms a token after some thousand.
TEST(Regex, WhatCanBeReadInSeveralWaysIsAnAutomaton) {
    for (const char* regex :
         {"((\\w)?(\\w)*|(\\w){2}(\\$)*([0-9A-F]))*(a)", "(\\w+ ?)*", "(a*)*", "(a|ab|b)+",
          "(a?)+b", "(a*b?){2,4}", "\\w*(\\w*1)", "(a{0,2}|b)+", "(a|a)*|b*a", "(a{2,3})*",
          "(a{2}(b|){1,2})+1?", "(a|)*1",
          "((a)*([0-9A-F]){2})?(([0-9A-F])?(.){1,3}(.)*([a-c])*){2}(a){2}(\\w){0,4}"}) {
        EXPECT_TRUE(is_automaton(regex)) << regex;
        ASSERT_NO_FATAL_FAILURE(expect_language(regex, "ab1 $", 6));
    }
    for (const char* regex :
         {"([a-z]+,)*", "((a|b)*1)+", "(ab?)*1", "[ab]{2,5}", "(a{1,3}1)+", "a(b|1)*", "(a|b1|)"}) {
        EXPECT_FALSE(is_automaton(regex)) << regex;
        ASSERT_NO_FATAL_FAILURE(expect_language(regex, "ab1,", 6));
    }
    // 2^12 states if they were deterministic.
    EXPECT_TRUE(is_automaton("(a|b)*a(a|b){12}"));
    EXPECT_TRUE(is_automaton("((a|b)*a(a|b){12})*"));
    ASSERT_NO_FATAL_FAILURE(expect_language("((a|b)*a(a|b){8})*1", "ab1", 11));
    const auto refused = grammar::rewrite_regex("(x(a?b?){200}y)*", grammar::RegexUse::text);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("several ways"), std::string::npos);
}

TEST(Regex, ReadsOneDialect) {
    const auto refused = [](std::string_view regex, std::string_view reason) {
        const auto written = grammar::rewrite_regex(regex, grammar::RegexUse::text);
        ASSERT_FALSE(written) << regex;
        EXPECT_NE(written.error().message.find(reason), std::string::npos)
            << written.error().message;
    };
    refused("(?i)a", "(?i");
    refused("(a)\\1", "backreference");
    refused("a\\b", "\\b");
    refused("(?<!a)b", "lookbehind");
    refused("a++", "possessive");
    refused("a**", "repeats a repetition");
    refused("*a", "repeats nothing");
    refused("(a", "not closed");
    refused("a)", "closes nothing");
    refused("[a", "not closed");
    refused("[z-a]", "ascend");
    refused("a{3,2}", "3 to 2");
    refused("a{x}", "without a count");
    refused("a^b", "'^'");
    refused("(a$)b", "'$'");
    refused("\\p{L}", "'\\p'");
    refused("a\\", "at the end");
    refused("\\xg1", "hexadecimal");
    refused("\xff", "UTF-8");
    for (const char* regex :
         {"", "^a$", "^(a|b)$", "(a|)", "(|)", "()", "a||b", "(?P<x_1>a)(?:b)(?<y>c)", "[\\]^-]",
          "[^\\n]", "a{0}", "\\u20ac{2,}", "[a-]", "\\/", "a|b$"})
        EXPECT_TRUE(grammar::rewrite_regex(regex, grammar::RegexUse::text)) << regex;
}

}  // namespace
