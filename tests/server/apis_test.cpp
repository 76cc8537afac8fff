// SPDX-License-Identifier: Apache-2.0
// One path of generation behind all APIs: the same chat has the same text through each of them,
// streamed or not, and it is the engine's own for the rendered prompt.
#include <gtest/gtest.h>

#include "base/random.hpp"
#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

struct Chat {
    std::string system, user;
    Json sampling;  // fields that all APIs take
    int max_tokens = 1;
};

Chat random_chat(int number) {
    Random random(static_cast<std::uint64_t>(number) + 900);
    const auto word = [&] {
        std::string text;
        for (int i = random.between(1, 80); i > 0; --i)
            text += static_cast<char>('a' + random.between(0, 5));
        return text;
    };
    Chat chat{
        .system = word(), .user = word(), .sampling = {}, .max_tokens = random.between(1, 40)};
    chat.sampling = {{"seed", number},
                     {"temperature", number % 3 == 0 ? 0.0 : 0.9},
                     {"top_p", 0.95},
                     {"speculate", number % 2 == 0}};
    return chat;
}

std::string chat_text(RunningServer& server, const Chat& chat, bool stream) {
    Json body = chat.sampling;
    body.update({{"messages",
                  {{{"role", "system"}, {"content", chat.system}},
                   {{"role", "user"}, {"content", chat.user}}}},
                 {"max_tokens", chat.max_tokens},
                 {"stream", stream}});
    const Answer answer = server.client().post("/v1/chat/completions", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (!stream) return answer.json()["choices"][0]["message"]["content"];
    std::string text;
    for (const std::string& data : answer.events())
        if (data != "[DONE]") text += Json::parse(data)["choices"][0]["delta"].value("content", "");
    return text;
}

std::string messages_text(RunningServer& server, const Chat& chat, bool stream) {
    Json body = chat.sampling;
    body.update({{"system", chat.system},
                 {"messages", {{{"role", "user"}, {"content", chat.user}}}},
                 {"max_tokens", chat.max_tokens},
                 {"stream", stream}});
    const Answer answer = server.client().post("/v1/messages", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::string text;
    if (!stream) {
        const Json message = answer.json();
        for (const Json& block : message["content"]) text += block["text"];
        return text;
    }
    for (const std::string& data : answer.events()) {
        const Json event = Json::parse(data);
        if (event["type"] == "content_block_delta") text += event["delta"]["text"];
    }
    return text;
}

std::string responses_text(RunningServer& server, const Chat& chat, bool stream) {
    Json body = chat.sampling;
    body.update({{"instructions", chat.system},
                 {"input", chat.user},
                 {"max_output_tokens", chat.max_tokens},
                 {"stream", stream}});
    const Answer answer = server.client().post("/v1/responses", body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::string text;
    if (!stream) {
        const Json response = answer.json();
        for (const Json& item : response["output"])
            text += item["content"][0]["text"].get<std::string>();
        return text;
    }
    for (const std::string& data : answer.events()) {
        const Json event = Json::parse(data);
        if (event["type"] == "response.output_text.delta")
            text += event["delta"].get<std::string>();
    }
    return text;
}

// The way of `espalier generate`: the rendered prompt's tokens, straight to an engine.
std::string engine_text(RunningServer& plain, const Chat& chat) {
    const Json prompt = {{"messages",
                          {{{"role", "system"}, {"content", chat.system}},
                           {{"role", "user"}, {"content", chat.user}}}}};
    engine::Request request;
    request.prompt =
        plain.client().post("/tokenize", prompt).json()["tokens"].get<std::vector<std::int32_t>>();
    request.sampling.seed = chat.sampling["seed"];
    request.sampling.temperature = chat.sampling["temperature"];
    request.sampling.top_p = chat.sampling["top_p"];
    request.output.max_tokens = chat.max_tokens;
    auto stream = plain.engine().submit(std::move(request));
    EXPECT_TRUE(stream) << stream.error().message;
    engine::Updates updates;
    std::string text;
    while (stream->next(updates)) text += updates.choices[0].emission.text;
    return text;
}

TEST(Apis, EveryOneHasTheEnginesText) {
    RunningServer server;
    RunningServer::Setup setup;
    setup.speculate = {"off"};
    RunningServer plain(setup);
    for (int number = 0; number < 24; ++number) {
        const Chat chat = random_chat(number);
        const std::string expected = engine_text(plain, chat);
        for (const bool stream : {false, true}) {
            EXPECT_EQ(chat_text(server, chat, stream), expected) << number;
            EXPECT_EQ(messages_text(server, chat, stream), expected) << number;
            EXPECT_EQ(responses_text(server, chat, stream), expected) << number;
        }
    }
}

}  // namespace
}  // namespace espalier::server::test
