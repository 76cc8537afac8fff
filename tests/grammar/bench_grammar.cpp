// SPDX-License-Identifier: Apache-2.0
// Prints how long a real vocabulary's grammars take to compile and masks to fill; asserts nothing.
//   bench_grammar DIRECTORY-WITH-TOKENIZER [LOGITS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "grammar/random_model.hpp"
#include "text/tokenizer.hpp"

namespace {

using namespace espalier;
using Clock = std::chrono::steady_clock;

double milliseconds(Clock::time_point from) {
    return std::chrono::duration<double, std::milli>(Clock::now() - from).count();
}

void measure(const char* title, grammar::Compiler& compiler,
             const grammar::Specification& specification) {
    const auto start = Clock::now();
    const auto compiled = compiler.compile(specification);
    const double compile_ms = milliseconds(start);
    if (!compiled) {
        std::printf("%-28s %9.1f ms  %s\n", title, compile_ms, compiled.error().message.c_str());
        return;
    }
    std::vector<std::uint32_t> words(compiler.vocabulary().mask_words());
    std::vector<double> masks;
    double accepts = 0;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const test::Drawn drawn = test::draw_text(grammar::Matcher(*compiled), seed, 40, 120);
        grammar::Matcher matcher(*compiled);
        for (const TokenId token : drawn.tokens) {
            const auto before = Clock::now();
            matcher.fill_mask(words);
            masks.push_back(milliseconds(before) * 1000);
            const auto middle = Clock::now();
            if (!matcher.accept(token)) std::abort();
            accepts += milliseconds(middle) * 1000;
        }
    }
    std::ranges::sort(masks);
    double sum = 0;
    for (const double one : masks) sum += one;
    const auto count = static_cast<double>(masks.size());
    std::printf(
        "%-28s %9.1f ms %8.2f MB %7zu masks: mean %6.1f, median %6.1f, 99 %% %7.1f us; accept "
        "%5.2f us\n",
        title, compile_ms, static_cast<double>((*compiled)->bytes()) / 1e6, masks.size(),
        sum / count, masks[masks.size() / 2], masks[masks.size() * 99 / 100], accepts / count);
}

}  // namespace

int main(int argc, char** argv) {
    using grammar::Kind;
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_grammar DIRECTORY-WITH-TOKENIZER [LOGITS]\n");
        return 2;
    }
    const auto tokenizer = text::Tokenizer::load(argv[1]);
    if (!tokenizer) {
        std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str());
        return 1;
    }
    const std::int64_t size = argc > 2 ? std::atoll(argv[2]) : tokenizer->vocabulary();
    const std::vector<TokenId> stop = {tokenizer->eos().value_or(0)};
    auto vocabulary = grammar::Vocabulary::make(*tokenizer, size, stop);
    if (!vocabulary) {
        std::fprintf(stderr, "%s\n", vocabulary.error().message.c_str());
        return 1;
    }
    const auto start = Clock::now();
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    grammar::Compiler compiler(*vocabulary, {.wait = std::chrono::seconds(60)});
    std::printf("%lld tokens, tables in %.0f ms\n", static_cast<long long>(size),
                milliseconds(start));
    const char* person =
        R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},)"
        R"("email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5},)"
        R"("kind":{"enum":["customer","supplier","other"]}},"required":["name","age","kind"]})";
    std::string wide = R"({"type":"object","properties":{)";
    for (int i = 0; i < 40; ++i)
        wide +=
            fmt::format(R"({}"property_{}":{{"type":["string","null"]}})", i == 0 ? "" : ",", i);
    wide += "}}";
    std::string choices = R"({"enum":[)";
    for (int i = 0; i < 1000; ++i)
        choices += fmt::format(R"({}"value number {}")", i == 0 ? "" : ",", i * 7919);
    choices += "]}";
    measure("json_object", compiler, {.kind = Kind::json_object});
    measure("a person", compiler, {.kind = Kind::json_schema, .text = person});
    measure("a person, compact", compiler,
            {.kind = Kind::json_schema, .text = person, .any_whitespace = false});
    measure("40 optional properties", compiler, {.kind = Kind::json_schema, .text = wide});
    measure("an enum of 1000", compiler, {.kind = Kind::json_schema, .text = choices});
    measure("strings to 1000", compiler,
            {.kind = Kind::json_schema, .text = R"({"type":"string","maxLength":1000})"});
    measure("regex of a date", compiler, {.kind = Kind::regex, .text = R"(\d{4}-\d{2}-\d{2})"});
    measure("regex .{0,500}", compiler, {.kind = Kind::regex, .text = R"(.{0,500})"});
    measure("regex, exponential as DFA", compiler,
            {.kind = Kind::regex, .text = R"((a|b)*a(a|b){40})"});
    measure("choice", compiler,
            {.kind = Kind::choice, .choices = {"positive", "negative", "neutral"}});
}
