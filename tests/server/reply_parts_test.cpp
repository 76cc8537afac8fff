// SPDX-License-Identifier: Apache-2.0
// Reasoning and calls in answers: the same as one object and as a stream, as OpenAI has them.
#include <gtest/gtest.h>

#include "checkpoint/synthetic.hpp"
#include "server/reply.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using accept::FinishReason;

const text::Tokenizer& tokenizer() {
    static const text::Tokenizer made = std::move(
        text::Tokenizer::from_tokenizer_json(*checkpoint::synthetic_tokenizer_json(300),
                                             checkpoint::synthetic_tokenizer_config_json(), "test")
            .value());
    return made;
}

ReplyOptions options(bool stream, std::string_view tools, std::string_view reasoning) {
    ReplyOptions made;
    made.api = Api::chat;
    made.id = "chatcmpl-ab";
    made.stream = stream;
    for (const output::ToolFormat& format : output::tool_formats())
        if (format.name == tools) made.parser.tools = &format;
    made.parser.functions = {"f", "g"};
    for (const output::ReasoningFormat& format : output::reasoning_formats())
        if (format.name == reasoning) {
            made.parser.reasoning = &format;
            made.parser.reasoning_open = true;
        }
    return made;
}

// The text in pieces of `size` bytes, the last with the end.
std::string reply_bytes(const ReplyOptions& wanted, const std::string& text, std::size_t size,
                        FinishReason finish = FinishReason::eos) {
    Reply reply(wanted, tokenizer(), std::vector<EchoedPrompt>(1));
    std::string out;
    for (std::size_t at = 0; at < text.size(); at += size) {
        engine::ChoiceUpdate update;
        update.emission.text = text.substr(at, size);
        update.usage.completion_tokens = 9;
        update.usage.reasoning_tokens = 4;
        update.ended = at + size >= text.size();
        update.finish.reason = finish;
        reply.add(0, {.choices = {update}, .prompt_logprobs = std::nullopt}, out);
    }
    EXPECT_TRUE(reply.complete());
    reply.end(out);
    return out;
}

// A stream's deltas put together as clients do it.
Json streamed(const std::string& bytes) {
    Json message = {{"role", ""}, {"content", ""}};
    std::string_view rest = bytes;
    for (; rest.starts_with("data: {"); rest.remove_prefix(rest.find("\n\n") + 2)) {
        const Json choice = Json::parse(rest.substr(6, rest.find("\n\n") - 6))["choices"][0];
        const Json& delta = choice["delta"];
        if (delta.contains("role")) message["role"] = delta["role"];
        for (const char* name : {"content", "reasoning_content", "reasoning"})
            if (delta.contains(name))
                message[name] = message.value(name, std::string()) + delta[name].get<std::string>();
        for (const Json& call : delta.value("tool_calls", Json::array())) {
            const auto index = call["index"].get<std::size_t>();
            const Json arguments = call["function"]["arguments"];
            Json& calls = message["tool_calls"];
            if (index == calls.size()) {
                EXPECT_EQ(arguments, "");
                EXPECT_EQ(call["type"], "function");
                calls.push_back(
                    {{"id", call["id"]},
                     {"type", "function"},
                     {"function", {{"name", call["function"]["name"]}, {"arguments", ""}}}});
            } else {
                EXPECT_EQ(call.size(), 2u) << call;
                EXPECT_EQ(call["function"].size(), 1u) << call;
                Json& known = calls[index]["function"]["arguments"];
                known = known.get<std::string>() + arguments.get<std::string>();
            }
        }
        if (!choice["finish_reason"].is_null()) message["finish"] = choice["finish_reason"];
    }
    EXPECT_EQ(rest, "data: [DONE]\n\n");
    if (message["content"] == "" && message.contains("tool_calls")) message["content"] = nullptr;
    return message;
}

// Answer as one object, and as streams of several cuts.
Json answer(std::string_view tools, std::string_view reasoning, const std::string& text,
            FinishReason finish = FinishReason::eos) {
    const Json whole = Json::parse(reply_bytes(options(false, tools, reasoning), text, 7, finish));
    Json message = whole["choices"][0]["message"];
    EXPECT_TRUE(message["refusal"].is_null());
    message.erase("refusal");
    message["finish"] = whole["choices"][0]["finish_reason"];
    EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"], 4);
    for (const std::size_t size : {std::size_t{1}, std::size_t{5}, text.size()}) {
        Json told = streamed(reply_bytes(options(true, tools, reasoning), text, size, finish));
        // An empty reasoning is no event.
        if (message.value("reasoning", "x").empty())
            told["reasoning"] = told["reasoning_content"] = "";
        EXPECT_EQ(told, message);
    }
    return message;
}

TEST(ReplyParts, CallsAreToldAsOpenAiTellsThem) {
    const std::string text =
        "ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    const Json message = answer("deepseek_v31", "none", text);
    EXPECT_EQ(message, Json::parse(R"({"role":"assistant","content":"ok","finish":"tool_calls",
        "tool_calls":[
          {"id":"call_ab0000","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}},
          {"id":"call_ab0001","type":"function","function":{"name":"g","arguments":"{}"}}]})"));
    EXPECT_TRUE(answer("deepseek_v31", "none", text.substr(2))["content"].is_null());
    EXPECT_EQ(answer("deepseek_v31", "none", text, FinishReason::length)["finish"], "length");
}

TEST(ReplyParts, AKimiCallKeepsItsId) {
    const Json message =
        answer("kimi_k2", "kimi_k2",
               "<think>hm</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:3"
               "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>");
    EXPECT_EQ(message["tool_calls"][0]["id"], "functions.f:3");
    EXPECT_EQ(message["reasoning_content"], "hm");
    EXPECT_EQ(message["reasoning"], "hm");
}

TEST(ReplyParts, TextThatIsNoCallStaysText) {
    const Json message =
        answer("deepseek_v31", "deepseek_r1", "why</think>a <｜tool▁calls▁begin｜>");
    EXPECT_EQ(message, Json::parse(R"({"role":"assistant","content":"a <｜tool▁calls▁begin｜>",
        "reasoning_content":"why","reasoning":"why","finish":"stop"})"));
    EXPECT_EQ(answer("none", "deepseek_r1", "</think>x")["reasoning_content"], "");
}

}  // namespace
}  // namespace espalier::server
