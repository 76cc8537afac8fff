// SPDX-License-Identifier: Apache-2.0
// Every path over a socket: what it answers, and to whom.
#include <gtest/gtest.h>

#include "server/running_server.hpp"
#include "text/utf8.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

TEST(Routes, TellHealthVersionAndModels) {
    RunningServer server;
    Client client = server.client();  // one connection for all
    for (const char* path : {"/health", "/v1/health", "/ping", "/livez"})
        EXPECT_EQ(client.get(path).status, 200) << path;
    EXPECT_TRUE(client.get("/version").json()["version"].is_string());
    const Json models = client.get("/v1/models").json();
    EXPECT_EQ(models["object"], "list");
    ASSERT_EQ(models["data"].size(), 1u);
    EXPECT_EQ(models["data"][0]["id"], "tiny");
    EXPECT_EQ(models["data"][0]["object"], "model");
    EXPECT_EQ(models["data"][0]["max_model_len"], 8192);
    const Json& facts = models["data"][0]["espalier"];
    EXPECT_EQ(facts["architecture"], "DeepSeek-V3");
    EXPECT_EQ(facts["weights"], "BF16");
    EXPECT_EQ(facts["cache"], "bf16");
    EXPECT_EQ(facts["device"].get<std::string>().substr(0, 5), "cpu, ");
    EXPECT_EQ(facts["drafters"], Json::array({"ngram"}));
    EXPECT_EQ(client.get("/v1/models/tiny").json()["id"], "tiny");
    EXPECT_EQ(client.get("/v1/models/t%69ny?x=1").json()["id"], "tiny");
    EXPECT_EQ(client.get("/v1/models/other").status, 404);
    const Answer metrics = client.get("/metrics");
    EXPECT_EQ(metrics.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    EXPECT_NE(
        metrics.body.find("espalier:num_requests_running{model_name=\"tiny\",engine=\"0\"} 0"),
        std::string::npos);
}

TEST(Routes, ThePageIsWholeAndAsksForNothingOutside) {
    RunningServer server;
    const Answer page = server.client().get("/");
    EXPECT_EQ(page.status, 200);
    EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
    EXPECT_EQ(page.headers.at("x-frame-options"), "DENY");
    EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
    EXPECT_TRUE(page.body.ends_with("</html>\n"));
    for (const char* place : {"@STYLE@", "@STYLE_HASH@", "@SCRIPTS@", "@SCRIPT_HASHES@"})
        EXPECT_EQ(page.body.find(place), std::string::npos) << place;
    EXPECT_NE(page.body.find("default-src 'none'"), std::string::npos);
    EXPECT_EQ(page.body.find("unsafe-inline"), std::string::npos);
    // The page's own parts: between them stand libraries, which know the words of CSS. The names of
    // SVG's elements and of the icon are no requests.
    const std::string own = page.body.substr(0, page.body.find("<script>")) +
                            page.body.substr(page.body.rfind("<script>"));
    for (const char* outside : {"src=\"http", "href=\"http", "url(", "@import", "fetch(\"http"})
        EXPECT_EQ(own.find(outside), std::string::npos) << outside;
}

TEST(Routes, UnknownPathsAndMethodsSayWhatThereIs) {
    RunningServer server;
    Client client = server.client();
    EXPECT_EQ(client.get("/nowhere").status, 404);
    const Answer wrong = server.client().get("/v1/completions");
    EXPECT_EQ(wrong.status, 405);
    EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
    EXPECT_EQ(server.client().post("/health", Json::object()).status, 405);
}

std::string raw(RunningServer& server, const std::string& bytes) {
    Client client = server.client();
    client.send(bytes);
    std::string all;
    for (std::string part; !(part = client.receive_some()).empty();) all += part;
    return all;
}

TEST(Routes, HeadIsGetWithoutItsBody) {
    RunningServer server;
    const std::string kEnd = "Host: localhost\r\nX-Request-Id: r\r\nConnection: close\r\n\r\n";
    for (const char* path : {"/health", "/", "/v1/models", "/nowhere"}) {
        const std::string get = raw(server, "GET " + std::string(path) + " HTTP/1.1\r\n" + kEnd);
        const std::string head = raw(server, "HEAD " + std::string(path) + " HTTP/1.1\r\n" + kEnd);
        EXPECT_EQ(head, get.substr(0, get.find("\r\n\r\n") + 4)) << path;
        EXPECT_LT(head.size(), get.size());
    }
    // The connection goes on behind it.
    Client client = server.client();
    client.send(request_text("HEAD", "/livez") + request_text("GET", "/version"));
    EXPECT_TRUE(client.receive_until("\"version\""));
    EXPECT_TRUE(
        raw(server, "HEAD /v1/completions HTTP/1.1\r\n" + kEnd).starts_with("HTTP/1.1 405"));
}

// Requests in the form of HAProxy's httpchk, old tools and proxies.
TEST(Routes, ChecksOfLoadBalancersAreAnswered) {
    RunningServer server;
    for (const char* line : {"GET /health", "OPTIONS /health", "HEAD /livez"})
        EXPECT_TRUE(
            raw(server, std::string(line) + " HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"))
            << line;
    const std::string options = raw(server, "OPTIONS / HTTP/1.0\r\n\r\n");
    EXPECT_TRUE(options.starts_with("HTTP/1.1 204")) << options;
    EXPECT_NE(options.find("Allow: GET, HEAD, OPTIONS\r\n"), std::string::npos);
    EXPECT_TRUE(raw(server, "OPTIONS * HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 204"));
    EXPECT_TRUE(raw(server, "OPTIONS /nowhere HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 404"));
    EXPECT_TRUE(raw(server, "GET /health HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400"));
    const auto absolute = [&](const std::string& target, const std::string& host) {
        return raw(server, "GET " + target + " HTTP/1.1\r\nHost: " + host +
                               "\r\nConnection: close\r\n\r\n");
    };
    EXPECT_TRUE(absolute("http://127.0.0.1:1/health", "x").starts_with("HTTP/1.1 200"));
    EXPECT_TRUE(absolute("HTTP://localhost", "x").starts_with("HTTP/1.1 200"));
    EXPECT_TRUE(absolute("http://evil.example/health", "127.0.0.1").starts_with("HTTP/1.1 403"));

    RunningServer::Setup loading;
    loading.load = false;
    RunningServer unready(loading);
    EXPECT_TRUE(raw(unready, "OPTIONS /health HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 503"));
}

TEST(Routes, TokensGoThereAndBack) {
    RunningServer server;
    Client client = server.client();
    const Json there =
        client.post("/tokenize", Json{{"prompt", "héllo"}, {"return_token_strs", true}}).json();
    EXPECT_EQ(there["count"], there["tokens"].size());
    EXPECT_EQ(there["token_strs"].size(), there["tokens"].size());
    EXPECT_EQ(there["max_model_len"], 8192);
    const Json plain =
        client.post("/tokenize", Json{{"prompt", "héllo"}, {"add_special_tokens", false}}).json();
    EXPECT_EQ(plain["tokens"].size() + 1, there["tokens"].size());
    EXPECT_EQ(client.post("/detokenize", Json{{"tokens", plain["tokens"]}}).json()["prompt"],
              "héllo");
    EXPECT_EQ(client.post("/tokenize", Json{{"prompt", 3}}).param(), "prompt");
    EXPECT_EQ(client.post("/tokenize", Json::object()).param(), "prompt");
    EXPECT_EQ(client.post("/detokenize", Json{{"tokens", {1, 100000000}}}).param(), "tokens[1]");
    EXPECT_EQ(client.post("/detokenize", Json{{"tokens", "x"}}).param(), "tokens");
}

TEST(Routes, ACompletionIsWhole) {
    RunningServer server;
    Client client = server.client();
    const Answer answer = client.post("/v1/completions", RunningServer::completion("abc", 6));
    ASSERT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
    const Json json = answer.json();
    EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
    EXPECT_EQ(json["object"], "text_completion");
    EXPECT_EQ(json["model"], "tiny");
    EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
    EXPECT_EQ(json["usage"]["completion_tokens"], 6);
    EXPECT_EQ(json["seed"], 7);
    // The same once more, on the same connection.
    EXPECT_EQ(client.post("/v1/completions", RunningServer::completion("abc", 6)).json()["choices"],
              json["choices"]);
    // The model need not be named, and must not be another's.
    Json body = RunningServer::completion("abc", 1);
    body.erase("model");
    EXPECT_EQ(client.post("/v1/completions", body).status, 200);
    body["model"] = "gpt-4";
    const Answer other = client.post("/v1/completions", body);
    EXPECT_EQ(other.status, 404);
    EXPECT_EQ(other.param(), "model");
    EXPECT_EQ(other.json()["error"]["code"], "model_not_found");
}

TEST(Routes, PromptsChoicesAndStops) {
    RunningServer server;
    Client client = server.client();
    Json body = RunningServer::completion("", 5);
    body["prompt"] = {"abc", "xyz"};
    body["n"] = 2;
    const Json several = client.post("/v1/completions", body).json();
    ASSERT_EQ(several["choices"].size(), 4u);
    EXPECT_EQ(several["usage"]["completion_tokens"], 20);
    body["n"] = 1;
    body["prompt"] = "xyz";
    EXPECT_EQ(client.post("/v1/completions", body).json()["choices"][0]["text"],
              several["choices"][2]["text"]);
    // Tokens instead of their text.
    body["prompt"] = client.post("/tokenize", Json{{"prompt", "xyz"}}).json()["tokens"];
    const Json tokens = client.post("/v1/completions", body).json();
    EXPECT_EQ(tokens["choices"][0]["text"], several["choices"][2]["text"]);

    body["max_tokens"] = 40;
    const std::string text = client.post("/v1/completions", body).json()["choices"][0]["text"];
    body["stop"] = text.substr(text.size() / 2, 2);
    if (text::valid_utf8_prefix(body["stop"].get<std::string>()) == 2) {
        const Json stopped = client.post("/v1/completions", body).json();
        EXPECT_EQ(stopped["choices"][0]["finish_reason"], "stop");
        EXPECT_EQ(stopped["choices"][0]["text"], text.substr(0, text.find(body["stop"])));
    }
}

// Evaluation harnesses score a text so.
TEST(Routes, EchoWithLogprobsAndNoTokensScoresAPrompt) {
    RunningServer server;
    Client client = server.client();
    const Json body = {
        {"prompt", "hello there"}, {"max_tokens", 0}, {"echo", true}, {"logprobs", 2}};
    const Json choice = client.post("/v1/completions", body).json()["choices"][0];
    EXPECT_EQ(choice["text"], "hello there");
    const Json logprobs = choice["logprobs"];
    const std::size_t count =
        client.post("/tokenize", Json{{"prompt", "hello there"}}).json()["count"];
    EXPECT_EQ(logprobs["tokens"].size(), count);
    EXPECT_EQ(logprobs["token_logprobs"].size(), count);
    EXPECT_TRUE(logprobs["token_logprobs"][0].is_null());
    for (std::size_t i = 1; i < count; ++i) EXPECT_LT(logprobs["token_logprobs"][i], 0.0);
    EXPECT_GE(logprobs["top_logprobs"][1].size(), 2u);
    Json longer = body;
    longer["max_tokens"] = 3;
    longer["temperature"] = 0;
    const Json more = client.post("/v1/completions", longer).json()["choices"][0];
    EXPECT_TRUE(more["text"].get<std::string>().starts_with("hello there"));
    EXPECT_EQ(more["logprobs"]["tokens"].size(), count + 3);
    for (std::size_t i = 1; i < count; ++i)
        EXPECT_EQ(more["logprobs"]["token_logprobs"][i], logprobs["token_logprobs"][i]);
}

Json chat_request(int max_tokens = 6) {
    return {{"model", "tiny"},
            {"messages", {{{"role", "user"}, {"content", "hello <｜User｜>"}}}},
            {"max_completion_tokens", max_tokens},
            {"temperature", 0.8},
            {"seed", 7},
            {"ignore_eos", true}};
}

TEST(Chat, IsTheCompletionOfItsTemplate) {
    RunningServer server;
    Client client = server.client();
    const Answer answer = client.post("/v1/chat/completions", chat_request());
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json json = answer.json();
    EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
    EXPECT_EQ(json["object"], "chat.completion");
    EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
    EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
    const Json tokens = client.post("/tokenize", chat_request()).json()["tokens"];
    Json body = RunningServer::completion("", 6);
    body["prompt"] = tokens;
    const Json raw = client.post("/v1/completions", body).json();
    EXPECT_EQ(raw["choices"][0]["text"], json["choices"][0]["message"]["content"]);
    EXPECT_EQ(raw["usage"]["prompt_tokens"], json["usage"]["prompt_tokens"]);
    // A message's content is text: its special token takes as many tokens as its bytes do.
    const Json rendered = client.post("/apply-template", chat_request()).json();
    EXPECT_TRUE(
        rendered["prompt"].get<std::string>().ends_with("[user]hello <｜User｜>[assistant]"))
        << rendered;
    const Json parsed =
        client
            .post("/tokenize", Json{{"prompt", rendered["prompt"]}, {"add_special_tokens", false}})
            .json();
    EXPECT_LT(parsed["count"], static_cast<int>(tokens.size()));
}

TEST(Chat, StreamsItsEventsInOrder) {
    RunningServer server;
    Client client = server.client();
    Json body = chat_request(12);
    const std::string whole =
        client.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"];
    body["stream"] = true;
    const std::vector<std::string> events = client.post("/v1/chat/completions", body).events();
    ASSERT_GE(events.size(), 3u);
    EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"],
              Json({{"role", "assistant"}, {"content", ""}}));
    std::string text;
    for (std::size_t i = 1; i + 2 < events.size(); ++i)
        text += Json::parse(events[i])["choices"][0]["delta"]["content"].get<std::string>();
    EXPECT_EQ(text, whole);
    const Json last = Json::parse(events[events.size() - 2])["choices"][0];
    EXPECT_EQ(last["delta"], Json::object());
    EXPECT_EQ(last["finish_reason"], "length");
    EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Chat, FaultsAreNamed) {
    RunningServer server;
    Client client = server.client();
    const auto fault = [&](const Json& change) {
        Json body = chat_request();
        body.update(change);
        const Answer answer = client.post("/v1/chat/completions", body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.param();
    };
    EXPECT_EQ(fault({{"messages", Json::array()}}), "messages");
    EXPECT_EQ(fault({{"messages", {{{"role", "tool"}, {"content", "x"}}}}}),
              "messages[0].tool_call_id");
    EXPECT_EQ(fault({{"response_format", {{"type", "xml"}}}}), "response_format.type");
    EXPECT_EQ(fault({{"tools", {{{"type", "function"}}}}}), "tools[0].function");
    // This model's template takes no tools, and nobody knows how it would write calls or reasoning.
    EXPECT_EQ(fault({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}}), "tools");
    EXPECT_EQ(fault({{"thinking_token_budget", 5}}), "thinking_token_budget");
    EXPECT_EQ(fault({{"chat_template_kwargs", {{"bos_token", "x"}}}}),
              "chat_template_kwargs.bos_token");
    EXPECT_EQ(fault({{"messages", {{{"role", "user"}, {"content", std::string(100'000, 'x')}}}}}),
              "messages");
    EXPECT_EQ(fault({{"max_completion_tokens", 0}}), "max_completion_tokens");
    EXPECT_EQ(fault({{"logprobs", true}, {"top_logprobs", 21}}), "top_logprobs");
    EXPECT_EQ(fault({{"prompt_logprobs", 3}, {"stream", true}}), "prompt_logprobs");
    Json body = chat_request();
    body["chat_template_kwargs"] = {{"mood", "glad"}};
    body["add_generation_prompt"] = false;
    const std::string prompt = client.post("/apply-template", body).json()["prompt"];
    EXPECT_TRUE(prompt.ends_with("<｜User｜>glad")) << prompt;
}

TEST(Routes, ErrorsNameTheFieldThatTheRequestHas) {
    RunningServer server;
    Client client = server.client();
    const auto fault = [&](const Json& change) {
        Json body = RunningServer::completion("abc", 4);
        body.update(change);
        const Answer answer = client.post("/v1/completions", body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        return answer.param();
    };
    EXPECT_EQ(fault({{"temperature", -1}}), "temperature");
    EXPECT_EQ(fault({{"temperature", "hot"}}), "temperature");
    EXPECT_EQ(fault({{"top_p", 0}}), "top_p");
    EXPECT_EQ(fault({{"n", 0}}), "n");
    EXPECT_EQ(fault({{"stop", {""}}}), "stop[0]");
    EXPECT_EQ(fault({{"stop", std::string(300, 'x')}}), "stop[0]");
    EXPECT_EQ(fault({{"logit_bias", {{"99999999", 1}}}}), "logit_bias");
    EXPECT_EQ(fault({{"prompt", {1, 99999999}}}), "prompt[1]");
    EXPECT_EQ(fault({{"prompt", Json::array()}}), "prompt");
    EXPECT_EQ(fault({{"prompt", {"fine", std::vector<int>{99999999}}}}), "prompt[1]");
    EXPECT_EQ(fault({{"min_tokens", 5}}), "min_tokens");
    EXPECT_EQ(fault({{"tools", {1}}}), "tools");
    EXPECT_EQ(fault({{"prompt", std::string(1 << 20, 'x')}}), "prompt");
    EXPECT_EQ(fault({{"prompt", std::vector<int>(9000, 7)}}), "prompt");
}

// The words and the code by which LiteLLM and LangChain know that a shorter prompt would do.
TEST(Routes, APromptThatIsTooLongIsToldAsOpenAiTellsIt) {
    RunningServer server;
    const auto told = [&](const std::string& path, Json body, const Json& change) {
        body.update(change);
        const Answer answer = server.client().post(path, body);
        EXPECT_EQ(answer.status, 400) << answer.body;
        EXPECT_EQ(answer.json()["error"]["code"], "context_length_exceeded") << answer.body;
        EXPECT_TRUE(answer.message().starts_with(
            "This model's maximum context length is 8192 tokens. However, your " + answer.param() +
            " resulted in "))
            << answer.body;
        return answer.param();
    };
    const std::string completions = "/v1/completions", chats = "/v1/chat/completions";
    const Json completion = RunningServer::completion("abc", 4);
    EXPECT_EQ(told(completions, completion, {{"prompt", std::vector<int>(8192, 7)}}), "prompt");
    EXPECT_EQ(told(completions, completion, {{"prompt", std::string(1 << 20, 'x')}}), "prompt");
    EXPECT_EQ(told(completions, completion, {{"prompt", {"a", std::string(20'000, '!')}}}),
              "prompt[1]");
    EXPECT_EQ(told(chats, chat_request(),
                   {{"messages", {{{"role", "user"}, {"content", std::string(20'000, '!')}}}}}),
              "messages");
    // Messages that fit are taken.
    Json fits = completion;
    fits.update({{"prompt", std::vector<int>(8191, 7)}, {"max_tokens", 1}});
    EXPECT_EQ(server.client().post(completions, fits).status, 200);
}

TEST(Routes, ACompletionMayLeaveTheFirstTokenAway) {
    RunningServer server;
    Json body = RunningServer::completion("abc", 1);
    const int with = server.client().post("/v1/completions", body).json()["usage"]["prompt_tokens"];
    body["add_special_tokens"] = false;
    EXPECT_EQ(server.client().post("/v1/completions", body).json()["usage"]["prompt_tokens"],
              with - 1);
}

TEST(Routes, KeysAreAskedForEverywhereButAtProbes) {
    RunningServer::Setup setup;
    setup.server.api_key = {"sk-secret"};
    RunningServer server(setup);
    for (const char* path : {"/health", "/livez", "/ping"})
        EXPECT_EQ(server.client().get(path).status, 200) << path;
    for (const char* path : {"/metrics", "/version", "/v1/models", "/v1/models/tiny", "/nowhere"}) {
        EXPECT_EQ(server.client().get(path).status, 401) << path;
        EXPECT_EQ(server.client().get(path, "Authorization: Bearer sk-secreT\r\n").status, 401);
        EXPECT_NE(server.client().get(path, "Authorization: Bearer sk-secret\r\n").status, 401);
    }
    for (const char* path : {"/v1/completions", "/tokenize", "/detokenize"})
        EXPECT_EQ(server.client().post(path, Json::object()).status, 401) << path;
    const std::string body = RunningServer::completion("a", 1).dump();
    EXPECT_EQ(
        server.client().post("/v1/completions", body, "Authorization: Bearer sk-secret\r\n").status,
        200);
    EXPECT_EQ(server.client().post("/v1/completions", body, "x-api-key: sk-secret\r\n").status,
              200);
    EXPECT_EQ(server.client().post("/v1/completions", body, "x-api-key: sk-secreT\r\n").status,
              401);
}

TEST(Routes, OtherPagesAndOtherNamesAreRefused) {
    RunningServer::Setup setup;
    setup.server.allowed_origin = {"https://chat.example"};
    RunningServer server(setup);
    EXPECT_EQ(server.client().get("/v1/models", "Host: evil.example\r\n").status, 403);
    EXPECT_EQ(server.client().get("/health", "Host: evil.example\r\n").status, 403);
    EXPECT_EQ(server.client().get("/v1/models", "Origin: http://evil.example\r\n").status, 403);
    const std::string body = RunningServer::completion("a", 1).dump();
    EXPECT_EQ(server.client().post("/v1/completions", body, "Content-Type: text/plain\r\n").status,
              415);
    const Answer allowed =
        server.client().post("/v1/completions", body, "Origin: https://chat.example\r\n");
    EXPECT_EQ(allowed.status, 200);
    EXPECT_EQ(allowed.headers.at("access-control-allow-origin"), "https://chat.example");
    Client asking = server.client();
    asking.send(request_text("OPTIONS", "/v1/completions", {}, "Origin: https://chat.example\r\n"));
    const Answer preflight = asking.receive();
    EXPECT_EQ(preflight.status, 204);
    EXPECT_EQ(preflight.headers.at("access-control-allow-headers"), "Authorization, *");
}

TEST(Routes, UntilTheModelIsThereProbesAreAnswered) {
    RunningServer::Setup setup;
    setup.load = false;
    RunningServer server(setup);
    const Answer health = server.client().get("/health");
    EXPECT_EQ(health.status, 503);
    EXPECT_EQ(health.json()["error"]["message"], "Loading model");
    EXPECT_EQ(health.json()["error"]["type"], "unavailable_error");
    EXPECT_EQ(server.client().get("/livez").status, 200);
    EXPECT_EQ(server.client().get("/metrics").status, 200);
    const Answer refused = server.client().post("/v1/completions", Json::object());
    EXPECT_EQ(refused.status, 503);
    EXPECT_TRUE(refused.headers.contains("retry-after"));
}

TEST(Routes, UnknownFieldsAreLoggedOnce) {
    RunningServer server;
    Json body = RunningServer::completion("a", 1);
    body["frobnicate\n"] = 1;
    for (int i = 0; i < 3; ++i)
        EXPECT_EQ(server.client().post("/v1/completions", body).status, 200);
    const std::string log = server.log_text();
    EXPECT_NE(log.find("'frobnicate\\x0a'"), std::string::npos) << log;
    EXPECT_EQ(log.find("frobnicate"), log.rfind("frobnicate"));
}

}  // namespace
}  // namespace espalier::server::test
