// SPDX-License-Identifier: Apache-2.0
// Malformed and unsupported files: each gives an error that names file and field.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "base/mapped_file.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"
#include "text/tokenizer.hpp"

namespace espalier::text {
namespace {

using Json = nlohmann::json;
const std::filesystem::path kData =
    std::filesystem::path(test::source_directory()) / "tests/text/data";

const Json& good_json() {
    static const Json json =
        Json::parse(*read_text_file(kData / "gpt2_small/tokenizer.json", 1 << 20));
    return json;
}

std::string message_after(const std::function<void(Json&)>& change,
                          std::optional<std::string_view> config = std::nullopt) {
    Json json = good_json();
    change(json);
    const auto result = Tokenizer::from_tokenizer_json(json.dump(), config, "dir");
    return result ? "loaded" : result.error().message;
}

TEST(TokenizerJson, NamesWhatItRefuses) {
    const std::pair<std::function<void(Json&)>, std::string> cases[] = {
        {[](Json& j) {
             j["normalizer"] = {{"type", "NFC"}};
         },
         "normalizer of type 'NFC' is not supported"},
        {[](Json& j) {
             j["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Metaspace"}};
         },
         "pre_tokenizer[0] of type 'Metaspace' is not supported"},
        {[](Json& j) { j["pre_tokenizer"] = nullptr; }, "no ByteLevel step"},
        {[](Json& j) { j["pre_tokenizer"]["pretokenizers"].back().erase("add_prefix_space"); },
         "pre_tokenizer[1].add_prefix_space is missing"},
        {[](Json& j) {
             j["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
         },
         "pre_tokenizer[2] of type 'Digits' after ByteLevel"},
        {[](Json& j) {
             j["pre_tokenizer"]["pretokenizers"][0] = {
                 {"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}};
         },
         "pre_tokenizer[0].behavior 'Removed' is not supported"},
        {[](Json& j) {
             j["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Split"},
                                                       {"pattern", {{"Regex", "a"}}},
                                                       {"behavior", "Isolated"},
                                                       {"invert", true}};
         },
         "pre_tokenizer[0].invert = true"},
        {[](Json& j) { j["decoder"]["type"] = "Metaspace"; }, "decoder of type 'Metaspace'"},
        {[](Json& j) { j["post_processor"]["type"] = "BertProcessing"; },
         "post_processor[0] of type 'BertProcessing'"},
        {[](Json& j) { j["model"]["type"] = "Unigram"; }, "model.type is \"Unigram\""},
        {[](Json& j) { j["model"]["byte_fallback"] = true; }, "model.byte_fallback"},
        {[](Json& j) { j["model"]["dropout"] = 0.1; }, "model.dropout is set"},
        {[](Json& j) { j["model"]["unk_token"] = "<unk>"; }, "model.unk_token is set"},
        {[](Json& j) { j["added_tokens"][1]["lstrip"] = true; }, "added_tokens[1].lstrip = true"},
        {[](Json& j) { j["added_tokens"][0]["single_word"] = true; },
         "added_tokens[0].single_word = true"},
    };
    for (const auto& [change, expected] : cases) {
        const std::string message = message_after(change);
        EXPECT_TRUE(message.starts_with("dir/tokenizer.json: ")) << message;
        EXPECT_NE(message.find(expected), std::string::npos) << message;
    }
}

TEST(TokenizerJson, NamesWhatIsMalformed) {
    const std::pair<std::function<void(Json&)>, std::string> cases[] = {
        {[](Json& j) { j = 3; }, "the top level is number"},
        {[](Json& j) { j.erase("model"); }, "model is missing"},
        {[](Json& j) { j["model"]["vocab"] = Json::array(); },
         "model.vocab is array, expected an object"},
        {[](Json& j) { j["model"]["vocab"]["a"] = -1; },
         "model.vocab['a'] is -1, outside 0…1048575"},
        {[](Json& j) { j["model"]["vocab"]["a"] = 1e9; },
         "model.vocab['a'] is number, expected a whole number"},
        {[](Json& j) { j["model"]["vocab"]["a"] = 1 << 20; },
         "model.vocab['a'] is 1048576, outside 0…1048575"},
        {[](Json& j) { j["model"]["vocab"]["a"] = "x"; }, "model.vocab['a'] is string"},
        {[](Json& j) { j["model"]["vocab"]["zz9"] = 5; }, "has id 5, which is taken"},
        {[](Json& j) { j["model"]["vocab"][""] = 9999; }, "a token of 0 bytes, expected 1…4096"},
        {[](Json& j) { j["model"]["vocab"][std::string(4097, 'a')] = 9999; },
         "a token of 4097 bytes"},
        {[](Json& j) { j["model"]["vocab"].erase("!"); }, "no token for byte 0x21"},
        {[](Json& j) { j["model"]["merges"] = 1; }, "model.merges is number"},
        {[](Json& j) { j["model"]["merges"][3] = Json::array({"a"}); }, "model.merges[3] is array"},
        {[](Json& j) {
             j["model"]["merges"][3] = Json::array({"a", 1});
         },
         "model.merges[3] is array"},
        {[](Json& j) { j["model"]["merges"][3] = "ab"; },
         "model.merges[3] is 'ab', expected two parts"},
        {[](Json& j) { j["model"]["merges"][3] = "a b c"; },
         "model.merges[3] is 'a b c', expected two parts"},
        {[](Json& j) { j["model"]["merges"][3] = "a ☃"; },
         "model.merges[3] names '☃', which is not in model.vocab"},
        {[](Json& j) { j["model"]["merges"][3] = "q z"; }, "model.merges[3] names 'qz'"},
        {[](Json& j) { j["model"]["merges"].push_back(j["model"]["merges"][0]); },
         "repeats the pair"},
        {[](Json& j) { j["added_tokens"] = "x"; }, "added_tokens is string"},
        {[](Json& j) { j["added_tokens"][2]["content"] = 7; }, "added_tokens[2].content is number"},
        {[](Json& j) { j["added_tokens"][2]["content"] = ""; }, "a token of 0 bytes"},
        {[](Json& j) { j["added_tokens"][2]["special"] = "yes"; },
         "added_tokens[2].special is string"},
        {[](Json& j) { j["added_tokens"][4]["id"] = 17; },
         "added_tokens[4] has id 17, which is taken"},
        {[](Json& j) { j["added_tokens"][0]["id"] = 4000; },
         "has id 4000, but model.vocab gives it 0"},
        {[](Json& j) { j["added_tokens"][4]["content"] = j["added_tokens"][3]["content"]; },
         "repeats the content"},
        {[](Json& j) { j["pre_tokenizer"]["pretokenizers"][0] = 1; },
         "pre_tokenizer[0].type is missing"},
        {[](Json& j) {
             j["pre_tokenizer"]["pretokenizers"][0] = {
                 {"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
         },
         "pre_tokenizer[0]: the pattern fails to compile at byte"},
    };
    for (const auto& [change, expected] : cases) {
        const std::string message = message_after(change);
        EXPECT_TRUE(message.starts_with("dir/tokenizer.json: ")) << message;
        EXPECT_NE(message.find(expected), std::string::npos)
            << message << "\n expected " << expected;
    }
}

TEST(TokenizerConfig, NamesWhatIsMalformed) {
    const std::pair<const char*, const char*> cases[] = {
        {"[]", "the top level is array"},
        {R"({"bos_token": 3})", "bos_token is number"},
        {R"({"bos_token": "<none>"})", "bos_token is '<none>', which is not an added token"},
        {R"({"add_bos_token": 1})", "add_bos_token is number"},
        {R"({"chat_template": 1})", "chat_template is number"},
        {R"({"chat_template": [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}]})",
         "none is named 'default'"},
        {R"({"added_tokens_decoder": {"x": {}}})", "has the key 'x'"},
        {R"({"added_tokens_decoder": {"7": {"content": "?"}}})",
         "has '?' as 7, tokenizer.json does not"},
        {R"({"added_tokens_decoder": {"7": {"content": "?", "rstrip": true}}})",
         "added_tokens_decoder.7.rstrip = true"},
        {R"({"additional_special_tokens": {}})", "additional_special_tokens is object"},
    };
    for (const auto& [config, expected] : cases) {
        const std::string message = message_after([](Json&) {}, config);
        EXPECT_TRUE(message.starts_with("dir/tokenizer_config.json: ")) << message;
        EXPECT_NE(message.find(expected), std::string::npos) << message;
    }
}

TEST(Tiktoken, NamesWhatIsMalformed) {
    const std::string good = *read_text_file(kData / "kimi_small/tiktoken.model", 1 << 20);
    const std::string config = *read_text_file(kData / "kimi_small/tokenizer_config.json", 1 << 20);
    ASSERT_TRUE(Tokenizer::from_tiktoken(good, config, "dir"));
    const std::pair<std::string, const char*> cases[] = {
        {"", "no token for byte 0x00"},
        {good + "YWJj\n", "line 1298 has no rank"},
        {good + "YWJj x\n", "line 1298 has no rank"},
        {good + "YWJj -4\n", "line 1298 has no rank"},
        {good + "YWJj 99999999\n", "has rank 99999999, more than the limit"},
        {good + "Y*Jj 1297\n", "no base64 token"},
        {good + "YW= 1297\n", "no base64 token"},
        {good + " 1297\n", "no base64 token"},
        {good + "cXp4ag== 1296\n", "repeats rank 1296"},
        {good + "cXp4ag== 1300\n", "1298 tokens but the highest rank is 1300"},
        {good + "YQ== 1297\n", "the token of rank 1297 is there twice"},
    };
    for (const auto& [text, expected] : cases) {
        const auto result = Tokenizer::from_tiktoken(text, std::nullopt, "dir");
        ASSERT_FALSE(result) << expected;
        EXPECT_TRUE(result.error().message.starts_with("dir/tiktoken.model: "))
            << result.error().message;
        EXPECT_NE(result.error().message.find(expected), std::string::npos)
            << result.error().message;
    }
    const auto outside = Tokenizer::from_tiktoken(
        good, R"({"added_tokens_decoder": {"5": {"content": "x"}}})", "dir");
    ASSERT_FALSE(outside);
    EXPECT_NE(outside.error().message.find("has id 5, outside the reserved 1297…1552"),
              std::string::npos);
}

TEST(Load, TakesTheTemplateFileFirst) {
    const auto directory =
        std::filesystem::temp_directory_path() / fmt::format("espalier_text_{}", getpid());
    std::filesystem::create_directories(directory);
    const auto missing = Tokenizer::load(directory);
    ASSERT_FALSE(missing);
    EXPECT_EQ(missing.error().kind, ErrorKind::not_found);
    std::filesystem::copy(kData / "kimi_small/tiktoken.model", directory);
    std::filesystem::copy(kData / "kimi_small/tokenizer_config.json", directory);
    EXPECT_EQ(Tokenizer::load(directory)->chat_template(), "{{ messages }}");
    std::ofstream(directory / "chat_template.jinja") << "from the file\n";
    EXPECT_EQ(Tokenizer::load(directory)->chat_template(), "from the file\n");
    std::filesystem::remove_all(directory);
}

// An empty file is damaged, not absent: without tokenizer_config.json the text would lose its BOS.
TEST(Load, AnEmptyFileIsRefusedByName) {
    for (const char* name : {"tokenizer_config.json", "tokenizer.json", "chat_template.jinja"}) {
        TemporaryDirectory directory;
        std::filesystem::copy(kData / "kimi_small", directory.path());
        ASSERT_TRUE(Tokenizer::load(directory.path()));
        std::ofstream(directory.path() / name, std::ios::trunc);
        const auto result = Tokenizer::load(directory.path());
        ASSERT_FALSE(result) << name;
        EXPECT_NE(result.error().message.find(std::string(name) + ": empty"), std::string::npos)
            << result.error().message;
    }
    TemporaryDirectory ranks;
    std::ofstream(ranks.path() / "tiktoken.model", std::ios::trunc);
    const auto result = Tokenizer::load(ranks.path());
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("tiktoken.model: "), std::string::npos)
        << result.error().message;
}

// A link whose content never came is not an absent file either.
TEST(Load, ALinkThatPointsNowhereIsRefusedByName) {
    for (const char* name : {"tokenizer_config.json", "tokenizer.json", "chat_template.jinja"}) {
        TemporaryDirectory directory;
        std::filesystem::copy(kData / "kimi_small", directory.path());
        std::filesystem::remove(directory.path() / name);
        std::filesystem::create_symlink("../../blobs/0a1b", directory.path() / name);
        const auto result = Tokenizer::load(directory.path());
        ASSERT_FALSE(result) << name;
        EXPECT_NE(result.error().message.find(std::string(name) + ": a link to ../../blobs/0a1b"),
                  std::string::npos)
            << result.error().message;
    }
}

}  // namespace
}  // namespace espalier::text
