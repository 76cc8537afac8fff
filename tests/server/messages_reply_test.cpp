// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/messages: the events of a stream to the letter, and the same as one object.
#include "server/api/messages_reply.hpp"

#include <gtest/gtest.h>

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using accept::FinishReason;

constexpr const char* kText =
    "hm</think>ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
    "1}<｜tool▁call▁end｜>"
    "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";

PartsReplyOptions options(bool stream, bool parses = true) {
    PartsReplyOptions made{.id = "msg_ab", .call_prefix = "toolu_", .model = "m", .stream = stream};
    if (!parses) return made;
    for (const output::ToolFormat& format : output::tool_formats())
        if (format.name == "deepseek_v31") made.parser.tools = &format;
    made.parser.functions = {"f", "g"};
    for (const output::ReasoningFormat& format : output::reasoning_formats())
        if (format.name == "deepseek_v31") made.parser.reasoning = &format;
    made.parser.reasoning_open = true;
    return made;
}

struct Run {
    std::string text = kText;
    std::size_t size = 7;  // bytes of an update
    accept::Finish finish = {FinishReason::eos, 2};
    bool parses = true;
    MessagesAnswer answer = {.stop_sequences = {"x", "END"}, .max_tokens = 50};
};

std::string reply_bytes(bool stream, const Run& run) {
    MessagesReply reply(options(stream, run.parses), run.answer);
    std::string out;
    reply.begin(out);
    EXPECT_EQ(out, "");
    EXPECT_EQ(reply.ping(), ": ping\n\n");
    std::size_t at = 0;
    do {
        engine::ChoiceUpdate update;
        update.emission.text = run.text.substr(at, run.size);
        update.usage = {.prompt_tokens = 70, .completion_tokens = 50, .reasoning_tokens = 4};
        update.cached_tokens = 64;
        at += run.size;
        update.ended = at >= run.text.size();
        update.finish = run.finish;
        reply.add(0, {.choices = {update}, .prompt_logprobs = std::nullopt}, out);
    } while (at < run.text.size());
    EXPECT_TRUE(reply.complete());
    if (stream) {
        EXPECT_EQ(reply.ping(), "event: ping\ndata: {\"type\": \"ping\"}\n\n");
    }
    reply.end(out);
    return out;
}

// A stream's events; the name of each is its type.
std::vector<Json> events_of(std::string_view bytes) {
    std::vector<Json> events;
    while (!bytes.empty()) {
        const std::size_t line = bytes.find('\n'), end = bytes.find("\n\n");
        EXPECT_TRUE(bytes.starts_with("event: ") && bytes.substr(line + 1).starts_with("data: "));
        events.push_back(Json::parse(bytes.substr(line + 7, end - line - 7)));
        EXPECT_EQ(events.back()["type"], bytes.substr(7, line - 7));
        bytes.remove_prefix(end + 2);
    }
    return events;
}

// Put together as clients do it.
Json accumulated(const std::vector<Json>& events) {
    EXPECT_EQ(events.front()["type"], "message_start");
    EXPECT_EQ(events.back(), Json({{"type", "message_stop"}}));
    Json message = events.front()["message"];
    std::vector<std::string> inputs;
    bool open = false;
    for (const Json& event : events) {
        const std::string type = event["type"];
        if (type == "content_block_start") {
            EXPECT_FALSE(open);
            EXPECT_EQ(event["index"], message["content"].size());
            message["content"].push_back(event["content_block"]);
            inputs.emplace_back();
            open = true;
        } else if (type == "content_block_delta") {
            EXPECT_EQ(event["index"], message["content"].size() - 1);
            Json& block = message["content"].back();
            const Json& delta = event["delta"];
            const std::string kind = delta["type"];
            if (kind == "input_json_delta") {
                EXPECT_EQ(block["type"], "tool_use");
                inputs.back() += delta["partial_json"];
            } else {
                const std::string name = kind.substr(0, kind.find('_'));  // text, thinking, …
                block[name] = block[name].get<std::string>() + delta[name].get<std::string>();
            }
        } else if (type == "content_block_stop") {
            EXPECT_TRUE(open);
            EXPECT_EQ(event["index"], message["content"].size() - 1);
            open = false;
        } else if (type == "message_delta") {
            EXPECT_FALSE(open);
            message.update(event["delta"]);
            message["usage"].update(event["usage"]);
        }
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        Json& block = message["content"][i];
        if (block["type"] != "tool_use") continue;
        EXPECT_EQ(block["input"], Json::object());
        const Json input = Json::parse(inputs[i], nullptr, false);
        if (!input.is_discarded()) block["input"] = input;
    }
    return message;
}

// Answer as one object, and as streams of several cuts.
Json answer(Run run) {
    const Json whole = Json::parse(reply_bytes(false, run));
    for (const std::size_t size : {std::size_t{1}, std::size_t{5}, std::size_t{1000}}) {
        run.size = size;
        EXPECT_EQ(accumulated(events_of(reply_bytes(true, run))), whole);
    }
    return whole;
}

