// SPDX-License-Identifier: Apache-2.0
// Which format a model has, from its template and its tokenizer.
#include "output/formats.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "output/small_tokenizer.hpp"
#include "support/paths.hpp"

namespace espalier::output {
namespace {

std::string published(const std::string& name) {
    std::ifstream file(std::filesystem::path(test::source_directory()) /
                       "tests/chat/data/templates" / (name + ".jinja"));
    return {std::istreambuf_iterator<char>(file), {}};
}

std::string recognised(const std::string& source, bool has_markers = true,
                       std::string_view tools = "auto", std::string_view reasoning = "auto") {
    const auto formats = formats_of(tools, reasoning, source, tokenizer(has_markers));
    if (!formats) return formats.error().field;
    return std::string(formats->tools ? formats->tools->name : "none") + " " +
           std::string(formats->reasoning ? formats->reasoning->name : "none");
}

TEST(Formats, AreRecognisedFromPublishedTemplates) {
    EXPECT_EQ(recognised(published("deepseek_v2")), "none none");
    EXPECT_EQ(recognised(published("deepseek_v3")), "deepseek_v3 none");
    EXPECT_EQ(recognised(published("deepseek_r1")), "deepseek_v3 deepseek_r1");
    EXPECT_EQ(recognised(published("deepseek_v3_1")), "deepseek_v31 deepseek_v31");
    EXPECT_EQ(recognised(published("kimi_k2")), "kimi_k2 none");
    EXPECT_EQ(recognised(published("kimi_k2_thinking")), "kimi_k2 kimi_k2");
    EXPECT_EQ(recognised(published("glm_4_7_flash")), "glm47 deepseek_v31");
}

TEST(Formats, AreNotGuessed) {
    EXPECT_EQ(recognised(""), "none none");
    EXPECT_EQ(recognised("{{ messages }} <tool_call>"), "none none");
    EXPECT_EQ(recognised(published("kimi_k2_thinking"), false), "none none");
}

TEST(Formats, AreAsTheOptionsSay) {
    EXPECT_EQ(recognised("", false, "kimi_k2", "none"), "kimi_k2 none");
    EXPECT_EQ(recognised(published("kimi_k2_thinking"), true, "none", "none"), "none none");
    EXPECT_EQ(recognised("", true, "deepseek_v3", "deepseek_r1"), "deepseek_v3 deepseek_r1");
    EXPECT_EQ(recognised("", false, "none", "deepseek_r1"), "reasoning_format");
    EXPECT_EQ(tool_format_names(), (std::vector<std::string>{"auto", "deepseek_v3", "deepseek_v31",
                                                             "kimi_k2", "glm47", "none"}));
}

TEST(Formats, ATemplateReadsWholeNames) {
    EXPECT_TRUE(template_reads("{% if thinking %}", "thinking"));
    EXPECT_FALSE(template_reads("{% if enable_thinking %}", "thinking"));
    EXPECT_FALSE(template_reads("", "tools"));
}

}  // namespace
}  // namespace espalier::output
