// SPDX-License-Identifier: Apache-2.0
// What operators see of requests and may do while a server runs: names of requests, the access log,
// keys with limits, the port of monitors.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "server/running_server.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;

constexpr const char* kParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// The log's lines for a path, once there are `count`.
std::vector<std::string> accesses(RunningServer& server, const std::string& path,
                                  std::size_t count) {
    for (;;) {
        std::vector<std::string> found;
        std::istringstream lines(server.log_text());
        for (std::string line; std::getline(lines, line);)
            if (line.find(" request client=") != std::string::npos &&
                line.find(" path=" + path + " ") != std::string::npos)
                found.push_back(line);
        if (found.size() >= count) return found;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

TEST(RequestId, IsTheClientsOrOneThatIsMade) {
    RunningServer server;
    Client client = server.client();
    const std::string longest(128, 'x');
    EXPECT_EQ(client.get("/version", "X-Request-Id: b\r\n").headers["request-id"], "b");
    for (const std::string& id : {std::string("a"), std::string("01HX-9z_.:/+=~!\"{}\\"), longest})
        EXPECT_EQ(client.get("/version", "X-Request-Id: " + id + "\r\n").headers["x-request-id"],
                  id);
    std::set<std::string> made;
    for (const std::string& given :
         {std::string(), "X-Request-Id: " + longest + "x\r\n", std::string("X-Request-Id: \r\n"),
          std::string("X-Request-Id: a b\r\n"), std::string("X-Request-Id: \xc3\xa9\r\n"),
          std::string("X-Request-Id: \xff\x80\r\n"), std::string("X-Request-Id: a\tb\r\n"),
          std::string("X-Request-Id: a\r\nX-Request-Id: b\r\n")}) {
        const std::string id = client.get("/version", given).headers["x-request-id"];
        EXPECT_EQ(id.size(), 32u) << given;
        EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos) << id;
        made.insert(id);
    }
    EXPECT_EQ(made.size(), 8u);
    // Errors have one too, and so has what is no HTTP.
    EXPECT_EQ(server.client().get("/nowhere", "X-Request-Id: n\r\n").headers["x-request-id"], "n");
    Client wrong = server.client();
    wrong.send("no HTTP\r\n\r\n");
    EXPECT_EQ(wrong.receive().headers["x-request-id"].size(), 32u);
    // Nor is one taken that goes on in the next line.
    Client split = server.client();
    split.send("GET /version HTTP/1.1\r\nHost: a.localhost\r\nX-Request-Id: a\r\n\tb\r\n\r\n");
    EXPECT_EQ(split.receive().headers["x-request-id"].size(), 32u);
}

TEST(AccessLog, HasALineForEveryRequestAndNoPrompt) {
    RunningServer server;
    Json body = RunningServer::completion("a secret prompt", 5);
    const std::string headers =
        "X-Request-Id: r-1\r\ntraceparent: " + std::string(kParent) + "\r\n";
    EXPECT_EQ(server.client().post("/v1/completions", body.dump(), headers).status, 200);
    body["stream"] = true;
    EXPECT_EQ(server.client().post("/v1/completions", body.dump(), "traceparent: x\r\n").status,
              200);
    const auto lines = accesses(server, "/v1/completions", 2);
    ASSERT_EQ(lines.size(), 2u);
    for (const char* part : {" info ", "client=127.0.0.1", "method=POST", "status=200",
                             "request_id=r-1", "trace_id=4bf92f3577b34da6a3ce929d0e0e4736",
                             "parent_id=00f067aa0ba902b7", "prompt_tokens=", "output_tokens=5"})
        EXPECT_NE(lines[0].find(part), std::string::npos) << part << ": " << lines[0];
    EXPECT_EQ(lines[1].find("trace_id"), std::string::npos) << lines[1];
    EXPECT_NE(lines[1].find("output_tokens=5"), std::string::npos) << lines[1];
    EXPECT_EQ(server.client().get("/no\"where?key=secret").status, 404);
    EXPECT_NE(accesses(server, "/no\"where", 1)[0].find("status=404"), std::string::npos);
    EXPECT_EQ(server.log_text().find("secret"), std::string::npos);
    // Probes are said at the level debug alone.
    EXPECT_EQ(server.client().get("/health").status, 200);
    EXPECT_EQ(server.client().get("/version").status, 200);
    accesses(server, "/version", 1);
    EXPECT_EQ(server.log_text().find("path=/health"), std::string::npos);
}

TEST(AccessLog, SaysOfAClientThatWentThatItWent) {
    RunningServer server;
    Client client = server.client();
    Json body = RunningServer::completion("abc", 7000);
    body["stream"] = true;
    client.send(request_text("POST", "/v1/completions", body.dump()));
    ASSERT_TRUE(client.receive_until("data: "));
    client.close();
    const auto lines = accesses(server, "/v1/completions", 1);
    EXPECT_NE(lines[0].find("status=499"), std::string::npos) << lines[0];
    // A connection that asks for nothing is no request.
    server.client().close();
    EXPECT_TRUE(server.becomes_idle());
    EXPECT_EQ(server.log_text().find("method= "), std::string::npos);
}

TEST(AccessLog, MayBeOff) {
    RunningServer::Setup setup;
    setup.load = false;
    setup.server.access_log = "off";
    RunningServer server(setup);
    EXPECT_EQ(server.client().get("/nowhere").status, 404);
    EXPECT_EQ(server.client().get("/nowhere").status, 404);
    EXPECT_EQ(server.log_text().find("/nowhere"), std::string::npos);
}

// ---- keys ---------------------------------------------------------------------------------------

class KeyFile {
  public:
    std::string path() const { return (directory_.path() / "keys").string(); }
    void write(const std::string& text) const { std::ofstream(path()) << text; }

  private:
    TemporaryDirectory directory_;
};

Answer ask(RunningServer& server, const std::string& key, const Json& body) {
    return server.client().post("/v1/completions", body.dump(),
                                "Authorization: Bearer " + key + "\r\n");
}

RunningServer::Setup with_keys(const KeyFile& file) {
    RunningServer::Setup setup;
    setup.server.api_key_file = file.path();
    return setup;
}

TEST(Keys, OfAFileHaveNamesInTheLogAndAreReadAgain) {
    const KeyFile file;
    file.write("# comment\nalice  sk-alice\nbob sk-bob requests=2 # likewise\n");
    RunningServer server(with_keys(file));
    const Json body = RunningServer::completion("abc", 2);
    EXPECT_EQ(ask(server, "sk-alice", body).status, 200);
    EXPECT_EQ(ask(server, "sk-carol", body).status, 401);
    const auto lines = accesses(server, "/v1/completions", 2);
    EXPECT_NE(lines[0].find(" key=alice"), std::string::npos) << lines[0];
    EXPECT_EQ(lines[1].find(" key="), std::string::npos) << lines[1];

    const auto reload = [&](const std::string& text, const std::string& said) {
        file.write(text);
        server.server->reload();
        while (server.log_text().find(said) == std::string::npos)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    reload("carol sk-carol\nbob sk-bob\nd sk-d\n", "3 API keys");
    EXPECT_EQ(ask(server, "sk-carol", body).status, 200);
    EXPECT_EQ(ask(server, "sk-alice", body).status, 401);
    // A file that is broken leaves the keys of before; no line of it is repeated.
    reload("carol sk-carol requests=none\n", ":1: 'requests=none' is neither");
    EXPECT_EQ(ask(server, "sk-carol", body).status, 200);
    std::filesystem::remove(file.path());
    server.server->reload();
    while (server.log_text().find("keys: ") == std::string::npos)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(ask(server, "sk-carol", body).status, 200);
    EXPECT_EQ(server.log_text().find("sk-"), std::string::npos);
}

TEST(Keys, AFileThatCannotBeReadIsRefusedAtTheStart) {
    const KeyFile file;
    EXPECT_THROW(RunningServer server(with_keys(file)), std::runtime_error);
    file.write("alice\n");
    EXPECT_THROW(RunningServer server(with_keys(file)), std::runtime_error);
}

TEST(Keys, BoundRequestsAndTokensThatAreUnderWay) {
    const KeyFile file;
    file.write("one sk-one requests=1\nmany sk-many\nfew sk-few tokens=100\n");
    RunningServer server(with_keys(file));
    Json endless = RunningServer::completion("abc", 7000);
    endless["stream"] = true;
    const Json small = RunningServer::completion("abc", 2);

    Client busy = server.client();
    busy.send(request_text("POST", "/v1/completions", endless.dump(),
                           "Authorization: Bearer sk-one\r\n"));
    ASSERT_TRUE(busy.receive_until("data: "));
    const Answer refused = ask(server, "sk-one", small);
    EXPECT_EQ(refused.status, 429) << refused.body;
    EXPECT_EQ(refused.json()["error"]["code"], "rate_limit_exceeded");
    EXPECT_TRUE(refused.headers.contains("retry-after"));
    EXPECT_EQ(ask(server, "sk-many", small).status, 200);
    // Reading the file again forgets no request that is under way.
    server.server->reload();
    EXPECT_EQ(ask(server, "sk-one", small).status, 429);
    busy.close();
    EXPECT_TRUE(server.becomes_idle());
    while (ask(server, "sk-one", small).status == 429) {
    }
    for (int i = 0; i < 20; ++i) EXPECT_EQ(ask(server, "sk-one", small).status, 200) << i;

    // Tokens: of prompts and of the outputs that they may have, for every choice.
    Json wide = RunningServer::completion("abc", 30);
    wide["n"] = 3;
    EXPECT_EQ(ask(server, "sk-few", wide).status, 200);
    wide["n"] = 4;
    const Answer large = ask(server, "sk-few", wide);
    EXPECT_EQ(large.status, 400) << large.body;
    EXPECT_NE(large.message().find("may use 100 at a time"), std::string::npos) << large.body;
    for (int i = 0; i < 20; ++i) EXPECT_EQ(ask(server, "sk-few", small).status, 200) << i;
}

// ---- the port of monitors -----------------------------------------------------------------------

TEST(Monitor, HasMetricsAndProbesWithoutAKeyAndNothingElse) {
    RunningServer::Setup setup;
    setup.server.api_key = {"sk-secret"};
    setup.server.monitor_port = 0;
    RunningServer server(setup);
    ASSERT_TRUE(server.server->monitor_port());
    const auto monitor = [&] { return Client(*server.server->monitor_port()); };
    for (const char* path : {"/metrics", "/health", "/livez", "/ping"})
        EXPECT_EQ(monitor().get(path).status, 200) << path;
    for (const char* path : {"/", "/v1/models", "/version"})
        EXPECT_EQ(monitor().get(path, "Authorization: Bearer sk-secret\r\n").status, 404) << path;
    EXPECT_EQ(monitor().post("/v1/completions", RunningServer::completion("a", 1)).status, 404);
    const std::string key = "Authorization: Bearer sk-secret\r\n";
    EXPECT_EQ(server.client().get("/metrics", key).status, 404);
    EXPECT_EQ(server.client().get("/health").status, 200);
    EXPECT_EQ(server.client().get("/v1/models", key).status, 200);
}

TEST(Monitor, APortThatIsTakenIsNamed) {
    RunningServer::Setup setup;
    setup.load = false;
    RunningServer server(setup);
    ServerOptions options = test_options();
    options.monitor_port = server.port();
    Log log(Log::Format::text, server.log_file);
    const auto second = Server::start(options, log);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().field, "monitor_port");
}

TEST(Options, AFaultAtTheStartIsTheFlagsOwn) {
    const auto fault = [](const char* flag, const std::string& value) {
        ServerOptions options = test_options();
        (flag == std::string("host") ? options.host : options.api_key_file) = value;
        Log log(Log::Format::text, stderr);
        const auto server = Server::start(options, log);
        return server ? "started" : server.error().message;
    };
    // An address for examples (RFC 5737): no machine's own.
    EXPECT_EQ(fault("host", "192.0.2.1"), "host: 192.0.2.1: Cannot assign requested address");
    EXPECT_EQ(fault("api_key_file", "/nonexistent"),
              "api_key_file: /nonexistent: No such file or directory");
}

}  // namespace
}  // namespace espalier::server::test
