// SPDX-License-Identifier: Apache-2.0
// A tokenizer written into GGUF metadata as llama.cpp's converter does it gives the ids of the
// published files, and what such metadata can get wrong is refused by name.
#include "base/gguf.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/mapped_file.hpp"
#include "support/gguf_tokenizer.hpp"
#include "support/gguf_writer.hpp"
#include "support/paths.hpp"
#include "text/byte_level.hpp"
#include "text/gguf_files.hpp"
#include "text/goldens.hpp"
#include "text/tokenizer.hpp"

namespace espalier::text {
namespace {

Expected<Tokenizer> load(const GgufWriter& file) {
    const std::string bytes = file.bytes();
    ESPALIER_ASSIGN_OR_RETURN(const GgufHeader header,
                              parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf"));
    return Tokenizer::from_gguf(header, "m.gguf");
}

using Parts = GgufTokenizer;

Parts parts_of_json(const std::string& folder, const std::string& pre) {
    return gguf_tokenizer(kGoldenData / folder / "tokenizer.json", pre);
}

// Kimi's ranks are ids. Its merges are made from them, so that the list stays empty.
Parts parts_of_kimi() {
    const auto tokenizer = Tokenizer::load(kGoldenData / "kimi_small");
    EXPECT_TRUE(tokenizer);
    Parts parts;
    parts.pre = "kimi-k2";
    for (TokenId id = 0; id < tokenizer->vocabulary(); ++id) {
        if (tokenizer->is_added(id)) {
            parts.put(static_cast<std::size_t>(id), std::string(tokenizer->token_bytes(id)),
                      tokenizer->is_special(id) ? 3 : 4);
            continue;
        }
        std::string letters;
        for (const char byte : tokenizer->token_bytes(id))
            letters += letter_of_byte(static_cast<unsigned char>(byte));
        parts.put(static_cast<std::size_t>(id), letters, 1);
    }
    return parts;
}

TEST(GgufTokenizer, IdsEqualTheReference) {
    for (const auto& [folder, pre] :
         {std::pair("deepseek_v2_small", "deepseek-llm"),
          std::pair("deepseek_v3_small", "deepseek-v3"), std::pair("glm_small", "glm4"),
          std::pair("kimi_small", "kimi-k2")}) {
        SCOPED_TRACE(folder);
        const bool kimi = std::string(pre) == "kimi-k2";
        const auto tokenizer = load((kimi ? parts_of_kimi() : parts_of_json(folder, pre)).file());
        ASSERT_TRUE(tokenizer) << tokenizer.error().message;
        expect_goldens(*tokenizer, folder, 1000);
    }
}

TEST(GgufTokenizer, TakesMarkedTokensAndTheTemplate) {
    Parts parts = parts_of_json("deepseek_v3_small", "deepseek-v3");
    std::uint32_t marked = 0;
    while (parts.kinds[marked] != 3) ++marked;
    GgufWriter file = parts.file();
    file.u32("tokenizer.ggml.bos_token_id", marked);
    file.u32("tokenizer.ggml.eos_token_id", marked);
    file.text("tokenizer.chat_template", "{{ messages }}");
    auto tokenizer = load(file);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->eos(), static_cast<TokenId>(marked));
    EXPECT_EQ(tokenizer->bos(), std::nullopt);
    EXPECT_EQ(tokenizer->chat_template(), "{{ messages }}");
    EXPECT_TRUE(tokenizer->is_special(static_cast<TokenId>(marked)));
    file.boolean("tokenizer.ggml.add_bos_token", true);
    tokenizer = load(file);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    EXPECT_EQ(tokenizer->bos(), static_cast<TokenId>(marked));
}

// The files of it: what a published tokenizer gives, with markers and as plain text.
TEST(GgufTokenizer, ItsFilesAreTheSameTokenizer) {
    for (const auto& [folder, pre] :
         {std::pair("deepseek_v2_small", "deepseek-llm"),
          std::pair("deepseek_v3_small", "deepseek-v3"), std::pair("glm_small", "glm4")}) {
        SCOPED_TRACE(folder);
        const Parts parts = parts_of_json(folder, pre);
        GgufWriter writer = parts.file();
        const auto marked = std::ranges::find(parts.kinds, 3) - parts.kinds.begin();
        writer.u32("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(marked));
        writer.boolean("tokenizer.ggml.add_bos_token", std::string(pre) != "glm4");
        writer.text("tokenizer.chat_template", "{{ messages }}");
        const std::string bytes = writer.bytes();
        const auto header = parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf");
        ASSERT_TRUE(header);
        const auto own = Tokenizer::from_gguf(*header, "m.gguf");
        ASSERT_TRUE(own) << own.error().message;
        const auto files = gguf_tokenizer_files(*header, "m.gguf");
        ASSERT_TRUE(files) << files.error().message;
        ASSERT_EQ(files->size(), 2u);
        EXPECT_EQ((*files)[0].first, "tokenizer.json");
        EXPECT_EQ((*files)[1].first, "tokenizer_config.json");
        const auto read =
            Tokenizer::from_tokenizer_json((*files)[0].second, (*files)[1].second, "m");
        ASSERT_TRUE(read) << read.error().message;
        expect_goldens(*read, folder, 1000);
        EXPECT_EQ(read->bos(), own->bos());
        EXPECT_EQ(read->chat_template(), own->chat_template());
        ASSERT_EQ(read->vocabulary(), own->vocabulary());
        std::string markers;
        for (TokenId id = 0; id < own->vocabulary(); ++id) {
            ASSERT_EQ(read->token_bytes(id), own->token_bytes(id)) << id;
            ASSERT_EQ(read->is_special(id), own->is_special(id)) << id;
            ASSERT_EQ(read->is_added(id), own->is_added(id)) << id;
            if (own->is_added(id)) markers += fmt::format("a {}b", own->token_bytes(id));
        }
        for (const SpecialTokens special : {SpecialTokens::as_text, SpecialTokens::parsed})
            EXPECT_EQ(read->encode(markers, special).value(),
                      own->encode(markers, special).value());
    }
    const std::string bytes = parts_of_kimi().file().bytes();
    const auto refused = gguf_tokenizer_files(
        parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf").value(), "m.gguf");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("'kimi-k2', merged by rank"), std::string::npos);
}

TEST(GgufTokenizer, RefusesByName) {
    const Parts good = parts_of_json("deepseek_v3_small", "deepseek-v3");
    ASSERT_TRUE(load(good.file()));
    const auto expect = [](const Expected<Tokenizer>& result,
                           std::initializer_list<std::string_view> parts) {
        ASSERT_FALSE(result);
        for (const std::string_view part : parts)
            EXPECT_NE(result.error().message.find(part), std::string::npos)
                << part << " is not in: " << result.error().message;
    };
    Parts parts = good;
    parts.pre = "qwen2";
    expect(load(parts.file()), {"tokenizer.ggml.pre is 'qwen2'", "'deepseek-v3'", "'glm4'"});
    parts = good;
    parts.model = "llama";
    expect(load(parts.file()), {"tokenizer.ggml.model is 'llama'", "'gpt2'"});
    expect(load(GgufWriter()), {"no tokenizer.ggml.model"});
    parts = good;
    parts.kinds.pop_back();
    expect(load(parts.file()), {"tokenizer.ggml.token_type is a list of"});
    parts = good;
    parts.kinds[7] = 6;
    expect(load(parts.file()), {"token_type[7] is 6"});
    parts = good;
    parts.tokens[300] = parts.tokens[301];
    parts.kinds[300] = parts.kinds[301] = 1;
    expect(load(parts.file()), {"twice, as 300 and 301"});
    parts = good;
    parts.merges.push_back("absent token");
    expect(load(parts.file()), {"merges[", "'absent'"});
    parts = good;
    parts.merges.push_back("three of them");
    expect(load(parts.file()), {"two parts and one space"});
    GgufWriter file = good.file();
    file.u32("tokenizer.ggml.eos_token_id", 1u << 30);
    expect(load(file), {"eos_token_id is 1073741824"});
}

TEST(GgufTokenizer, DamagedMetadataIsRefusedOrTokenizes) {
    const std::string good = parts_of_json("glm_small", "glm4").file().bytes();
    std::mt19937 random(5);
    int loaded = 0;
    for (int round = 0; round < 2000; ++round) {
        std::string bytes = good;
        bytes[random() % bytes.size()] ^= static_cast<char>(1u << random() % 8);
        const auto header = parse_gguf(std::as_bytes(std::span(bytes)), "m.gguf");
        if (!header) continue;
        const auto tokenizer = Tokenizer::from_gguf(*header, "m.gguf");
        if (!tokenizer) {
            EXPECT_FALSE(tokenizer.error().message.empty());
            continue;
        }
        ++loaded;
        const auto ids = tokenizer->encode("def f(x):\n    return 12345 · 東京");
        ASSERT_TRUE(ids);
        EXPECT_EQ(tokenizer->decode(*ids, false).empty(), false);
    }
    EXPECT_GT(loaded, 10);
}

}  // namespace
}  // namespace espalier::text
