// SPDX-License-Identifier: Apache-2.0
// The compiler's cache, limits and threads; bombs are refused before they are compiled.
#include "grammar/compiler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "grammar/small_vocabulary.hpp"

namespace {

using namespace espalier;
using grammar::Compiler;
using grammar::CompilerLimits;
using grammar::Kind;
using grammar::Specification;

const test::SmallVocabulary kSmall;

Specification schema(std::string text) {
    return {.kind = Kind::json_schema, .text = std::move(text)};
}

TEST(Compiler, GivesTheSameGrammarForTheSameContent) {
    Compiler compiler(kSmall.make());
    const auto first = compiler.compile(schema(R"({"type":"integer"})"));
    const auto again = compiler.compile(schema(R"({"type":"integer"})"));
    ASSERT_TRUE(first && again);
    EXPECT_EQ(first->get(), again->get());
    EXPECT_GT((*first)->bytes(), 0u);
    Specification loose = schema(R"({"type":"integer"})");
    loose.strict = false;
    const auto other = compiler.compile(loose);
    ASSERT_TRUE(other);
    EXPECT_NE(first->get(), other->get());
    EXPECT_EQ((*other)->specification(), loose);
    const auto status = compiler.status();
    EXPECT_EQ(status.compiled, 2);
    EXPECT_EQ(status.hits, 1);
    EXPECT_EQ(status.cached, 2);
    EXPECT_GT(status.cached_bytes, 0u);
}

TEST(Compiler, KeepsNoMoreThanItsBytes) {
    Compiler none(kSmall.make(), {.cache_bytes = 1});
    ASSERT_TRUE(none.compile(schema(R"({"type":"integer"})")));
    EXPECT_EQ(none.status().cached, 0);
    Compiler one(kSmall.make());
    const auto grammar = one.compile(schema(R"({"const":1})"));
    ASSERT_TRUE(grammar);
    const std::size_t room = 3 * ((*grammar)->bytes() + 100);
    Compiler few(kSmall.make(), {.cache_bytes = room});
    for (int i = 0; i < 20; ++i)
        ASSERT_TRUE(few.compile(schema(R"({"const":)" + std::to_string(i % 10) + "}")));
    EXPECT_GT(few.status().cached, 0);
    EXPECT_LT(few.status().cached, 10);
    EXPECT_LE(few.status().cached_bytes, room);
}

TEST(Compiler, WaitsNoLongerThanItsLimit) {
    Compiler compiler(kSmall.make(), {.wait = std::chrono::milliseconds(1), .threads = 0});
    const auto late = compiler.compile(schema(R"({"type":"object"})"));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().kind, ErrorKind::exhausted);
    EXPECT_NE(late.error().message.find("within 1 ms"), std::string::npos) << late.error().message;
    EXPECT_GE(compiler.status().overran, 1);
}

// Refusals depend on the specification and the vocabulary alone: the same work each time.
TEST(Compiler, RefusesByWorkNotByTime) {
    const Specification one = schema(
        R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string","pattern":"(.)*[^a-z]c"}}})");
    Compiler free(kSmall.make());
    const auto compiled = free.compile(one);
    ASSERT_TRUE(compiled) << compiled.error().message;
    const std::int64_t work = (*compiled)->work();
    EXPECT_GT(work, 1000);
    Compiler enough(kSmall.make(), {.work = work});
    const auto again = enough.compile(one);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ((*again)->work(), work);
    Compiler little(kSmall.make(), {.work = work - 1});
    const auto refused = little.compile(one);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::invalid);
    EXPECT_NE(refused.error().message.find(std::to_string(work - 1)), std::string::npos)
        << refused.error().message;
}

