// SPDX-License-Identifier: Apache-2.0
// What a request and its model make of a text: when a grammar holds it, where reasoning is open.
#include "server/output_plan.hpp"

#include <gtest/gtest.h>

#include "checkpoint/synthetic.hpp"
#include "support/marked_tokenizer.hpp"

namespace espalier::server {
namespace {

using Choice = ToolRequest::Choice;

const text::Tokenizer& tokenizer() {
    static const text::Tokenizer made =
        std::move(text::Tokenizer::from_tokenizer_json(
                      test::marked_tokenizer_json(*checkpoint::synthetic_tokenizer_json(400),
                                                  test::all_markers()),
                      checkpoint::synthetic_tokenizer_config_json(), "test")
                      .value());
    return made;
}

output::Formats formats(std::string_view tools, std::string_view reasoning = "none") {
    return output::formats_of(tools, reasoning, "", tokenizer()).value();
}

GenerationRequest request(Choice choice, std::optional<bool> strict = {}) {
    GenerationRequest made;
    made.api = Api::chat;
    made.chat.tools.functions = {{.name = "f", .parameters = nullptr, .strict = strict},
                                 {.name = "g", .parameters = nullptr, .strict = {}}};
    made.chat.tools.choice = choice;
    made.chat.tools.named = 1;
    return made;
}

Expected<OutputPlan> plan(const GenerationRequest& asked, const output::Formats& known,
                          std::string text = "hi", std::vector<chat::Range> content = {}) {
    return plan_chat(asked, known, tokenizer(), {std::move(text), std::move(content)});
}

TEST(OutputPlan, AGrammarHoldsWhatTheRequestInsistsOn) {
    const output::Formats known = formats("deepseek_v31");
    EXPECT_FALSE(plan(request(Choice::automatic), known)->grammar);
    EXPECT_FALSE(plan(request(Choice::none), known)->grammar);
    EXPECT_TRUE(plan(request(Choice::automatic, true), known)->grammar);
    const auto required = plan(request(Choice::required), known);
    ASSERT_TRUE(required && required->grammar);
    EXPECT_EQ(required->grammar->field, "tools");
    EXPECT_EQ(required->parser.functions, (std::vector<std::string>{"f", "g"}));
    const std::string named = plan(request(Choice::named), known)->grammar->specification.text;
    EXPECT_EQ(named.find("\"f\""), std::string::npos);
    EXPECT_NE(named.find("\"g\""), std::string::npos);
    GenerationRequest single = request(Choice::automatic);
    single.chat.tools.parallel = false;
    EXPECT_TRUE(plan(single, known)->grammar);
    GenerationRequest text = request(Choice::automatic);
    text.grammar = GrammarField{{.kind = grammar::Kind::regex, .text = "a+"}, "regex"};
    EXPECT_NE(plan(text, known)->grammar->specification.text.find("a+"), std::string::npos);
    text.grammar->specification.kind = grammar::Kind::structural_tag;
    EXPECT_EQ(plan(text, known).error().field, "regex");
    text.chat.tools.choice = Choice::none;
    EXPECT_EQ(plan(text, known)->grammar->field, "regex");
}

// Values' types of the schema go to the parser; what a grammar of pairs cannot hold is refused
// where one is needed, and only there.
TEST(OutputPlan, PairsAreReadByTheirSchemas) {
    const output::Formats known = formats("glm47");
    GenerationRequest asked = request(Choice::automatic);
    asked.chat.tools.functions[0].parameters = nlohmann::ordered_json::parse(
        R"({"properties": {"a": {"type": "string", "pattern": "x"}, "b": {"type": "integer"}}})");
    const auto free = plan(asked, known);
    ASSERT_TRUE(free);
    EXPECT_EQ(free->parser.types.at("f").at("a"), output::kStringValue);
    EXPECT_EQ(free->parser.types.at("f").at("b"), output::kNumberValue);
    EXPECT_TRUE(free->parser.types.at("g").empty());
    asked.chat.tools.functions[0].strict = true;
    const auto held = plan(asked, known);
    ASSERT_FALSE(held);
    EXPECT_EQ(held.error().field, "tools");
    asked.chat.tools.functions[0].parameters["properties"].erase("a");
    EXPECT_TRUE(plan(asked, known));
}

TEST(OutputPlan, AnUnknownModelIsSaidToBeOne) {
    EXPECT_EQ(plan(request(Choice::automatic), formats("none")).error().field, "tools");
    EXPECT_TRUE(plan(request(Choice::none), formats("none")));
    GenerationRequest budget;
    budget.reasoning_budget = 4;
    EXPECT_EQ(plan(budget, formats("none")).error().field, "thinking_token_budget");
}

TEST(OutputPlan, ReasoningIsOpenWhereTheTemplateLeavesItSo) {
    const auto is_open = [](std::string_view format, std::string text,
                            std::vector<chat::Range> content = {}) {
        const auto made = plan({}, formats("none", format), std::move(text), std::move(content));
        EXPECT_EQ(made->parser.reasoning_open, made->reasoning.has_value());
        return made->parser.reasoning_open;
    };
    EXPECT_TRUE(is_open("deepseek_v31", "hi<think>"));
    EXPECT_TRUE(is_open("deepseek_v31", "hi<think>\n"));
    EXPECT_FALSE(is_open("deepseek_v31", "hi</think>"));
    EXPECT_FALSE(is_open("deepseek_v31", "hi"));
    // A message that says the marker has not opened anything.
    EXPECT_FALSE(is_open("deepseek_v31", "hi<think>", {{2, 9}}));
    EXPECT_TRUE(is_open("deepseek_r1", "hi"));
    EXPECT_FALSE(is_open("deepseek_r1", "hi</think>\n\n"));
    EXPECT_FALSE(is_open("none", "hi<think>"));
}

TEST(OutputPlan, TheEngineIsToldWhereReasoningEnds) {
    GenerationRequest asked = request(Choice::automatic);
    asked.reasoning_budget = 7;
    const auto made = plan(asked, formats("kimi_k2", "kimi_k2"));
    ASSERT_TRUE(made && made->reasoning);
    EXPECT_EQ(made->reasoning->budget, 7);
    // Calls end it too, unless a grammar begins with their marker.
    EXPECT_EQ(made->reasoning->end_token_ids,
              (std::vector<std::int32_t>{*tokenizer().id_of("</think>"),
                                         *tokenizer().id_of("<|tool_calls_section_begin|>")}));
    asked.chat.tools.choice = Choice::required;
    EXPECT_EQ(plan(asked, formats("kimi_k2", "kimi_k2"))->reasoning->end_token_ids.size(), 1u);
}

}  // namespace
}  // namespace espalier::server
