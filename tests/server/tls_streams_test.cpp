// SPDX-License-Identifier: Apache-2.0
// Two thousand streams with TLS at one time: each gets its own text to its end.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "client/http_client.hpp"
#include "server/running_server.hpp"
#include "support/certificates.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

constexpr int kStreams = 2000;
constexpr int kKinds = 50;  // prompts; a stream that got another's text is one of another prompt

class Stream final : public client::CallListener {
  public:
    void on_status(int came) override { status = came; }
    client::Verdict on_bytes(std::string_view bytes) override {
        body += bytes;
        return client::Verdict::progress;
    }
    void on_end(std::optional<client::Failure> came) override {
        failure = std::move(came);
        on_done();
    }
    std::string text() const {
        Answer answer;
        answer.body = body;
        std::string text, id;
        for (const std::string& event : answer.events()) {
            if (event == "[DONE]") return text;
            const Json chunk = Json::parse(event);
            if (id.empty()) id = chunk["id"];
            if (chunk["id"] != id) return "two ids in one stream";
            text += chunk["choices"][0]["text"].get<std::string>();
        }
        return "a stream without its end";
    }
    int status = 0;
    std::string body;
    std::optional<client::Failure> failure;
    std::function<void()> on_done;
};

Json body_of(int kind) {
    Json body = RunningServer::completion("prompt " + std::to_string(kind), 24);
    body["stream"] = true;
    return body;
}

TEST(TlsStreams, TwoThousandAtOnceAreNeitherLostNorMixed) {
    const TemporaryDirectory directory;
    const auto files = espalier::test::write_certificate(directory.path().string(), "own");
    ::setenv("SSL_CERT_FILE", files.certificate.c_str(), 1);
    raise_file_limit();
    RunningServer::Setup setup;
    setup.server.tls_cert = files.certificate;
    setup.server.tls_key = files.key;
    setup.server.monitor_port = 0;
    setup.server.read_seconds = 600;  // of a machine that is busy with other tests
    setup.sizes.max_waiting = kStreams;
    RunningServer server(setup);
    const auto client = client::HttpClient::open({.url = {.host = "localhost",
                                                          .port = std::to_string(server.port()),
                                                          .path = {},
                                                          .secure = true}});
    ASSERT_TRUE(client) << client.error().message;

    std::vector<std::string> expected;
    std::set<std::string> different;
    for (int kind = 0; kind < kKinds; ++kind) {
        Json body = body_of(kind);
        body["stream"] = false;
        expected.push_back(
            server.secure_client().post("/v1/completions", body).json()["choices"][0]["text"]);
        different.insert(expected.back());
    }
    EXPECT_EQ(different.size(), static_cast<std::size_t>(kKinds));

    std::vector<std::shared_ptr<Stream>> streams;
    int open = kStreams;
    for (int i = 0; i < kStreams; ++i) {
        auto stream = streams.emplace_back(std::make_shared<Stream>());
        stream->on_done = [&] {
            if (--open == 0) (*client)->stop();
        };
        (*client)->start(
            {.method = "POST", .path = "/v1/completions", .body = body_of(i % kKinds).dump()},
            stream);
    }
    (*client)->run([] {});
    int wrong = 0;
    for (int i = 0; i < kStreams; ++i) {
        const Stream& stream = *streams[static_cast<std::size_t>(i)];
        if (stream.failure && ++wrong < 5) ADD_FAILURE() << i << ": " << stream.failure->message;
        if (!stream.failure && stream.text() != expected[static_cast<std::size_t>(i % kKinds)] &&
            ++wrong < 5)
            ADD_FAILURE() << i << ": " << stream.status << " " << stream.text();
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_TRUE(server.becomes_idle());
}

}  // namespace
}  // namespace espalier::server::test
