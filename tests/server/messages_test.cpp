// SPDX-License-Identifier: Apache-2.0
// /v1/messages and count_tokens over a socket: whole answers and streams, calls and their way back,
// thinking, errors, keys, and the prefix that a changing billing line must not cost.
#include <gtest/gtest.h>

#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

Json request(const Json& more = Json::object()) {
    Json body = {{"model", "tools"},
                 {"max_tokens", 400},
                 {"temperature", 1.0},
                 {"seed", 11},
                 {"messages", {{{"role", "user"}, {"content", "Weather in Paris?"}}}}};
    body.update(more);
    return body;
}

const Json kTools = Json::parse(R"([{"name": "weather", "input_schema": {"type": "object",
    "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["days"],
    "additionalProperties": false}}])");

RunningServer& server() {
    static RunningServer running({.model = tool_model()});
    return running;
}

Answer post(const Json& body, const std::string& path = "/v1/messages") {
    return server().client().post(path, body);
}

// The blocks of a stream, put together.
Json streamed_content(const Answer& answer) {
    Json content = Json::array();
    std::vector<std::string> inputs;
    for (const std::string& data : answer.events()) {
        const Json event = Json::parse(data);
        if (event["type"] == "content_block_start") {
            content.push_back(event["content_block"]);
            inputs.emplace_back();
        }
        if (event["type"] != "content_block_delta") continue;
        const Json& delta = event["delta"];
        if (delta.contains("partial_json")) inputs.back() += delta["partial_json"];
        for (const char* name : {"text", "thinking"})
            if (delta.contains(name))
                content.back()[name] =
                    content.back()[name].get<std::string>() + delta[name].get<std::string>();
    }
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (!inputs[i].empty()) content[i]["input"] = Json::parse(inputs[i]);
    return content;
}

// A stream's ids are its own.
Json without_ids(Json content) {
    for (Json& block : content) {
        block.erase("id");
        block.erase("signature");
    }
    return content;
}

TEST(Messages, AnAnswerIsWhole) {
    const Answer answer = post(request({{"max_tokens", 8}}));
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json message = answer.json();
    EXPECT_TRUE(message["id"].get<std::string>().starts_with("msg_"));
    EXPECT_EQ(message["type"], "message");
    EXPECT_EQ(message["role"], "assistant");
    EXPECT_EQ(message["stop_reason"], "max_tokens");
    EXPECT_EQ(message["usage"]["output_tokens"], 8);
    const Json counted = post(request(), "/v1/messages/count_tokens").json();
    const Json& usage = message["usage"];
    EXPECT_EQ(counted["input_tokens"].get<int>(),
              usage["input_tokens"].get<int>() + usage["cache_read_input_tokens"].get<int>());
    EXPECT_EQ(counted.size(), 1u);
}

TEST(Messages, AStreamHasTheSameBlocks) {
    for (int seed = 0; seed < 4; ++seed) {
        Json body = request({{"seed", seed},
                             {"tools", kTools},
                             {"tool_choice", {{"type", seed % 2 == 0 ? "any" : "auto"}}},
                             {"thinking", {{"type", "enabled"}, {"budget_tokens", 20}}}});
        const Answer whole = post(body);
        ASSERT_EQ(whole.status, 200) << whole.body;
        body["stream"] = true;
        const Answer stream = post(body);
        EXPECT_EQ(stream.headers.at("content-type"), "text/event-stream; charset=utf-8");
        const Json content = whole.json()["content"];
        EXPECT_EQ(without_ids(streamed_content(stream)), without_ids(content));
        EXPECT_EQ(content[0]["type"], "thinking");
        const Json last = Json::parse(stream.events()[stream.events().size() - 2]);
        EXPECT_EQ(last["delta"]["stop_reason"], whole.json()["stop_reason"]);
        if (seed % 2 == 1) continue;
        EXPECT_EQ(whole.json()["stop_reason"], "tool_use");
        for (const Json& block : content)
            if (block["type"] == "tool_use") {
                EXPECT_EQ(block["name"], "weather");
                EXPECT_TRUE(block["input"]["days"].is_number_integer());
            }
    }
}

