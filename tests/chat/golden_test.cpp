// SPDX-License-Identifier: Apache-2.0
// Equality with jinja2 on committed templates (tools/make_template_goldens.py made the files).
#include <gtest/gtest.h>
#include <stdlib.h>
#include <time.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "chat/template.hpp"
#include "support/paths.hpp"

namespace espalier::chat {
namespace {

using Json = nlohmann::ordered_json;

const std::filesystem::path kData =
    std::filesystem::path(test::source_directory()) / "tests/chat/data";
constexpr std::time_t kNow = 1741338302;  // 2025-03-07 09:05:02 UTC

std::vector<Json> read_lines(const char* name) {
    std::ifstream in(kData / name);
    std::vector<Json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
}

Expected<Rendered> render(const std::string& source, const Json& context) {
    auto compiled = Template::compile(source);
    if (!compiled) return tl::unexpected(compiled.error());
    compiled->define("bos_token", "<｜begin▁of▁sentence｜>");
    compiled->define("eos_token", "<｜end▁of▁sentence｜>");
    return compiled->render(context, kNow);
}

void check(const std::string& source, const Json& context, const Json& expected) {
    const auto rendered = render(source, context);
    if (expected.is_null()) {
        EXPECT_FALSE(rendered) << source << "\nrenders as\n" << rendered->text;
        return;
    }
    ASSERT_TRUE(rendered) << source << "\n" << rendered.error().message;
    EXPECT_EQ(rendered->text, expected.get<std::string>()) << source;
}

class Goldens : public testing::Test {
  protected:
    void SetUp() override {
        setenv("TZ", "UTC", 1);
        tzset();
    }
};

TEST_F(Goldens, PublishedTemplates) {
    std::size_t texts = 0;
    for (const Json& line : read_lines("published.jsonl")) {
        const std::string name = line[0].get<std::string>() + ".jinja";
        const auto source = read_text_file(kData / "templates" / name, 1 << 20);
        ASSERT_TRUE(source) << source.error().message;
        SCOPED_TRACE(name + " " + line[1].dump());
        check(*source, line[1], line[2]);
        texts += !line[2].is_null();
    }
    EXPECT_GE(texts, 80u);
}

TEST_F(Goldens, EveryConstruct) {
    const auto lines = read_lines("constructs.jsonl");
    for (std::size_t i = 1; i < lines.size(); ++i) check(lines[i][0], lines[0], lines[i][1]);
    EXPECT_GE(lines.size(), 300u);
}

TEST_F(Goldens, RandomTemplates) {
    const auto lines = read_lines("random.jsonl");
    for (std::size_t i = 1; i < lines.size(); ++i) check(lines[i][0], lines[0], lines[i][1]);
    EXPECT_GE(lines.size(), 300u);
}

}  // namespace
}  // namespace espalier::chat
