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
    // Counted: a class of characters, more than four of it. What follows may be of the class or
    // not; a character may be one of several repetitions, and have several bytes.
    add(Kind::json_schema, R"({"type":"string","maxLength":9})");
    add(Kind::json_schema,
        R"({"anyOf":[{"type":"string","maxLength":6},{"type":"string","minLength":8,"maxLength":12}]})");
    add(Kind::json_schema,
        R"({"type":"array","items":{"type":"string","minLength":1,"maxLength":5},"minItems":2})");
    add(Kind::json_schema, R"({"type":"string","minLength":6})");
    add(Kind::regex, R"([a-c]{5,9}b+)");
    add(Kind::regex, R"([^a]{6,}b[a-e]{5,}a)");
    add(Kind::regex, R"(.{0,7}abc\n)");
    add(Kind::regex, R"((.{2,8}|[^a]{6,7}z)+)");
    add(Kind::regex, R"(([b-e]{0,6}a){3}[a-z]{6})");
    add(Kind::regex, R"([é-ü€a😀]{5,8}[^x-z]{7}\d{5,6})");
    add(Kind::regex, R"(\s{0,12}\{?)");
    add(Kind::ebnf, "root ::= [a-z]{6,8} | [a-c]{2,7} \"b\" root | \"\"");
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

// View of a matcher's place.
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

// Enough tokens of several characters that masks are bitsets, some longer than what there is room
// for.
grammar::Vocabulary wide_vocabulary() {
    std::vector<std::string> tokens = kSmall.tokens;
    tokens.resize(static_cast<std::size_t>(kSmall.marker));
    std::mt19937_64 random(1);
    const std::vector<std::string> letters = {"a",  "b",  "c", "d", "x", "1",
                                              "\"", "\n", "é", "€", "😀"};
    while (tokens.size() < 4000) {
        std::string token;
        for (std::uint64_t i = 0, count = 2 + random() % 9; i < count; ++i)
            token += letters[random() % (random() % 4 == 0 ? letters.size() : 6)];
        // Some begin or end within a character.
        if (random() % 8 == 0) token.erase(0, 1);
        if (random() % 8 == 0) token.pop_back();
        tokens.push_back(std::move(token));
    }
    const auto stop = static_cast<TokenId>(tokens.size());
    tokens.emplace_back("<end>");
    return grammar::Vocabulary::from_bytes(tokens, stop + 1, std::vector<TokenId>{stop},
                                           std::vector<TokenId>{stop})
        .value();
}

// With and without masks that were filled before.
TEST(Matcher, MasksOfManyTokensAreWhatSingleBytesSay) {
    const grammar::Vocabulary vocabulary = wide_vocabulary();
    Compiler cached(vocabulary);
    for (const Specification& specification : specifications()) {
        if (specification.kind == Kind::structural_tag) continue;
        SCOPED_TRACE(std::string(name(specification.kind)) + " " + specification.text);
        for (std::uint64_t seed = 0; seed < 3; ++seed) {
            Matcher matcher = matcher_of(cached, specification);
            Matcher other(cached.compile(specification).value(), grammar::Masks::filled_anew);
            Matcher bytes = matcher_of(byte_compiler(), specification);
            std::mt19937_64 random(seed);
            for (int step = 0; step < 12 && !matcher.finished(); ++step) {
                const auto mask = test::mask_of(matcher);
                ASSERT_EQ(mask, test::mask_of(other)) << "step " << step;
                const auto legal = test::legal_tokens(matcher);
                ASSERT_FALSE(legal.empty());
                for (TokenId token = 0; token + 1 < vocabulary.size(); ++token)
                    ASSERT_EQ(test::is_set(mask, token),
                              !vocabulary.bytes(token).empty() &&
                                  takes_bytes(bytes, vocabulary.bytes(token)))
                        << "step " << step << " token " << token << " '" << vocabulary.bytes(token)
                        << "'";
                const TokenId token = legal[random() % legal.size()];
                ASSERT_TRUE(matcher.accept(token) && other.accept(token));
                for (const char byte : vocabulary.bytes(token))
                    ASSERT_TRUE(bytes.accept(static_cast<unsigned char>(byte)));
            }
        }
    }
    EXPECT_GT(cached.status().masks.found, 0);
}

// In the middle of a long string, and in other texts there, nothing is filled again; near its end
// each place is another.
TEST(Matcher, EqualPlacesHaveOneMask) {
    Compiler made(kSmall.make());
    const Specification specification{
        .kind = Kind::json_schema,
        .text = R"({"type":"array","items":{"type":"string","minLength":40,"maxLength":400}})"};
    Matcher matcher = matcher_of(made, specification);
    const auto filled_in = [&](Matcher& one, int characters) {
        const std::int64_t before = made.status().masks.filled;
        for (int i = 0; i < characters; ++i) {
            EXPECT_TRUE(one.accept('a'));
            test::mask_of(one);
        }
        return made.status().masks.filled - before;
    };
    for (const char byte : std::string("[\"")) ASSERT_TRUE(matcher.accept(byte));
    EXPECT_GT(filled_in(matcher, 60), 1);
    EXPECT_EQ(filled_in(matcher, 300), 0);
    EXPECT_GT(filled_in(matcher, 40), 1);
    EXPECT_EQ(matcher.forced_text(), "\"");
    for (const char byte : std::string("\", \"")) ASSERT_TRUE(matcher.accept(byte));
    EXPECT_GT(filled_in(matcher, 400), 1);  // a second item is not the first
    EXPECT_FALSE(matcher.accept('a'));
    for (const char byte : std::string("\",\n\"")) ASSERT_TRUE(matcher.accept(byte));
    EXPECT_EQ(filled_in(matcher, 400), 0);
    EXPECT_FALSE(matcher.accept('a'));
    Matcher other = matcher_of(made, specification);
    for (const char byte : std::string("[ \"")) ASSERT_TRUE(other.accept(byte));
    EXPECT_EQ(filled_in(other, 200), 0);
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
