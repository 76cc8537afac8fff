// SPDX-License-Identifier: Apache-2.0
// A matcher's masks against plain oracles: the token is accepted where its bit is set, and its bit
// is set where a matcher that knows single bytes alone takes its bytes one by one.
#include "grammar/matcher.hpp"

#include <gtest/gtest.h>

#include <random>

#include "grammar/random_model.hpp"
#include "grammar/small_vocabulary.hpp"

namespace {

using namespace espalier;
using grammar::Compiler;
using grammar::Kind;
using grammar::Matcher;
using grammar::Specification;
using test::SmallVocabulary;

const SmallVocabulary kSmall;
const SmallVocabulary kBytes(/*bytes_only=*/true);

Compiler& compiler() {
    static Compiler made(kSmall.make());
    return made;
}

Compiler& byte_compiler() {
    static Compiler made(kBytes.make());
    return made;
}

Matcher matcher_of(Compiler& made_by, const Specification& specification) {
    auto compiled = made_by.compile(specification);
    EXPECT_TRUE(compiled) << compiled.error().message;
    return Matcher(std::move(compiled.value()));
}

std::vector<Specification> specifications() {
    std::vector<Specification> all;
    const auto add = [&](Kind kind, std::string text, bool any_whitespace = true) {
        all.push_back({.kind = kind, .text = std::move(text), .any_whitespace = any_whitespace});
    };
    add(Kind::json_object, "");
    add(Kind::json_schema,
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},)"
        R"("acab":{"enum":["ab","acab","ba","abc"]}},"required":["name"]})");
    add(Kind::json_schema,
        R"({"type":"object","properties":{"ab":{"type":"null"}},"additionalProperties":{"type":"boolean"}})",
        false);
    add(Kind::json_schema, R"({"type":"array","items":{"$ref":"#"},"maxItems":3})");
    add(Kind::json_schema, R"({"type":"string","minLength":2,"maxLength":5})");
    add(Kind::json_schema, R"({"type":"string","minLength":18,"maxLength":21})");
    add(Kind::json_schema, R"({"type":"array","items":{"type":"null"},"maxItems":20})");
    add(Kind::regex, R"(((ab|c){17,18}x?){2})");
    add(Kind::regex, R"((a?b?){0,20}c)");
    add(Kind::regex, R"([a-c]{17,}\d)");
    add(Kind::json_schema, R"({"type":"string","format":"date-time"})");
    add(Kind::json_schema, R"({"type":"string","pattern":"(.)*[^a-z]c"})");
    add(Kind::regex, R"((ab|acab|ba)+[0-9]{2,3}\s?\w*)");
    add(Kind::regex, R"([^a]*a.)");
    add(Kind::ebnf, "root ::= \"ab\" root \"ba\" | \"c\" [x-z]*");
    add(Kind::structural_tag,
        R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],"tags":[)"
        R"({"begin":"<f=a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</f>"}]}})");
    all.push_back(
        {.kind = Kind::choice, .choices = {"red", "green", "re", "\xe2\x82\xac", "ab\nab"}});
    return all;
}

// What a matcher says of its place.
struct View {
    explicit View(Matcher& matcher)
        : mask(test::mask_of(matcher)),
          forced(matcher.forced_text()),
          may_end(matcher.may_end()),
          finished(matcher.finished()),
          accepted(matcher.accepted()) {}
    bool operator==(const View&) const = default;
    std::vector<std::uint32_t> mask;
    std::string forced;
    bool may_end;
    bool finished;
    std::int64_t accepted;
};

bool takes_bytes(Matcher& bytes, std::string_view text) {
    std::int64_t taken = 0;
    for (const char byte : text) {
        if (!bytes.accept(static_cast<unsigned char>(byte))) break;
        ++taken;
    }
    bytes.rollback(taken);
    return taken == static_cast<std::int64_t>(text.size());
}

void expect_mask_is_exact(Matcher& matcher, Matcher& bytes) {
    const auto mask = test::mask_of(matcher);
    const View before(matcher);
    for (TokenId token = 0; token < kSmall.size; ++token) {
        const std::string_view text = matcher.grammar().vocabulary().bytes(token);
        const bool legal = matcher.grammar().vocabulary().is_stop(token)
                               ? matcher.may_end()
                               : !text.empty() && takes_bytes(bytes, text);
        ASSERT_EQ(test::is_set(mask, token), legal) << "token " << token << " '" << text << "'";
        const bool accepted = matcher.accept(token);
        ASSERT_EQ(accepted, legal) << "token " << token << " '" << text << "'";
        if (accepted) matcher.rollback(1);
    }
    for (std::int64_t beyond = kSmall.size; beyond < static_cast<std::int64_t>(mask.size()) * 32;
         ++beyond)
        ASSERT_FALSE(test::is_set(mask, beyond));
    ASSERT_EQ(View(matcher), before);
    ASSERT_EQ(matcher.may_end(), bytes.may_end());
}

