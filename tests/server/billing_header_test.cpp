// SPDX-License-Identifier: Apache-2.0
// The billing line of coding agents: what it is, and that no other byte of a system prompt is ever
// moved or dropped.
#include "server/api/billing_header.hpp"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "base/random.hpp"
#include "server/api/messages_request.hpp"
#include "server/body.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

constexpr const char* kLine =
    "x-anthropic-billing-header: cc_version=2.1.117.48f; cc_entrypoint=cli; cch=71fea;";

// Result of billing_header_bytes by another reader of the same form.
std::size_t bytes_by_regex(const std::string& text) {
    static const std::regex form(
        "x-anthropic-billing-header:( *[A-Za-z0-9_-]+=[!-:<-~]*;)+ *\\r?(\\n|$)",
        std::regex::ECMAScript | std::regex::optimize);
    std::smatch found;
    const bool is_first =
        std::regex_search(text, found, form, std::regex_constants::match_continuous);
    return is_first ? static_cast<std::size_t>(found.length()) : 0;
}

// Pieces of headers, of prompts and of neither, in any order.
std::string random_prompt(Random& random) {
    static const std::string pieces[] = {kLine,
                                         "x-anthropic-billing-header:",
                                         "x-anthropic-billing-header",
                                         " cch=0aaa9;",
                                         "cch=1;",
                                         " a_b-C=",
                                         ";",
                                         "=",
                                         "\n",
                                         "\r\n",
                                         "\r",
                                         " ",
                                         "\n\n",
                                         "You are an agent.",
                                         "é",
                                         "cc_entrypoint=cli",
                                         "\t",
                                         std::string(1, '\0'),
                                         "X-Anthropic-Billing-Header: a=b;"};
    std::string text;
    if (random.between(0, 2) > 0) text = pieces[random.between(0, 1)];
    for (int i = random.between(0, 6); i > 0; --i)
        text += pieces[random.between(0, static_cast<int>(std::size(pieces)) - 1)];
    return text;
}

std::string kept_system(const Json& system, bool drops) {
    const Json body = {{"max_tokens", 4},
                       {"system", system},
                       {"messages", {{{"role", "user"}, {"content", kLine}}}}};
    const auto parsed =
        parse_messages_request(body, *parse_ordered(body.dump(), body, kMessagesOrdered),
                               {.generation = {}, .drops_billing_header = drops});
    EXPECT_TRUE(parsed) << parsed.error().message;
    const Json& messages = parsed->chat.messages;
    EXPECT_EQ(messages.back(), Json({{"role", "user"}, {"content", kLine}}));
    if (messages.size() == 1) return {};
    EXPECT_EQ(messages.size(), 2u);
    EXPECT_EQ(messages[0]["role"], "system");
    return messages[0]["content"];
}

TEST(BillingHeader, IsTheWholeLineAndNothingElse) {
    const std::string line = kLine;
    EXPECT_EQ(billing_header_bytes(line), line.size());
    EXPECT_EQ(billing_header_bytes(line + "\nYou are"), line.size() + 1);
    EXPECT_EQ(billing_header_bytes(line + "\r\nYou are"), line.size() + 2);
    EXPECT_EQ(billing_header_bytes(line + " \n"), line.size() + 2);
    EXPECT_EQ(billing_header_bytes(line + " You are an agent."), 0u);
    EXPECT_EQ(billing_header_bytes("You are\n" + line), 0u);
    EXPECT_EQ(billing_header_bytes(" " + line), 0u);
    EXPECT_EQ(billing_header_bytes("x-anthropic-billing-header: why is it there?"), 0u);
    EXPECT_EQ(billing_header_bytes("x-anthropic-billing-header:"), 0u);
    EXPECT_EQ(billing_header_bytes(""), 0u);
}

TEST(BillingHeader, OfAnyPromptOnlyTheHeaderIsLeftOut) {
    Random random(36);
    int headers = 0;
    for (int i = 0; i < 20'000; ++i) {
        const std::string prompt = random_prompt(random);
        const std::size_t bytes = billing_header_bytes(prompt);
        ASSERT_EQ(bytes, bytes_by_regex(prompt)) << Json(prompt).dump();
        headers += bytes > 0 ? 1 : 0;
        if (i % 10 > 0) continue;
        EXPECT_EQ(kept_system(prompt, true), prompt.substr(bytes));
        EXPECT_EQ(kept_system(prompt, false), prompt);
        // Blocks: joined by line ends, wherever they are cut.
        const std::string more = random_prompt(random);
        const Json blocks = {{{"type", "text"}, {"text", prompt}},
                             {{"type", "text"}, {"text", more}}};
        const std::string joined = prompt + "\n" + more;
        EXPECT_EQ(kept_system(blocks, true), joined.substr(billing_header_bytes(joined)));
        EXPECT_EQ(kept_system(blocks, false), joined);
    }
    EXPECT_GT(headers, 1000);  // of both kinds there are many
    EXPECT_LT(headers, 15'000);
}

TEST(BillingHeader, ABlockOfItsOwnLeavesNoTrace) {
    const auto blocks = [](const std::string& line) {
        return Json{{{"type", "text"}, {"text", line}},
                    {{"type", "text"}, {"text", "You are an agent."}}};
    };
    EXPECT_EQ(kept_system(blocks(kLine), true), "You are an agent.");
    EXPECT_EQ(kept_system(blocks("x-anthropic-billing-header: cch=0aaa9;"), true),
              "You are an agent.");
    EXPECT_EQ(kept_system(Json{{{"type", "text"}, {"text", kLine}}}, true), "");
}

}  // namespace
}  // namespace espalier::server
