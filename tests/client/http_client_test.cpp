// SPDX-License-Identifier: Apache-2.0
// Calls to servers of every kind: each ends, and says how.
#include "client/http_client.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "client/models.hpp"
#include "support/stand_in_server.hpp"

namespace espalier::client {
namespace {

using test::http_answer;
using test::http_chunked;
using test::ScriptedAnswer;
using test::StandInServer;

std::unique_ptr<HttpClient> client_of(const std::string& url, double timeout_seconds = 600,
                                      const std::string& key = {}) {
    auto client = HttpClient::open(
        {.url = *parse_url(url), .api_key = key, .timeout_seconds = timeout_seconds});
    EXPECT_TRUE(client) << client.error().message;
    return std::move(*client);
}

class Listener final : public CallListener {
  public:
    explicit Listener(HttpClient& client) : client_(client) {}
    void on_status(int came) override { status = came; }
    Verdict on_bytes(std::string_view bytes) override {
        body += bytes;
        return Verdict::waiting;
    }
    void on_end(std::optional<Failure> came) override {
        ++ends;
        failure = std::move(came);
        client_.stop();
    }
    int status = 0, ends = 0;
    std::string body;
    std::optional<Failure> failure;

  private:
    HttpClient& client_;
};

std::shared_ptr<Listener> call(HttpClient& client, Call what) {
    const auto listener = std::make_shared<Listener>(client);
    client.start(std::move(what), listener);
    client.run([&] { client.end_all({FailureKind::interrupted, "interrupted"}); });
    EXPECT_EQ(listener->ends, 1);
    return listener;
}

TEST(HttpClient, SendsItsRequestAndReadsTheAnswer) {
    std::string seen;
    const StandInServer server([&](const std::string& request) {
        seen = request;
        return ScriptedAnswer{http_chunked({"one ", "two"})};
    });
    const auto client = client_of(server.url() + "/prefix", 600, "secret");
    const auto answer = call(*client, {.method = "POST", .path = "/v1/x", .body = "{}"});
    EXPECT_FALSE(answer->failure);
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "one two");
    EXPECT_TRUE(seen.starts_with("POST /prefix/v1/x HTTP/1.1\r\nHost: 127.0.0.1:")) << seen;
    EXPECT_NE(seen.find("\r\nAuthorization: Bearer secret\r\n"), std::string::npos);
    EXPECT_NE(seen.find("\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"),
              std::string::npos);
    EXPECT_TRUE(seen.ends_with("\r\n\r\n{}"));
}

TEST(HttpClient, BrokenAnswersAreFailuresByKind) {
    const std::string ok = "HTTP/1.1 200 OK\r\n",
                      chunked = ok + "Transfer-Encoding: chunked\r\n\r\n";
    const std::pair<ScriptedAnswer, FailureKind> cases[] = {
        {{""}, FailureKind::closed},
        {{"HTTP/1.1 200"}, FailureKind::closed},
        {{"SSH-2.0-OpenSSH\r\n\r\n"}, FailureKind::protocol},
        {{std::string("\0\1\2\3\r\n\r\n", 8)}, FailureKind::protocol},
        {{ok + "Content-Length: 9\r\n\r\nab"}, FailureKind::closed},
        {{ok + "Content-Length: x\r\n\r\nab"}, FailureKind::protocol},
        {{ok + "Content-Length: 99999999999\r\n\r\nab"}, FailureKind::protocol},
        {{chunked + "zz\r\n"}, FailureKind::protocol},
        {{chunked + "2\r\nabc\r\n"}, FailureKind::closed},
        {{chunked + "5\r\nab"}, FailureKind::closed},
        {{chunked + "ffffffffffffffff1\r\n"}, FailureKind::protocol},
        // Heads that do not end.
        {{ok + "A: ", 4096}, FailureKind::closed},
        {{ok + "A: " + std::string(1 << 20, 'x'), 4096}, FailureKind::protocol},
        {{.bytes = "A: b\r\n", .at_a_time = 6, .endless = true}, FailureKind::protocol},
        {{.bytes = ok, .at_a_time = 4096, .endless = true}, FailureKind::protocol},
    };
    for (const auto& [script, kind] : cases) {
        const StandInServer server([&](const std::string&) { return script; });
        const auto client = client_of(server.url());
        const auto answer = call(*client, {.path = "/"});
        ASSERT_TRUE(answer->failure) << script.bytes;
        EXPECT_EQ(answer->failure->kind, kind) << script.bytes << answer->failure->message;
    }
}

TEST(HttpClient, ABodyWithoutLengthEndsWithItsConnection) {
    const StandInServer server(
        [](const std::string&) { return ScriptedAnswer{"HTTP/1.1 200 OK\r\n\r\nall of it"}; });
    const auto client = client_of(server.url());
    const auto answer = call(*client, {.path = "/"});
    EXPECT_FALSE(answer->failure);
    EXPECT_EQ(answer->body, "all of it");
}

TEST(HttpClient, SilenceIsATimeoutAndBytesWithoutProgressAreSilence) {
    for (const ScriptedAnswer& script :
         {ScriptedAnswer{.bytes = "", .hold = true},
          ScriptedAnswer{.bytes = "HTTP/1.1 200 OK\r\n\r\n", .hold = true},
          // A proxy's pings: they come, and say nothing.
          ScriptedAnswer{
              .bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n: ping\n\n\r\n",
             .hold = true}}) {
        const StandInServer server([&](const std::string&) { return script; });
        const auto client = client_of(server.url(), 0.05);
        EXPECT_EQ(call(*client, {.path = "/"})->failure->kind, FailureKind::timeout);
    }
}

TEST(HttpClient, NobodyThereIsNoConnection) {
    std::string url;
    {
        const StandInServer server([](const std::string&) { return ScriptedAnswer{}; });
        url = server.url();
    }
    const auto client = client_of(url);
    EXPECT_EQ(call(*client, {.path = "/"})->failure->kind, FailureKind::connect);
}

TEST(HttpClient, CtrlCEndsWhatIsUnderWayAndTheClientGoesOn) {
    int requests = 0;
    const StandInServer server([&](const std::string&) {
        if (++requests > 1) return ScriptedAnswer{http_answer(200, "again")};
        ::kill(::getpid(), SIGINT);
        return ScriptedAnswer{.bytes = {}, .hold = true};
    });
    const auto client = client_of(server.url());
    EXPECT_EQ(call(*client, {.path = "/"})->failure->kind, FailureKind::interrupted);
    EXPECT_EQ(call(*client, {.path = "/"})->body, "again");
}

TEST(HttpClient, AKeyThatNoHeaderMayHaveIsRefused) {
    for (const char* key : {"a b", "a\r\nX: y", "\xc3\xa9"})
        EXPECT_EQ(HttpClient::open({.url = *parse_url("http://127.0.0.1:1"), .api_key = key})
                      .error()
                      .field,
                  "api_key");
}

TEST(HttpClient, FetchAndFirstModel) {
    std::string body = R"({"data":[{"id":"m"},{"id":"n"}]})";
    int status = 200;
    const StandInServer server(
        [&](const std::string&) { return ScriptedAnswer{http_answer(status, body)}; });
    const auto client = client_of(server.url());
    EXPECT_EQ(*first_model(*client), "m");
    for (const char* wrong : {"", "[]", "{}", R"({"data":[]})", R"({"data":[{"id":7}]})"}) {
        body = wrong;
        EXPECT_FALSE(first_model(*client)) << wrong;
    }
    body = R"({"error":{"message":"no key"}})";
    status = 401;
    EXPECT_EQ(fetch(*client, {.path = "/"}, 100).error().message, "HTTP 401: no key");
    status = 200;
    EXPECT_EQ(fetch(*client, {.path = "/"}, 5)->size(), 5u);  // no more than wanted
}

}  // namespace
}  // namespace espalier::client
