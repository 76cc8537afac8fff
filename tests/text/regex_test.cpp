// SPDX-License-Identifier: Apache-2.0
#include "text/regex.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/unicode_stand_ins.hpp"
#include "text/utf8.hpp"

namespace espalier::text {
namespace {

std::vector<std::string> matches(const std::string& pattern, std::string_view text,
                                 RegexDialect dialect = RegexDialect::oniguruma) {
    const auto regex = Regex::compile(pattern, dialect, "test");
    if (!regex) throw std::runtime_error(regex.error().message);
    std::vector<std::string> found;
    for (std::size_t from = 0; from < text.size();) {
        const auto match = regex->find(text, from);
        if (!match) throw std::runtime_error(match.error().message);
        if (!*match) break;
        found.emplace_back(text.substr((*match)->begin, (*match)->end - (*match)->begin));
        from = (*match)->end;
    }
    return found;
}

using Strings = std::vector<std::string>;

TEST(RegexDialect, RewritesIntersections) {
    EXPECT_EQ(*to_pcre2(R"([\p{L}&&[^\p{Han}]]+)", RegexDialect::rust, "x"),
              R"((?:(?![\p{sc:Han}])[\p{L}])+)");
    EXPECT_EQ(*to_pcre2(R"([a-z&&[b-d]])", RegexDialect::rust, "x"), R"((?:(?=[b-d])[a-z]))");
    EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "abc中文déf、", RegexDialect::rust),
              (Strings{"abc", "déf"}));
}

TEST(RegexDialect, RefusesByNameWhatPcre2ReadsDifferently) {
    for (const char* pattern :
         {R"(\h)",   R"(\w+)",      R"(\bx)",  R"(\p{Greek})", R"(\p{^L})", R"(\pL)",
          "[a[bc]]", "[[:alpha:]]", "a{,3}",   "a{2}+",        "a{1001}",   "(?i:ß)",
          "(*UTF)a", "(?R)",        "(?<n>a)", R"(\1)",        R"(\xff)",   R"(\C)",
          R"(\Ka)",  "[^a&&[b]]",   "[]a]",    R"(a\)",        "[a&&b]"}) {
        const auto result = Regex::compile(pattern, RegexDialect::oniguruma, "f.json: step");
        ASSERT_FALSE(result) << pattern;
        EXPECT_TRUE(result.error().message.starts_with("f.json: step: ")) << result.error().message;
    }
    EXPECT_FALSE(Regex::compile("[a--b]", RegexDialect::rust, "x"));
}

TEST(RegexDialect, RefusesPatternsThatMatchNothing) {
    for (const char* pattern : {"a*", "", "(?=a)", "a|", "x?y*"})
        EXPECT_FALSE(Regex::compile(pattern, RegexDialect::oniguruma, "x")) << pattern;
    EXPECT_FALSE(Regex::compile("(", RegexDialect::oniguruma, "x"));
    EXPECT_FALSE(Regex::compile(std::string(20000, 'a'), RegexDialect::oniguruma, "x"));
    EXPECT_FALSE(Regex::compile(std::string(100, '(') + "a" + std::string(100, ')'),
                                RegexDialect::oniguruma, "x"));
    EXPECT_FALSE(Regex::compile("((((a{1000}){1000}){1000}){1000})", RegexDialect::oniguruma, "x"));
}

TEST(RegexDialect, AnchorsFollowTheEngine) {
    EXPECT_EQ(matches("a$", "a\na", RegexDialect::oniguruma), (Strings{"a", "a"}));
    EXPECT_EQ(matches("a$", "a\na\n", RegexDialect::rust), Strings{});
}

TEST(Regex, ExponentialPatternIsAnError) {
    const auto regex = Regex::compile("(?:a+)+[bd]", RegexDialect::oniguruma, "f.json: step 3");
    ASSERT_TRUE(regex);
    const auto match = regex->find(std::string(5000, 'a') + "c", 0);
    ASSERT_FALSE(match);
    EXPECT_EQ(match.error().kind, ErrorKind::exhausted);
    EXPECT_NE(match.error().message.find("f.json: step 3"), std::string::npos);
}

TEST(Regex, TrailingSpaceFindsWhatThePlainPatternFinds) {
    std::mt19937 random(5);
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        for (auto i = random() % 24; i > 0; --i) text += "  \n\tx"[random() % 5];
        // A group keeps the plain pattern from being recognised.
        EXPECT_EQ(matches(R"(\s+$)", text), matches(R"((?:\s+$))", text))
            << testing::PrintToString(text);
    }
}

TEST(Regex, TrailingSpaceIsNotQuadratic) {
    // 10 MB: as written, the pattern would need 5·10¹³ steps here.
    EXPECT_EQ(matches(R"(\s+$)", std::string(10'000'000, ' ') + "中"), Strings{});
}

// Counts of Unicode 16, the version of both reference engines: tokenizers 0.23 and tiktoken 0.14
// gave these.
TEST(StandIns, ClassesAreThoseOfUnicode16) {
    const std::pair<const char*, int> classes[] = {
        {R"(\p{L})", 141028}, {R"(\p{N})", 1911},    {R"(\p{P})", 855},    {R"(\p{S})", 8514},
        {R"(\p{M})", 2501},   {R"(\p{Lu})", 1858},   {R"(\p{Ll})", 2258},  {R"(\p{Lt})", 31},
        {R"(\p{Lm})", 404},   {R"(\p{Lo})", 136477}, {R"(\p{Nd})", 760},   {R"(\s)", 25},
        {R"(\d)", 760},       {R"(\p{Han})", 99030}, {R"(\p{Cn})", 819533}};
    for (const auto& [pattern, expected] : classes) {
        const auto regex = Regex::compile(pattern, RegexDialect::oniguruma, "x");
        ASSERT_TRUE(regex);
        int members = 0;
        std::string text;
        std::string scratch;
        for (std::uint32_t c = 0; c < 0x110000; ++c) {
            if (c >= 0xD800 && c < 0xE000) continue;
            text.clear();
            append_code_point(c, text);
            const std::string_view shown = with_stand_ins(text, scratch);
            ASSERT_EQ(shown.size(), text.size());
            members += (*regex->find(shown, 0)).has_value();
        }
        EXPECT_EQ(members, expected) << pattern;
    }
}

}  // namespace
}  // namespace espalier::text
