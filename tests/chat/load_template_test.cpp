// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "chat/template.hpp"
#include "support/paths.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::chat {
namespace {

const nlohmann::json kContext = {{"messages", {{{"role", "user"}, {"content", "hi"}}}},
                                 {"add_generation_prompt", true}};

class LoadTemplate : public testing::Test {
  protected:
    void write(const char* name, const std::string& text) {
        std::ofstream(directory_.path() / name) << text;
    }
    std::string rendered() {
        const auto loaded = load_template(directory_.path());
        if (!loaded) return "error: " + loaded.error().message;
        if (!*loaded) return "none";
        const auto result = (*loaded)->render(kContext);
        return result ? result->text : "error: " + result.error().message;
    }
    TemporaryDirectory directory_;
};

TEST_F(LoadTemplate, FindsTheModelsTemplate) {
    EXPECT_EQ(rendered(), "none");
    write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}})");
    EXPECT_EQ(rendered(), "none");
    write("tokenizer_config.json",
          R"({"bos_token": "<s>", "eos_token": {"content": "</s>"},
              "chat_template": "{{ bos_token }}config{{ eos_token }}"})");
    EXPECT_EQ(rendered(), "<s>config</s>");
    write("tokenizer_config.json",
          R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                {"name": "default", "template": "default{{ bos_token }}"}]})");
    EXPECT_EQ(rendered(), "default");
    write("chat_template.jinja", "file\n");
    EXPECT_EQ(rendered(), "file");
}

TEST_F(LoadTemplate, AnErrorNamesFileLineAndConstruct) {
    write("chat_template.jinja", "\n{% include 'x' %}");
    EXPECT_EQ(rendered(), "error: " + (directory_.path() / "chat_template.jinja").string() +
                              ": line 2: the statement 'include' is not supported");
    std::filesystem::remove(directory_.path() / "chat_template.jinja");
    write("tokenizer_config.json", R"({"chat_template": "{{ x | urlize }}"})");
    EXPECT_EQ(rendered(), "error: " + (directory_.path() / "tokenizer_config.json").string() +
                              ": chat_template: line 1: the filter 'urlize' is not supported");
    write("tokenizer_config.json", "{");
    EXPECT_TRUE(rendered().starts_with("error: ")) << rendered();
}

TEST_F(LoadTemplate, SaplingsTemplate) {
    const auto loaded =
        load_template(std::filesystem::path(test::source_directory()) / "models/sapling");
    ASSERT_TRUE(loaded) << loaded.error().message;
    ASSERT_TRUE(*loaded);
    EXPECT_EQ((*loaded)->render(kContext)->text,
              "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>");
}

}  // namespace
}  // namespace espalier::chat