TEST(Matcher, MasksAreWhatSingleBytesSay) {
    for (const Specification& specification : specifications()) {
        SCOPED_TRACE(std::string(name(specification.kind)) + " " + specification.text);
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            Matcher matcher = matcher_of(compiler(), specification);
            Matcher bytes = matcher_of(byte_compiler(), specification);
            std::mt19937_64 random(seed);
            for (int step = 0; step < 25 && !matcher.finished(); ++step) {
                ASSERT_NO_FATAL_FAILURE(expect_mask_is_exact(matcher, bytes));
                const auto legal = test::legal_tokens(matcher);
                ASSERT_FALSE(legal.empty());
                const TokenId token = legal[random() % legal.size()];
                ASSERT_TRUE(matcher.accept(token));
                if (matcher.finished()) break;
                for (const char byte : kSmall.tokens[static_cast<std::size_t>(token)])
                    ASSERT_TRUE(bytes.accept(static_cast<unsigned char>(byte)));
            }
        }
    }
}

TEST(Matcher, RollbackAndForkLeaveNoTrace) {
    for (const Specification& specification : specifications()) {
        SCOPED_TRACE(std::string(name(specification.kind)) + " " + specification.text);
        Matcher matcher = matcher_of(compiler(), specification);
        std::mt19937_64 random(7);
        for (int step = 0; step < 40 && !matcher.finished(); ++step) {
            const View before(matcher);
            Matcher fork = matcher.fork();
            ASSERT_EQ(View(fork), before);
            std::int64_t depth = 0;
            std::vector<View> views;
            while (depth < 6 && !fork.finished()) {
                views.emplace_back(fork);
                const auto legal = test::legal_tokens(fork);
                ASSERT_TRUE(fork.accept(legal[random() % legal.size()]));
                ++depth;
            }
            ASSERT_EQ(View(matcher), before);  // the fork is another
            for (; depth > 0; --depth) {
                fork.rollback(1);
                ASSERT_EQ(View(fork), views[static_cast<std::size_t>(depth - 1)]);
            }
            const auto legal = test::legal_tokens(matcher);
            ASSERT_TRUE(matcher.accept(legal[random() % legal.size()]));
        }
    }
}

TEST(Matcher, ForcedTextIsWhatEveryContinuationBeginsWith) {
    for (const Specification& specification : specifications()) {
        SCOPED_TRACE(std::string(name(specification.kind)) + " " + specification.text);
        Matcher matcher = matcher_of(byte_compiler(), specification);
        std::mt19937_64 random(3);
        for (int step = 0; step < 60 && !matcher.finished(); ++step) {
            const std::string forced = matcher.forced_text();
            std::int64_t taken = 0;
            for (const char byte : forced) {
                const auto legal = test::legal_tokens(matcher);
                ASSERT_EQ(legal, std::vector<TokenId>{static_cast<unsigned char>(byte)});
                ASSERT_TRUE(matcher.accept(legal[0]));
                ++taken;
            }
            matcher.rollback(taken);
            const auto legal = test::legal_tokens(matcher);
            ASSERT_TRUE(matcher.accept(legal[random() % legal.size()]));
        }
    }
}

TEST(Matcher, EndsWithAStopTokenAndComesBackFromIt) {
    Matcher matcher = matcher_of(compiler(), {.kind = Kind::choice, .choices = {"red"}});
    EXPECT_EQ(matcher.forced_text(), "red");
    EXPECT_FALSE(matcher.accept(kSmall.stop));
    for (const char byte : std::string("red"))
        ASSERT_TRUE(matcher.accept(static_cast<unsigned char>(byte)));
    EXPECT_TRUE(matcher.may_end() && !matcher.finished());
    EXPECT_EQ(test::legal_tokens(matcher), (std::vector<TokenId>{kSmall.stop, kSmall.other_stop}));
    ASSERT_TRUE(matcher.accept(kSmall.other_stop));
    EXPECT_TRUE(matcher.finished() && !matcher.may_end());
    EXPECT_TRUE(test::legal_tokens(matcher).empty());
    EXPECT_FALSE(matcher.accept('r'));
    EXPECT_FALSE(matcher.accept(kSmall.stop));
    EXPECT_EQ(matcher.accepted(), 4);
    matcher.rollback(1);
    EXPECT_TRUE(matcher.may_end() && !matcher.finished());
    matcher.rollback(3);
    EXPECT_EQ(matcher.forced_text(), "red");
    EXPECT_FALSE(matcher.accept(-1) || matcher.accept(1 << 30) || matcher.accept(kSmall.marker));
    EXPECT_TRUE(matcher.failure().empty());
}

TEST(Matcher, MarkersAreLegalWhereATagNamesThem) {
    const std::string tag =
        R"({"format":{"type":"sequence","elements":[{"type":"const_string","value":"a"},{"type":"token","token":)" +
        std::to_string(kSmall.marker) + R"(},{"type":"const_string","value":"b"}]}})";
    Matcher matcher = matcher_of(compiler(), {.kind = Kind::structural_tag, .text = tag});
    ASSERT_TRUE(matcher.accept('a'));
    EXPECT_EQ(test::legal_tokens(matcher), std::vector<TokenId>{kSmall.marker});
    ASSERT_TRUE(matcher.accept(kSmall.marker));
    EXPECT_EQ(matcher.forced_text(), "b");
    matcher.rollback(1);
    EXPECT_EQ(test::legal_tokens(matcher), std::vector<TokenId>{kSmall.marker});
}

}  // namespace