TEST(Compiler, ServesManyThreads) {
    Compiler compiler(kSmall.make());
    std::vector<std::thread> threads;
    std::vector<std::shared_ptr<const grammar::CompiledGrammar>> same(4);
    for (std::size_t i = 0; i < same.size(); ++i)
        threads.emplace_back([&, i] {
            for (int k = 0; k < 50; ++k) {
                const auto one = compiler.compile(schema(R"({"const":)" + std::to_string(k) + "}"));
                ASSERT_TRUE(one) << one.error().message;
                const auto bad = compiler.compile(schema(R"({"not":{}})"));
                ASSERT_FALSE(bad);
                if (k == 3) same[i] = *one;
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const auto& one : same) EXPECT_EQ(one, same[0]);
    EXPECT_EQ(compiler.status().compiled, 50);
}

// Answers to callbacks, each of which must come once.
class Answers {
  public:
    Compiler::Done next() {
        const std::lock_guard lock(mutex_);
        const std::size_t place = answers_.size();
        answers_.emplace_back();
        return [this, place](grammar::Compiled answer) {
            const std::lock_guard inner(mutex_);
            EXPECT_FALSE(answers_[place]) << "told twice";
            answers_[place] = std::move(answer);
            arrived_.notify_all();
        };
    }
    std::vector<grammar::Compiled> wait() {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] {
            return std::ranges::all_of(answers_, [](const auto& one) { return one.has_value(); });
        });
        std::vector<grammar::Compiled> all;
        for (const auto& one : answers_) all.push_back(*one);
        return all;
    }
    std::int64_t told() {
        const std::lock_guard lock(mutex_);
        return std::ranges::count_if(answers_, [](const auto& one) { return one.has_value(); });
    }

  private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<std::optional<grammar::Compiled>> answers_;
};

TEST(Compiler, TellsManyThatWaitWithoutAThreadForEach) {
    Compiler compiler(kSmall.make(), {.threads = 1});
    Answers answers;
    for (int i = 0; i < 60; ++i)
        compiler.compile(schema(R"({"const":)" + std::to_string(i % 30) + "}"), answers.next());
    const std::vector<grammar::Compiled> all = answers.wait();
    for (std::size_t i = 0; i < 30; ++i) {
        ASSERT_TRUE(all[i] && all[i + 30]);
        EXPECT_EQ(*all[i], *all[i + 30]);
    }
    EXPECT_EQ(compiler.status().compiled, 30);
    // Answers that are known or refused at once are told before the call returns.
    compiler.compile(schema(R"({"const":7})"), answers.next());
    compiler.compile(schema(R"({"type":"string","maxLength":100000000})"), answers.next());
    EXPECT_EQ(answers.told(), 62);
}

TEST(Compiler, RefusesEachThatWaitsWhenItsTimeIsOver) {
    Compiler compiler(kSmall.make(), {.wait = std::chrono::milliseconds(20), .threads = 0});
    Answers answers;
    for (int i = 0; i < 3; ++i) compiler.compile(schema(R"({"const":1})"), answers.next());
    compiler.compile(schema(R"({"const":2})"), answers.next());
    EXPECT_EQ(answers.told(), 0);
    for (const grammar::Compiled& one : answers.wait()) {
        ASSERT_FALSE(one);
        EXPECT_EQ(one.error().kind, ErrorKind::exhausted);
        EXPECT_NE(one.error().message.find("within 20 ms"), std::string::npos);
    }
    EXPECT_EQ(compiler.status().overran, 4);
}

TEST(Compiler, TellsWhatStillWaitsWhenItStops) {
    Compiler compiler(kSmall.make(), {.threads = 0});
    Answers answers;
    for (int i = 0; i < 5; ++i)
        compiler.compile(schema(R"({"const":)" + std::to_string(i % 3) + "}"), answers.next());
    EXPECT_EQ(answers.told(), 0);
    compiler.stop();
    compiler.compile(schema(R"({"const":9})"), answers.next());
    EXPECT_EQ(answers.told(), 6);
    for (const grammar::Compiled& one : answers.wait()) {
        ASSERT_FALSE(one);
        EXPECT_EQ(one.error().kind, ErrorKind::exhausted);
    }
}

std::string repeated(std::string_view text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
}

