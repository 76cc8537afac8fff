// SPDX-License-Identifier: Apache-2.0
// A chat whose last message goes on: what of the rendered text is kept, whatever the template.
#include "server/final_message.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

Expected<chat::Rendered> cut(const std::string& source, const Json& messages) {
    const auto compiled = chat::Template::compile(source);
    EXPECT_TRUE(compiled) << compiled.error().message;
    auto rendered = compiled->render(
        Json{{"messages", messages}, {"add_generation_prompt", false}, {"tools", nullptr}});
    EXPECT_TRUE(rendered) << rendered.error().message;
    return cut_behind_final_message(std::move(*rendered), messages);
}

std::string cut_text(const std::string& source, const Json& messages) {
    const auto made = cut(source, messages);
    return made ? made->text : "refused: " + made.error().field;
}

Json chat_of(const std::string& user, const std::string& last) {
    return {{{"role", "user"}, {"content", user}}, {{"role", "assistant"}, {"content", last}}};
}

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
constexpr const char* kTrimming =
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}";

TEST(FinalMessage, WhatTheTemplateWritesBehindItIsLeftOut) {
    EXPECT_EQ(cut_text(kPlain, chat_of("u", "so ")), "<user>u<end><assistant>so ");
    EXPECT_EQ(cut_text(kTrimming, chat_of("u", " so\n")), "<user>u<end><assistant>so");
    // A text that stands elsewhere too is cut at its last place.
    EXPECT_EQ(cut_text(kPlain, chat_of("so", "so")), "<user>so<end><assistant>so");
    EXPECT_EQ(cut_text(kPlain, chat_of("x", "<end>")), "<user>x<end><assistant><end>");
}

TEST(FinalMessage, ATemplateThatWritesAnotherTextIsRefused) {
    EXPECT_EQ(cut_text("{{ messages[0].content }}<a>", chat_of("u", "so")), "refused: messages");
    EXPECT_EQ(
        cut_text("{% for m in messages %}{{ m.content | upper }}{% endfor %}", chat_of("u", "so")),
        "refused: messages");
    // The template's own bytes are not the message's.
    EXPECT_EQ(cut_text("{{ messages[0].content }}so", chat_of("u", "so")), "refused: messages");
    EXPECT_EQ(cut_text("so", chat_of("u", "so")), "refused: messages");
}

TEST(FinalMessage, AnyTextIsKeptToTheByte) {
    Random random(7);
    const std::string pieces[] = {"a", "<end>", " ", "\n", "é", "<assistant>", "b c"};
    for (int i = 0; i < 2000; ++i) {
        const auto text = [&] {
            std::string made;
            for (int j = random.between(1, 5); j > 0; --j)
                made += pieces[random.between(0, static_cast<int>(std::size(pieces)) - 1)];
            return made;
        };
        const Json messages = chat_of(text(), text());
        if (!check_continued(messages)) continue;  // white space alone
        const std::string user = messages[0]["content"], last = messages[1]["content"];
        const auto made = cut(kPlain, messages);
        ASSERT_TRUE(made) << messages;
        EXPECT_EQ(made->text, "<user>" + user + "<end><assistant>" + last);
        EXPECT_EQ(made->content.back(),
                  (chat::Range{made->text.size() - last.size(), made->text.size()}));
    }
}

TEST(FinalMessage, WhatCannotGoOnIsTold) {
    EXPECT_TRUE(check_continued(chat_of("u", "x")));
    EXPECT_FALSE(check_continued(chat_of("u", " \n")));
    EXPECT_FALSE(check_continued(Json::array()));
    EXPECT_FALSE(check_continued(Json{{{"role", "user"}, {"content", "x"}}}));
    Json calls = chat_of("u", "x");
    calls[1]["tool_calls"] = Json::array();
    EXPECT_FALSE(check_continued(calls));
}

}  // namespace
}  // namespace espalier::server
