// SPDX-License-Identifier: Apache-2.0
// Lossless with grammars: the workloads of lossless_test.cpp with random schemas, regexes, choices
// and rules of reasoning. Each request equals itself run alone with a fresh matcher for every
// token; and each text that came to its end is one of its grammar, read byte by byte. With
// ESPALIER_HELD_TEXTS they are written to a file, for tools/check_held_texts.py to judge.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>

#include "engine/tiny_target.hpp"
#include "grammar/matcher.hpp"
#include "lossless/check.hpp"

namespace espalier::lossless {
namespace {

#if defined(ESPALIER_LONG_RUN)
constexpr std::uint64_t kFirstSeed = 2'000'000, kWorkloads = 700;
constexpr std::int64_t kHeld = 2000;
#elif defined(ESPALIER_SANITIZED)
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 20;
constexpr std::int64_t kHeld = 20;
#else
constexpr std::uint64_t kFirstSeed = 1, kWorkloads = 80;
constexpr std::int64_t kHeld = 100;
#endif

// A grammar's compiler whose tokens are single bytes: knows nothing of the model's tokens.
grammar::Compiler& byte_compiler() {
    static const auto compiler = [] {
        std::vector<std::string> tokens;
        for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
        tokens.emplace_back();
        auto vocabulary = grammar::Vocabulary::from_bytes(std::move(tokens), 257, std::array{256});
        if (!vocabulary) throw std::runtime_error(vocabulary.error().message);
        return std::make_unique<grammar::Compiler>(std::move(*vocabulary));
    }();
    return *compiler;
}

std::string invalid(const HeldText& held) {
    auto compiled = byte_compiler().compile(held.specification);
    if (!compiled) return compiled.error().message;
    grammar::Matcher matcher(*compiled);
    for (std::size_t i = 0; i < held.text.size(); ++i)
        if (!matcher.accept(static_cast<unsigned char>(held.text[i])))
            return fmt::format("byte {} is not legal", i);
    return matcher.may_end() ? "" : "the text is not whole";
}

TEST(GrammarLossless, EveryRequestEqualsItselfAloneWithAFreshMatcherForEveryToken) {
    const char* one = std::getenv("ESPALIER_WORKLOAD");
    const char* file = std::getenv("ESPALIER_HELD_TEXTS");
    const std::uint64_t first = one == nullptr ? kFirstSeed : std::strtoull(one, nullptr, 10);
    const std::uint64_t count = one == nullptr ? kWorkloads : 1;
    std::ofstream lines;
    if (file != nullptr) lines.open(file);
    Coverage coverage;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const Subject target =
            engine::tiny_target(seed % 2 == 0 ? engine::Family::v2 : engine::Family::v3).target();
        const auto verdict = check_workload(grammar_workload(seed, target), target);
        ASSERT_TRUE(verdict) << "workload " << seed << ": " << verdict.error().message;
        ASSERT_TRUE(verdict->differences.empty())
            << fmt::format("{}", fmt::join(verdict->differences, "\n"));
        for (const HeldText& held : verdict->held) {
            EXPECT_EQ(invalid(held), "") << "workload " << seed << ": " << json_line(held);
            if (lines) lines << json_line(held) << "\n";
        }
        coverage.add(verdict->coverage);
    }
    RecordProperty("grammars", static_cast<int>(coverage.grammars));
    RecordProperty("held", static_cast<int>(coverage.held));
    RecordProperty("forced", static_cast<int>(coverage.forced));
    RecordProperty("markers_in_trees", static_cast<int>(coverage.markers_in_trees));
    RecordProperty("accepted", static_cast<int>(coverage.accepted));
    RecordProperty("preemptions", static_cast<int>(coverage.preemptions));
    RecordProperty("hits", static_cast<int>(coverage.hits));
    if (count < kWorkloads) return;
    EXPECT_GE(coverage.held, kHeld);
    EXPECT_GT(coverage.accepted, 3 * static_cast<std::int64_t>(kWorkloads));
    if (kWorkloads < 80) return;
    for (const std::int64_t seen :
         {coverage.forced, coverage.markers_in_trees, coverage.preemptions, coverage.hits,
          coverage.moved, coverage.interrupted, coverage.stop_strings, coverage.accepted_beside})
        EXPECT_GT(seen, 0);
}

}  // namespace
}  // namespace espalier::lossless
