// SPDX-License-Identifier: Apache-2.0
// Lines come back as they were written, and what is wrong with one is said by name.
#include "trace/line.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "trace/samples.hpp"

namespace espalier::trace {
namespace {

TEST(TraceLine, EveryKindComesBackAsItWas) {
    std::string line;
    append_line(line, sample_header());
    const auto header = parse_header(line, "here");
    ASSERT_TRUE(header) << header.error().message;
    EXPECT_EQ(*header, sample_header());
    for (const Event& event : sample_events()) {
        line.clear();
        append_line(line, event);
        EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line each";
        const auto back = parse_event(line, "here");
        ASSERT_TRUE(back) << back.error().message;
        EXPECT_TRUE(*back == event) << line;
    }
}

TEST(TraceLine, NumbersKeepTheirBits) {
    Random random(1);
    for (int i = 0; i < 2000; ++i) {
        Submission submission = sample_submission();
        const auto bits = static_cast<std::uint32_t>(random.bits());
        std::memcpy(&submission.sampling.temperature, &bits, 4);
        if (!std::isfinite(submission.sampling.temperature)) continue;
        submission.sampling.seed = random.bits();
        std::string line;
        append_line(line, Event(submission));
        const auto back = parse_event(line, "here");
        ASSERT_TRUE(back) << back.error().message;
        const Sampling& sampling = std::get<Submission>(*back).sampling;
        EXPECT_EQ(std::memcmp(&sampling.temperature, &submission.sampling.temperature, 4), 0);
        EXPECT_EQ(sampling.seed, submission.sampling.seed);
    }
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << text;
    return text.replace(at, from.size(), to);
}

void expect_refused(std::string_view from, std::string_view to, const std::string& why) {
    std::string line;
    append_line(line, Event(sample_step()));
    const auto parsed = parse_event(replaced(line, from, to), "run.jsonl, line 3");
    ASSERT_FALSE(parsed) << to;
    EXPECT_NE(parsed.error().message.find("run.jsonl, line 3"), std::string::npos);
    EXPECT_NE(parsed.error().message.find(why), std::string::npos) << parsed.error().message;
}

TEST(TraceLine, WhatIsWrongIsNamed) {
    expect_refused("\"kind\":\"step\"", "\"kind\":\"stop\"", "'stop' is not a kind of line");
    expect_refused("\"kind\":\"step\"", "\"kind\":7", "'kind' is missing, or not a text");
    expect_refused("\"number\":12", "\"nummer\":12", "'number' is missing");
    expect_refused("\"number\":12", "\"number\":12,\"more\":1", "'more' is not a known field");
    expect_refused("\"number\":12", "\"number\":\"12\"", "'number' is not a whole number");
    expect_refused("\"number\":12", "\"number\":12.5", "'number' is not a whole number");
    expect_refused("\"number\":12", "\"number\":-1", "'number' is -1, not within 0…");
    expect_refused("\"number\":12", "\"number\":18446744073709551615", "'number' is not a whole");
    expect_refused("\"rows\":[", "\"rows\":[7,", "'rows[0]' is not an object");
    expect_refused("\"q_len\":64", "\"q_len\":true", "'rows[1].q_len' is not a whole number");
    expect_refused("\"form\":\"absorbed\"", "\"form\":\"other\"",
                   "'rows[0].form' is not one of absorbed, decompressed");
    expect_refused("\"nodes\":3", "\"nodes\":65", "'rows[0].nodes' is 65, not within 0…64");
    expect_refused("\"parents\":[-1,0,0,1]", "\"parents\":[-1,0,0,null]",
                   "'trees[0].parents[3]' is not a whole number");
    expect_refused("\"tokens\":[7,8,9,9]", "\"tokens\":{}", "'trees[0].tokens' is not a list");
    expect_refused("\"pages\":{", "\"pages\":[{", "not valid JSON");
    expect_refused("\"ended\":[", "\"ended\":[[[[[[[[[[", "nested deeper than 8");
    std::string nodes = "\"tokens\":[7";
    for (int i = 0; i < 64; ++i) nodes += ",7";
    expect_refused("\"tokens\":[7,8,9,9", nodes, "'trees[0].tokens' has 65 entries, at most 64");
    expect_refused("no \\\"memory\\\"", std::string(70000, 'x'), "'failure' has 70000 bytes");
}

TEST(TraceLine, OtherFormatsAreRefusedBeforeTheirFieldsAreLookedAt) {
    const auto parsed = parse_header(R"({"kind":"header","format":3,"news":[]})", "a file");
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().message, "a file: the trace has format 3, this build reads 1 and 2");
    EXPECT_FALSE(parse_header(R"({"kind":"step"})", "a file"));
    EXPECT_FALSE(parse_header("[]", "a file"));
    EXPECT_FALSE(parse_header(R"({"kind":"header"})", "a file"));
}

// The header of format 1 becomes an identity; what it did not say is not known.
TEST(TraceLine, TheFirstFormatsHeaderIsRead) {
    const auto read = [](std::string_view variant, std::string_view asked) {
        const auto header = parse_header(
            fmt::format(R"({{"kind":"header","format":1,"version":"0.1.0","model":{{"name":"m",)"
                        R"("path":"p","hash":"77"}},"variant":"{}",{}"threads":2,)"
                        R"("sampling_version":1,"settings":{{"page_count":27,"max_model_len":99,)"
                        R"("max_rows":4,"max_step_tokens":2048,"max_step_gather":256,)"
                        R"("max_waiting":9,"max_waiting_tokens":99,"prompt_quantum":512,)"
                        R"("prefill_segment":256,"prefix_cache":true,"reuse_generated":false,)"
                        R"("hash_seed":0,"grant":"measured","drafters":[]}}}})",
                        variant, asked),
            "here");
        EXPECT_TRUE(header) << header.error().message;
        EXPECT_EQ(header->format, kFormat);
        EXPECT_EQ(header->model.path, "p");
        EXPECT_EQ(header->settings.max_rows, 4);
        return header->identity;
    };
    TextIdentity expected = {.tokenizer = {},
                             .model = "77",
                             .weights = "own",
                             .activations = "own",
                             .head = "own",
                             .kv_format = {},
                             .prefill_segment = 256,
                             .backend = "cpu",
                             .family = "cpu",
                             .variant = "avx2",
                             .products_version = 1,
                             .sampling_version = 1};
    EXPECT_EQ(read("avx2", ""), expected);
    expected.weights = "int4";
    expected.kv_format = "fp8_token";
    expected.backend = "cuda";
    expected.family = "hopper";
    expected.variant = "sm_90a";
    EXPECT_EQ(read("cuda", R"("kv_format":"fp8_token","weights":"int4",)"), expected);
}

TEST(TraceLine, WhatNoRequestCanHaveIsNotReadBack) {
    Submission submission = sample_submission();
    submission.sampling.top_p = std::numeric_limits<float>::infinity();
    std::string line;
    append_line(line, Event(submission));
    const auto parsed = parse_event(line, "here");
    ASSERT_FALSE(parsed);
    EXPECT_NE(parsed.error().message.find("'sampling.top_p' is not a number"), std::string::npos);
}

}  // namespace
}  // namespace espalier::trace