TEST(MessagesReply, AStreamHasItsEventsToTheLetter) {
    EXPECT_EQ(reply_bytes(true, {.text = "a</think>b", .size = 100}),
              R"(event: message_start
data: {"type":"message_start","message":{"id":"msg_ab","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":64,"output_tokens":50,"output_tokens_details":{"thinking_tokens":4}}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"a"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"msg_ab"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"b"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":64,"output_tokens":50,"output_tokens_details":{"thinking_tokens":4}}}

event: message_stop
data: {"type":"message_stop"}

)");
}

TEST(MessagesReply, ThinkingTextAndCallsAreBlocks) {
    const Json message = answer({});
    EXPECT_EQ(message["content"], Json::parse(R"([
        {"type": "thinking", "thinking": "hm", "signature": "msg_ab"},
        {"type": "text", "text": "ok"},
        {"type": "tool_use", "id": "toolu_ab02", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_ab03", "name": "g", "input": {}}])"));
    EXPECT_EQ(message["stop_reason"], "tool_use");
    EXPECT_EQ(message["usage"]["input_tokens"], 6);
    EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 64);
}

TEST(MessagesReply, TheReasonOfTheEnd) {
    const Json stopped = answer({.text = "some", .finish = {FinishReason::stop_string, 1}});
    EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
    EXPECT_EQ(stopped["stop_sequence"], "END");
    const Json cut = answer({.finish = {FinishReason::length, -1}});
    EXPECT_EQ(cut["stop_reason"], "max_tokens");
    EXPECT_TRUE(cut["stop_sequence"].is_null());
    // The engine cuts max_tokens to the room that the prompt leaves.
    EXPECT_EQ(answer({.finish = {FinishReason::length, -1},
                      .answer = {.stop_sequences = {}, .max_tokens = 51}})["stop_reason"],
              "model_context_window_exceeded");
    EXPECT_EQ(answer({.text = "x</think>y"})["stop_reason"], "end_turn");
}

TEST(MessagesReply, ACutCallHasNoInput) {
    const std::string text = kText;
    const Json message =
        answer({.text = text.substr(0, text.find(" 1}")), .finish = {FinishReason::length, -1}});
    EXPECT_EQ(message["content"].back(),
              Json::parse(R"({"type": "tool_use", "id": "toolu_ab02", "name": "f", "input": {}})"));
}

TEST(MessagesReply, OmittedThinkingLeavesItsBlock) {
    const Json message =
        answer({.answer = {.stop_sequences = {}, .max_tokens = 50, .omits_thinking = true}});
    EXPECT_EQ(message["content"][0],
              Json::parse(R"({"type": "thinking", "thinking": "", "signature": "msg_ab"})"));
    EXPECT_EQ(message["content"].size(), 4u);
}

TEST(MessagesReply, PlainTextIsOneBlockAndNoTextIsNone) {
    const Json message = answer({.text = "a <think> b", .parses = false});
    EXPECT_EQ(message["content"], Json::parse(R"([{"type": "text", "text": "a <think> b"}])"));
    EXPECT_EQ(answer({.text = "", .parses = false})["content"], Json::array());
}

TEST(MessagesReply, ErrorsHaveAnthropicsForm) {
    const auto json = [](int status) {
        return Json::parse(messages_error_json({.status = status, .message = "why"}));
    };
    EXPECT_EQ(json(400), Json::parse(R"({"type": "error", "error":
        {"type": "invalid_request_error", "message": "why"}})"));
    EXPECT_EQ(json(401)["error"]["type"], "authentication_error");
    EXPECT_EQ(json(403)["error"]["type"], "permission_error");
    EXPECT_EQ(json(404)["error"]["type"], "not_found_error");
    EXPECT_EQ(json(405)["error"]["type"], "invalid_request_error");
    EXPECT_EQ(json(413)["error"]["type"], "request_too_large");
    EXPECT_EQ(json(429)["error"]["type"], "rate_limit_error");
    EXPECT_EQ(json(500)["error"]["type"], "api_error");
    EXPECT_EQ(json(503)["error"]["type"], "overloaded_error");
    EXPECT_EQ(json(504)["error"]["type"], "timeout_error");
    MessagesReply reply(options(true), {});
    EXPECT_EQ(reply.failed({.status = 503, .message = "bye"}),
              "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
              "\"message\":\"bye\"}}\n\n");
    EXPECT_EQ(messages_error_response({.status = 429, .message = "m", .retry_after_seconds = 2})
                  .headers[0]
                  .second,
              "2");
}

TEST(MessagesReply, AnInterruptedOutputIsAFailure) {
    MessagesReply reply(options(true), {});
    std::string out;
    engine::ChoiceUpdate update;
    update.emission.text = "x";
    update.ended = true;
    update.finish.reason = FinishReason::interrupted;
    update.interruption = engine::Interruption::deadline;
    reply.add(0, {.choices = {update}, .prompt_logprobs = std::nullopt}, out);
    ASSERT_TRUE(reply.failure());
    EXPECT_EQ(reply.failure()->status, 504);
    EXPECT_EQ(out, "");
}

}  // namespace
}  // namespace espalier::server
