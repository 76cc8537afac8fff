// SPDX-License-Identifier: Apache-2.0
// Answers of /v1/responses: the events of a stream in their order, and the same as one object.
#include "server/api/responses_reply.hpp"

#include <gtest/gtest.h>

namespace espalier::server {
namespace {

using Json = nlohmann::json;
using accept::FinishReason;

constexpr const char* kText =
    "hm</think>ok<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": "
    "1}<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>";

std::string reply_bytes(bool stream, const std::string& text, std::size_t size,
                        FinishReason finish) {
    PartsReplyOptions options{
        .id = "resp_ab", .call_prefix = "call_", .created = 7, .model = "m", .stream = stream};
    for (const output::ToolFormat& format : output::tool_formats())
        if (format.name == "deepseek_v31") options.parser.tools = &format;
    options.parser.functions = {"f"};
    for (const output::ReasoningFormat& format : output::reasoning_formats())
        if (format.name == "deepseek_v31") options.parser.reasoning = &format;
    options.parser.reasoning_open = true;
    ResponsesReply reply(options, {{"store", false}});
    std::string out;
    reply.begin(out);
    for (std::size_t at = 0; at < text.size(); at += size) {
        engine::ChoiceUpdate update;
        update.emission.text = text.substr(at, size);
        update.usage = {.prompt_tokens = 70, .completion_tokens = 50, .reasoning_tokens = 4};
        update.cached_tokens = 64;
        update.ended = at + size >= text.size();
        update.finish.reason = finish;
        reply.add(0, {.choices = {update}, .prompt_logprobs = std::nullopt}, out);
    }
    EXPECT_TRUE(reply.complete());
    reply.end(out);
    return out;
}

std::vector<Json> events_of(std::string_view bytes) {
    std::vector<Json> events;
    while (!bytes.empty()) {
        const std::size_t line = bytes.find('\n'), end = bytes.find("\n\n");
        events.push_back(Json::parse(bytes.substr(line + 7, end - line - 7)));
        EXPECT_EQ(events.back()["type"], bytes.substr(7, line - 7));
        EXPECT_EQ(events.back()["sequence_number"], events.size() - 1);
        bytes.remove_prefix(end + 2);
    }
    return events;
}

// Each item's events add up to the item as it is in the end.
void expect_consistent(const std::vector<Json>& events, const Json& whole) {
    EXPECT_EQ(events[0]["type"], "response.created");
    EXPECT_EQ(events[1]["type"], "response.in_progress");
    EXPECT_EQ(events[0]["response"]["output"], Json::array());
    EXPECT_EQ(events.back()["type"], "response." + whole["status"].get<std::string>());
    EXPECT_EQ(events.back()["response"], whole);
    std::size_t items = 0;
    std::string told;
    for (const Json& event : events) {
        const std::string type = event["type"];
        if (type == "response.output_item.added") {
            EXPECT_EQ(event["output_index"], items);
            EXPECT_EQ(event["item"]["status"], "in_progress");
            EXPECT_EQ(event["item"]["id"], whole["output"][items]["id"]);
            told.clear();
        } else if (type.ends_with(".delta")) {
            EXPECT_EQ(event["item_id"], whole["output"][items]["id"]);
            told += event["delta"].get<std::string>();
        } else if (type.ends_with("text.done")) {
            EXPECT_EQ(event["text"], told);
            EXPECT_EQ(event["content_index"], 0);
        } else if (type == "response.function_call_arguments.done") {
            EXPECT_EQ(event["arguments"], told);
        } else if (type == "response.content_part.done") {
            EXPECT_EQ(event["part"], whole["output"][items]["content"][0]);
        } else if (type == "response.output_item.done") {
            EXPECT_EQ(event["item"], whole["output"][items++]);
        }
    }
    EXPECT_EQ(items, whole["output"].size());
}

// Answer as one object, and as streams of several cuts.
Json answer(const std::string& text, FinishReason finish = FinishReason::eos) {
    const Json whole = Json::parse(reply_bytes(false, text, 7, finish));
    for (const std::size_t size : {std::size_t{1}, std::size_t{5}, std::size_t{1000}})
        expect_consistent(events_of(reply_bytes(true, text, size, finish)), whole);
    return whole;
}

TEST(ResponsesReply, ReasoningTextAndCallsAreItems) {
    const Json whole = answer(kText);
    EXPECT_EQ(whole["output"], Json::parse(R"([
        {"id": "rs_ab00", "type": "reasoning", "summary": [], "status": "completed",
         "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": null},
        {"id": "msg_ab01", "type": "message", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}]},
        {"id": "fc_ab02", "type": "function_call", "call_id": "call_ab02", "name": "f",
         "arguments": "{\"a\": 1}", "status": "completed"}])"));
    EXPECT_EQ(whole["status"], "completed");
    EXPECT_EQ(whole["created_at"], 7);
    EXPECT_EQ(whole["store"], false);
    EXPECT_EQ(whole["usage"], Json::parse(R"({"input_tokens": 70, "output_tokens": 50,
        "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 4}, "total_tokens": 120})"));
}

TEST(ResponsesReply, ACutOutputIsIncomplete) {
    const Json whole = answer("hm</think>o", FinishReason::length);
    EXPECT_EQ(whole["status"], "incomplete");
    EXPECT_EQ(whole["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
    EXPECT_EQ(whole["output"][0]["status"], "completed");
    EXPECT_EQ(whole["output"][1]["status"], "incomplete");
}

TEST(ResponsesReply, EventsComeInTheirOrder) {
    std::vector<std::string> types;
    for (const Json& event : events_of(reply_bytes(true, kText, 1000, FinishReason::eos)))
        types.push_back(event["type"]);
    EXPECT_EQ(types,
              (std::vector<std::string>{
                  "response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.reasoning_text.delta",
                  "response.reasoning_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.content_part.added", "response.output_text.delta",
                  "response.output_text.done", "response.content_part.done",
                  "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.completed"}));
}

TEST(ResponsesReply, AFailureIsTheLastEvent) {
    ResponsesReply reply({.id = "resp_ab", .call_prefix = {}, .model = "m", .stream = true},
                         nlohmann::ordered_json::object());
    std::string begun;
    reply.begin(begun);
    const std::vector<Json> events =
        events_of(begun + reply.failed({.status = 503, .message = "bye"}));
    EXPECT_EQ(events.back()["type"], "response.failed");
    EXPECT_EQ(events.back()["response"]["status"], "failed");
    EXPECT_EQ(events.back()["response"]["error"],
              Json({{"code", "server_error"}, {"message", "bye"}}));
}

}  // namespace
}  // namespace espalier::server
