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

// drawing: makes the texts, so that their masks are not known to `compiler`. "again" is a mask that
// is.
void measure(const char* title, grammar::Compiler& compiler, grammar::Compiler& drawing,
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
    double accepts = 0, again = 0;
    const auto drawn_by = drawing.compile(specification);
    if (!drawn_by) std::abort();
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const test::Drawn drawn = test::draw_text(grammar::Matcher(*drawn_by), seed, 40, 120);
        grammar::Matcher matcher(*compiled);
        for (const TokenId token : drawn.tokens) {
            const auto before = Clock::now();
            matcher.fill_mask(words);
            masks.push_back(milliseconds(before) * 1000);
            const auto once_more = Clock::now();
            matcher.fill_mask(words);
            again += milliseconds(once_more) * 1000;
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
        "%-28s %9.1f ms %6.2f M steps %8.2f MB %5zu masks: mean %6.1f, median %6.1f, 99 %% %7.1f "
        "us, again %5.1f; accept %5.2f us\n",
        title, compile_ms, static_cast<double>((*compiled)->work()) / 1e6,
        static_cast<double>((*compiled)->bytes()) / 1e6, masks.size(), sum / count,
        masks[masks.size() / 2], masks[masks.size() * 99 / 100], again / count, accepts / count);
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
    grammar::Compiler compiler(*vocabulary, {.work = std::int64_t{1} << 40});
    std::printf("%lld tokens, tables in %.0f ms\n", static_cast<long long>(size),
                milliseconds(start));
    grammar::Compiler drawing(*vocabulary, {.work = std::int64_t{1} << 40});
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
    measure("json_object", compiler, drawing, {.kind = Kind::json_object});
    measure("a person", compiler, drawing, {.kind = Kind::json_schema, .text = person});
    measure("a person, compact", compiler, drawing,
            {.kind = Kind::json_schema, .text = person, .any_whitespace = false});
    measure("40 optional properties", compiler, drawing, {.kind = Kind::json_schema, .text = wide});
    measure("an enum of 1000", compiler, drawing, {.kind = Kind::json_schema, .text = choices});
    measure("strings to 1000", compiler, drawing,
            {.kind = Kind::json_schema, .text = R"({"type":"string","maxLength":1000})"});
    std::string eight = R"({"type":"object","required":["p0","p1","p2","p3"],"properties":{)";
    for (int i = 0; i < 8; ++i)
        eight += fmt::format(R"({}"p{}":{{"type":"string","minLength":{},"maxLength":{}}})",
                             i == 0 ? "" : ",", i, i, 20 * (i + 1));
    eight += "}}";
    measure("8 strings, 8 bounds", compiler, drawing, {.kind = Kind::json_schema, .text = eight});
    measure("regex of a date", compiler, drawing,
            {.kind = Kind::regex, .text = R"(\d{4}-\d{2}-\d{2})"});
    measure("regex .{0,500}", compiler, drawing, {.kind = Kind::regex, .text = R"(.{0,500})"});
    measure("regex, exponential as DFA", compiler, drawing,
            {.kind = Kind::regex, .text = R"((a|b)*a(a|b){40})"});
    measure("choice", compiler, drawing,
            {.kind = Kind::choice, .choices = {"positive", "negative", "neutral"}});
}