TEST(Messages, StopSequencesAreNamed) {
    const std::string text = post(request({{"max_tokens", 40}})).json()["content"][0]["text"];
    const std::string stop = text.substr(text.size() / 2, 2);
    const Json stopped =
        post(request({{"max_tokens", 40}, {"stop_sequences", {"never in it \1", stop}}})).json();
    EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
    EXPECT_EQ(stopped["stop_sequence"], stop);
    EXPECT_EQ(stopped["content"][0]["text"], text.substr(0, text.find(stop)));
    EXPECT_TRUE(post(request({{"stop_sequences", {""}}})).message().starts_with("stop_sequences["));
}

TEST(Messages, ABillingLineThatChangesCostsNoPrefix) {
    RunningServer::Setup keeping{.model = tool_model()};
    keeping.server.billing_header = "keep";
    RunningServer keeper(keeping);
    const std::string prompt(3000, 'p');
    const auto asked = [&](RunningServer& of, const std::string& hash) {
        const Json system = {
            {{"type", "text"}, {"text", "x-anthropic-billing-header: cch=" + hash + ";"}},
            {{"type", "text"}, {"text", prompt}}};
        const Json answer =
            of.client()
                .post("/v1/messages", request({{"system", system}, {"max_tokens", 1}}))
                .json();
        return answer["usage"]["cache_read_input_tokens"].get<int>();
    };
    EXPECT_EQ(asked(server(), "71fea"), 0);
    EXPECT_GT(asked(server(), "0aaa9"), 2900);
    EXPECT_EQ(asked(keeper, "71fea"), 0);
    EXPECT_LT(asked(keeper, "0aaa9"), 64);
}

TEST(Messages, ErrorsHaveTheirForm) {
    const auto type = [](const Answer& answer, int status) {
        EXPECT_EQ(answer.status, status) << answer.body;
        EXPECT_EQ(answer.json()["type"], "error");
        return answer.json()["error"]["type"].get<std::string>();
    };
    const Answer wrong = post(request({{"max_tokens", 0}}));
    EXPECT_EQ(type(wrong, 400), "invalid_request_error");
    EXPECT_TRUE(wrong.message().starts_with("max_tokens: 0"));
    EXPECT_EQ(type(post(request({{"model", "other"}})), 404), "not_found_error");
    EXPECT_EQ(type(post(request({{"model", "other"}}), "/v1/messages/count_tokens"), 404),
              "not_found_error");
    EXPECT_EQ(type(post(request({{"messages", 3}}), "/v1/messages/count_tokens"), 400),
              "invalid_request_error");
    EXPECT_EQ(type(server().client().get("/v1/messages"), 405), "invalid_request_error");
    EXPECT_EQ(type(server().client().post("/v1/messages/nowhere", Json::object()), 404),
              "not_found_error");
    Json stream = request({{"messages", Json::array()}, {"stream", true}});
    EXPECT_EQ(type(post(stream), 400), "invalid_request_error");
    RunningServer::Setup locked;
    locked.server.api_key = {"sk-secret"};
    locked.load = false;
    RunningServer other(locked);
    EXPECT_EQ(type(other.client().post("/v1/messages", request()), 401), "authentication_error");
    EXPECT_EQ(
        type(other.client().post("/v1/messages", request().dump(), "x-api-key: sk-secret\r\n"),
             503),
        "overloaded_error");
    EXPECT_EQ(
        other.client()
            .post("/v1/messages", request().dump(), "x-api-key: sk-secret\r\nx-api-key: a\r\n")
            .status,
        400);
}

TEST(Messages, VersionsBetasAndUnknownFieldsAreTolerated) {
    RunningServer own({.model = tool_model()});
    const std::string body =
        request({{"max_tokens", 2}, {"frobnicate", 1}, {"metadata", {{"user_id", "u"}}}}).dump();
    for (int i = 0; i < 2; ++i)
        EXPECT_EQ(own.client()
                      .post("/v1/messages?beta=true", body,
                            "anthropic-version: 2099-01-01\r\nanthropic-beta: a,b\r\n")
                      .status,
                  200);
    Json counted = request({{"frobnicate", 1}});
    counted.erase("max_tokens");
    counted.erase("temperature");
    counted.erase("seed");
    EXPECT_EQ(own.client().post("/v1/messages/count_tokens", counted).status, 200);
    const std::string log = own.log_text();
    EXPECT_NE(log.find("'frobnicate'"), std::string::npos) << log;
    EXPECT_EQ(log.find("frobnicate"), log.rfind("frobnicate"));
    EXPECT_EQ(log.find("metadata"), std::string::npos);
}

}  // namespace
}  // namespace espalier::server::test