TEST(Compiler, RefusesBombsByTheirLimit) {
    Compiler compiler(kSmall.make());
    const std::vector<std::pair<Specification, std::string>> bombs = {
        {schema(R"({"enum":[")" + std::string(10 << 20, 'x') + "\"]}"),
         "bytes, more than the limit"},
        {schema(repeated(R"({"items":)", 5000) + "{}" + repeated("}", 5000)), "nest"},
        {schema(R"({"anyOf":[)" + repeated(R"({"type":"null"},)", 5000) + "{}]}"), "more than"},
        {schema(R"({"$ref":"#"})"), "finite"},
        {schema(
             R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"),
         "finite"},
        {schema(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"), "finite"},
        {schema(R"({"type":"string","maxLength":100000000})"), "limit"},
        {schema(R"({"type":"array","items":{},"minItems":2000000000})"), "limit"},
        {schema(R"x({"type":"string","pattern":"((((a{99}){99}){99}){99})"})x"), "written out"},
        {{.kind = Kind::regex, .text = "(((a{1000}){1000}){1000})"}, "written out"},
        {{.kind = Kind::regex, .text = repeated("(", 10000) + repeated(")", 10000)}, "more than"},
        {{.kind = Kind::regex, .text = repeated("(", 1000) + "a" + repeated(")", 1000)}, "nested"},
        {{.kind = Kind::regex, .text = "a{99999999999999999999}"}, "limit"},
        {{.kind = Kind::regex, .text = "(a|b)*a(a|b){9000}"}, "limit"},
        {{.kind = Kind::ebnf,
          .text = "root ::= " + repeated("(", 1000) + "\"a\"" + repeated(")", 1000)},
         "nested"},
        {{.kind = Kind::ebnf, .text = "root ::= a{200}\na ::= b{200}\nb ::= c{200}\nc ::= \"x\""},
         "multiply"},
        {{.kind = Kind::ebnf, .text = "root[max_tokens=3] ::= \"a\""}, "attributes"},
        {{.kind = Kind::choice, .choices = std::vector<std::string>(5000, "a")}, "limit"},
        {{.kind = Kind::choice, .choices = {std::string(1 << 20, 'a')}}, "limit"},
        {{.kind = Kind::choice}, "nothing to choose"},
        {{.kind = Kind::ebnf, .text = "root ::= root"}, "'root' has no text of finite length"},
        {{.kind = Kind::ebnf, .text = "root ::= \"a\" | \"b\" x\nx ::= y \"c\"\ny ::= \"d\" x"},
         "has no text of finite length"},
        {{.kind = Kind::ebnf, .text = "root ::= x{1,3}\nx ::= \"a\" x"}, "finite length"},
    };
    for (const auto& [bomb, reason] : bombs) {
        const auto compiled = compiler.compile(bomb);
        ASSERT_FALSE(compiled) << bomb.text.substr(0, 100);
        EXPECT_NE(compiled.error().kind, ErrorKind::exhausted) << "nobody is busy";
        EXPECT_NE(compiled.error().message.find(reason), std::string::npos)
            << bomb.text.substr(0, 100) << ": " << compiled.error().message;
        EXPECT_LT(compiled.error().message.size(), 400u);
    }
}

// Specifications within the limits are compiled or refused, whatever they are; none may crash.
TEST(Compiler, SurvivesWhatIsJustWithinTheLimits) {
    Compiler compiler(kSmall.make());
    const std::vector<Specification> hard = {
        {.kind = Kind::regex, .text = "(a|b)*a(a|b){40}"},
        {.kind = Kind::regex, .text = "(a*)*(a*)*(a*)*b"},
        {.kind = Kind::regex, .text = "(a|aa|aaa)+(x?){60}"},
        {.kind = Kind::regex, .text = "[^a]{2000}"},
        {.kind = Kind::ebnf, .text = "root ::= root root | \"a\" | \"\""},
        {.kind = Kind::ebnf, .text = "root ::= a\na ::= b\nb ::= a | \"x\""},
        {.kind = Kind::ebnf, .text = "nothing here"},
        {.kind = Kind::ebnf, .text = "root ::= missing"},
        {.kind = Kind::structural_tag, .text = R"({"format":{"type":"any_text"}})"},
        {.kind = Kind::structural_tag, .text = R"({"format":{"type":"or","elements":[]}})"},
        schema(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"),
        schema(R"({"type":"string","maxLength":65536})"),
        schema(
            R"({"type":"array","items":{"type":"array","items":{},"maxItems":4000},"maxItems":4000})"),
    };
    for (const Specification& one : hard) {
        const auto compiled = compiler.compile(one);
        if (!compiled) {
            EXPECT_FALSE(compiled.error().message.empty()) << one.text;
        }
    }
}

// Every recursion that can end is taken.
TEST(Compiler, TakesRulesThatCanEnd) {
    Compiler compiler(kSmall.make());
    for (const char* text : {"root ::= \"a\" root | \"\"", "root ::= x?\nx ::= \"a\" x | \"b\"",
                             "root ::= \"a\" x{0,3}\nx ::= \"b\"",
                             "root ::= y\nx ::= x\ny ::= \"a\"", "root ::= ([a-c] root)*"}) {
        const auto compiled = compiler.compile({.kind = Kind::ebnf, .text = text});
        EXPECT_TRUE(compiled) << text << ": " << compiled.error().message;
    }
}

}  // namespace
