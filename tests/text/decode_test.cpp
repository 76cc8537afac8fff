// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "support/paths.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace espalier::text {
namespace {

Tokenizer load(const char* folder) {
    auto tokenizer = Tokenizer::load(std::filesystem::path(test::source_directory()) /
                                     "tests/text/data" / folder);
    if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
    return std::move(*tokenizer);
}

TEST(Decode, ReturnsTheText) {
    const std::string text =
        "Hello  wörld, 你好 👩‍👩‍👧‍👦\r\n\t'tis 12345 <think>\x01";
    for (const char* folder : {"deepseek_v3_small", "deepseek_v2_small", "kimi_small"}) {
        const Tokenizer tokenizer = load(folder);
        const auto plain = tokenizer.encode(text);
        EXPECT_EQ(tokenizer.decode(*plain), text) << folder;
        const auto parsed = tokenizer.encode(text, SpecialTokens::parsed);
        EXPECT_EQ(tokenizer.decode(*parsed, false), text) << folder;
    }
}

TEST(Decode, SpecialTokensAreSkippedWhenAsked) {
    const Tokenizer tokenizer = load("deepseek_v3_small");
    const auto ids = tokenizer.encode("<｜begin▁of▁sentence｜>a<｜User｜>b<｜end▁of▁sentence｜>",
                                      SpecialTokens::parsed);
    ASSERT_EQ(ids->size(), 5u);
    // "<｜User｜>" is an added token, but not a special one.
    EXPECT_EQ(tokenizer.decode(*ids), "a<｜User｜>b");
    EXPECT_EQ(tokenizer.decode(*ids, false),
              "<｜begin▁of▁sentence｜>a<｜User｜>b<｜end▁of▁sentence｜>");
    EXPECT_TRUE(tokenizer.is_special((*ids)[0]));
    EXPECT_FALSE(tokenizer.is_special((*ids)[2]));
}

TEST(Decode, NoAddedTokenIsTakenFromUserText) {
    for (const char* folder : {"deepseek_v3_small", "kimi_small"}) {
        const Tokenizer tokenizer = load(folder);
        const auto ids = tokenizer.encode(
            "<｜User｜><think><｜end▁of▁sentence｜><|im_end|>[EOS]<|tool_call_begin|>");
        for (const char* token : {"<｜User｜>", "<think>", "<｜end▁of▁sentence｜>", "<|im_end|>",
                                  "[EOS]", "<|tool_call_begin|>"}) {
            const auto id = tokenizer.id_of(token);
            EXPECT_EQ(id ? std::ranges::count(*ids, *id) : 0, 0) << token;
        }
    }
}

TEST(Decode, NamesItsTokens) {
    const Tokenizer deepseek = load("deepseek_v3_small");
    EXPECT_EQ(deepseek.bos(), 0);  // add_bos_token of tokenizer_config.json
    EXPECT_EQ(deepseek.eos(), 1);
    EXPECT_EQ(deepseek.vocabulary(), 4106);
    EXPECT_EQ(deepseek.token_bytes(*deepseek.id_of(" the")), " the");
    EXPECT_EQ(deepseek.token_bytes(-1), "");
    EXPECT_EQ(deepseek.token_bytes(1 << 30), "");
    EXPECT_FALSE(deepseek.id_of("no such token"));
    EXPECT_EQ(deepseek.chat_template(), "{% for m in messages %}{{ m.content }}{% endfor %}");
    EXPECT_EQ(load("deepseek_v2_small").bos(), 0);  // TemplateProcessing of tokenizer.json

    const Tokenizer kimi = load("kimi_small");
    EXPECT_EQ(kimi.vocabulary(), 1297 + 256);
    EXPECT_FALSE(kimi.bos());  // has one, but does not add it
    EXPECT_EQ(kimi.eos(), 1298);
    EXPECT_EQ(kimi.token_bytes(1297 + 5), "<|reserved_token_1302|>");
    EXPECT_TRUE(kimi.is_special(1299));
    EXPECT_FALSE(kimi.is_special(*kimi.id_of("<|tool_call_begin|>")));
}

TEST(StreamDecoder, EqualsDecodeAndNeverSplitsACodePoint) {
    const Tokenizer tokenizer = load("deepseek_v3_small");
    std::mt19937 random(3);
    for (int round = 0; round < 2000; ++round) {
        std::vector<TokenId> ids;
        // Mostly single bytes (ids 3…258), so that sequences are broken in every way.
        for (auto i = random() % 30; i > 0; --i)
            ids.push_back(
                static_cast<TokenId>(random() % 4 == 0 ? random() % 4200 : 3 + random() % 256));
        const bool skip_special = round % 2 == 0;
        StreamDecoder decoder(tokenizer, skip_special);
        std::string joined;
        for (const TokenId id : ids) {
            const std::string piece = decoder.push(id);
            ASSERT_EQ(valid_utf8_prefix(piece), piece.size());
            joined += piece;
        }
        joined += decoder.finish();
        ASSERT_EQ(joined, tokenizer.decode(ids, skip_special));
        ASSERT_EQ(decoder.finish(), "");
    }
}

TEST(StreamDecoder, HoldsBackNoMoreThanItMust) {
    const Tokenizer tokenizer = load("deepseek_v3_small");
    const auto byte = [&](char c) { return *tokenizer.id_of(std::string_view(&c, 1)); };
    StreamDecoder decoder(tokenizer);
    EXPECT_EQ(decoder.push(byte('\xe4')), "");
    EXPECT_EQ(decoder.push(byte('\xbd')), "");
    EXPECT_EQ(decoder.push(byte('\xa0')), "你");
    EXPECT_EQ(decoder.push(byte('\xf0')), "");
    EXPECT_EQ(decoder.push(byte('x')), "\xEF\xBF\xBDx");
    EXPECT_EQ(decoder.push(byte('\xf0')), "");
    EXPECT_EQ(decoder.finish(), "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace espalier::text
