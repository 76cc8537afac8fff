// SPDX-License-Identifier: Apache-2.0
// Flags without the binary: integers are read as they are written or refused, errors name the flag,
// and the table of engine flags reaches every option.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.hpp"
#include "cli/engine_flags.hpp"
#include "cli/flag_names.hpp"
#include "cli/sampling_flags.hpp"

namespace espalier::cli {
namespace {

// Throws CLI::ParseError where the binary would exit with 2.
void parse(CLI::App& app, std::vector<std::string> arguments) {
    require_decimal_integers(app);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
    app.parse(arguments);
}

struct Numbers {
    CLI::App app;
    std::uint64_t seed = 7;
    std::int64_t count = 7;
    std::int32_t small = 7;
    std::optional<std::int32_t> maybe;
    std::vector<std::int64_t> list;

    Numbers() {
        app.add_option("--seed", seed);
        app.add_option("--count", count);
        app.add_option("--small", small);
        app.add_option("--maybe", maybe);
        app.add_option("--list", list)
            ->delimiter(',')
            ->allow_extra_args(false)
            ->check(CLI::Range(0, 1000));
    }
    bool takes(std::vector<std::string> arguments) {
        try {
            parse(app, std::move(arguments));
            return true;
        } catch (const CLI::ParseError&) {
            return false;
        }
    }
};

TEST(Flags, IntegersAreReadExactly) {
    Numbers given;
    ASSERT_TRUE(given.takes({"--seed", "18446744073709551615", "--count", "-9223372036854775808",
                             "--small", "-2147483648", "--maybe", "0", "--list", "1,20,300"}));
    EXPECT_EQ(given.seed, ~std::uint64_t{0});
    EXPECT_EQ(given.count, std::numeric_limits<std::int64_t>::min());
    EXPECT_EQ(given.small, std::numeric_limits<std::int32_t>::min());
    EXPECT_EQ(given.maybe, 0);
    EXPECT_EQ(given.list, (std::vector<std::int64_t>{1, 20, 300}));
}

TEST(Flags, WhatIsNoDecimalIntegerIsRefused) {
    for (const char* text :
         {"-1", "18446744073709551616", "100000000000000000000000", "1e23", "1e3", "010", "0x10",
          "1.0", "1.5", "", "one", "+1", "1_000", "--", "-", "1 ", "nan", "00", "-0x1"})
        EXPECT_FALSE(Numbers().takes({"--seed", text})) << text;
    for (const char* text : {"9223372036854775808", "-9223372036854775809", "1e9", "010", "0b1"})
        EXPECT_FALSE(Numbers().takes({"--count", text})) << text;
    for (const char* text : {"2147483648", "-2147483649", "08"})
        EXPECT_FALSE(Numbers().takes({"--small", text})) << text;
    EXPECT_FALSE(Numbers().takes({"--maybe", "010"}));
    EXPECT_FALSE(Numbers().takes({"--list", "1,020"}));
    EXPECT_FALSE(Numbers().takes({"--list", "1,x"}));
}

// Any text: taken with exactly its value, or refused.
TEST(Flags, RandomTextsAreTakenExactlyOrRefused) {
    Random random(3);
    int taken = 0;
    for (int i = 0; i < 3000; ++i) {
        constexpr std::string_view kLetters = "0123456789012345678901234567890123456789-+.exX ";
        std::string text;
        for (int length = random.between(1, 21); length > 0; --length)
            text += kLetters[random.bits() % kLetters.size()];
        Numbers numbers;
        if (!numbers.takes({"--seed=" + text})) continue;
        ++taken;
        EXPECT_EQ(std::to_string(numbers.seed), text);
    }
    EXPECT_GT(taken, 100);
}

TEST(Flags, AnErrorNamesTheFlagThatSetTheField) {
    CLI::App app;
    SamplingFlags flags;
    flags.add_to(app);
    app.add_option("--logprobs", flags.request.output.top_logprobs);
    const auto named = [&](const char* field) {
        const Expected<void> failed = fail_field(ErrorKind::invalid, field, "{} is wrong", 3);
        return named_by_flag(app, failed.error()).message;
    };
    EXPECT_EQ(named("temperature"), "--temperature: 3 is wrong");
    EXPECT_EQ(named("max_tokens"), "--max-tokens: 3 is wrong");
    EXPECT_EQ(named("choices"), "--choices: 3 is wrong");
    EXPECT_EQ(named("stop[2]"), "--stop[2]: 3 is wrong");
    EXPECT_EQ(named("stop_token_ids[0]"), "--stop-token-id[0]: 3 is wrong");
    EXPECT_EQ(named("top_logprobs"), "--logprobs: 3 is wrong");
    EXPECT_EQ(named("salt"), "salt: 3 is wrong");  // no flag sets it
    EXPECT_EQ(named_by_flag(app, {ErrorKind::io, "no such file"}).message, "no such file");
}

TEST(Flags, EveryOptionOfAnEngineIsReached) {
    CLI::App app;
    EngineFlags flags;
    flags.add_to(app, {.rows = "0: some", .pages = "0: enough"});
    parse(app, {"--rows",
                "3",
                "--pages",
                "40",
                "--step-tokens",
                "700",
                "--max-waiting",
                "9",
                "--max-model-len",
                "999",
                "--grant",
                "everything",
                "--prefix-cache",
                "off",
                "--prefill-segment",
                "0",
                "--reuse-generated",
                "--trace",
                "t.jsonl",
                "--weights",
                "int4",
                "--kv-format",
                "fp8_token",
                "--threads",
                "2"});
    EXPECT_EQ(flags.engine.sizes.rows, 3);
    EXPECT_EQ(flags.engine.sizes.pages, 40);
    EXPECT_EQ(flags.engine.sizes.step_tokens, 700);
    EXPECT_EQ(flags.engine.sizes.max_waiting, 9);
    EXPECT_EQ(flags.engine.sizes.max_model_len, 999);
    EXPECT_EQ(flags.engine.grant, engine::NodeGrant::everything);
    EXPECT_FALSE(flags.engine.prefix_cache);
    EXPECT_EQ(flags.engine.prefill_segment, 0);
    EXPECT_TRUE(flags.engine.reuse_generated);
    EXPECT_EQ(flags.engine.trace, "t.jsonl");
    EXPECT_EQ(flags.load.rounding, WeightCode::int4);
    EXPECT_EQ(flags.load.kv_format, mla::KvFormat::fp8_token);
    EXPECT_EQ(flags.load.threads, 2);
}

TEST(Flags, AnEngineIsWhatItIsWithoutThem) {
    CLI::App app;
    EngineFlags flags;
    flags.add_to(app, {.rows = "", .pages = ""});
    parse(app, {});
    const runtime::EngineOptions plain;
    EXPECT_EQ(flags.engine.grant, plain.grant);
    EXPECT_EQ(flags.engine.prefix_cache, plain.prefix_cache);
    EXPECT_EQ(flags.engine.prefill_segment, plain.prefill_segment);
    EXPECT_EQ(flags.engine.sizes.step_tokens, plain.sizes.step_tokens);
    EXPECT_FALSE(flags.engine.hash_seed);
    EXPECT_FALSE(flags.load.kv_format);
    EXPECT_FALSE(flags.load.rounding);
}

TEST(Flags, WhatAnEngineHasNoWordForIsRefused) {
    const std::vector<std::vector<std::string>> bad = {
        {"--prefix-cache", "maybe"}, {"--prefill-segment", "128"}, {"--grant", "all"},
        {"--kv-format", "int4"},     {"--rows", "many"},           {"--rows"},
        {"--hash-seed", "1"},        {"--weights", "int3"}};
    for (const std::vector<std::string>& arguments : bad) {
        CLI::App app;
        EngineFlags flags;
        flags.add_to(app, {.rows = "", .pages = ""});
        EXPECT_THROW(parse(app, arguments), CLI::ParseError) << arguments.front();
    }
}

}  // namespace
}  // namespace espalier::cli
