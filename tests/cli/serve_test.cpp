// SPDX-License-Identifier: Apache-2.0
// espalier serve as a process: its start, and its end by signals.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "server/client.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::cli {
namespace {

using Json = nlohmann::json;
using server::test::Client;
using server::test::request_text;
using namespace std::chrono_literals;

// A tiny model of random weights, written once.
const std::string& model() {
    static const TemporaryDirectory directory;
    static const std::string path = [] {
        const std::string made = (directory.path() / "tiny").string();
        const std::string command =
            std::string(ESPALIER_BINARY) + " make-model --preset tiny-v3 --out " + made;
        EXPECT_EQ(std::system((command + " > /dev/null").c_str()), 0);
        return made;
    }();
    return path;
}

std::string streamed(int tokens, int choices = 1) {
    return Json{{"prompt", "abc"},    {"max_tokens", tokens}, {"temperature", 0.8}, {"seed", 7},
                {"ignore_eos", true}, {"stream", true},       {"n", choices}}
        .dump();
}

// The binary, its log in a file.
class Process {
  public:
    // file_bytes: no file of the process grows beyond it, as on a disk that is full; 0: any.
    explicit Process(const std::vector<std::string>& arguments, rlim_t file_bytes = 0)
        : log_(directory_.path() / "log") {
        std::vector<std::string> all = {ESPALIER_BINARY, "serve", model(),           "--port", "0",
                                        "--threads",     "1",     "--max-model-len", "8192"};
        all.insert(all.end(), arguments.begin(), arguments.end());
        id_ = fork();
        if (id_ == 0) {
            const int file = ::open(log_.c_str(), O_WRONLY | O_CREAT, 0600);
            dup2(file, STDERR_FILENO);
            const rlimit limit{file_bytes, file_bytes};
            ::signal(SIGXFSZ, SIG_IGN);
            if (file_bytes > 0) setrlimit(RLIMIT_FSIZE, &limit);
            std::vector<char*> pointers;
            for (std::string& argument : all) pointers.push_back(argument.data());
            pointers.push_back(nullptr);
            execv(ESPALIER_BINARY, pointers.data());
            _exit(127);
        }
    }
    ~Process() {
        if (id_ <= 0) return;
        ::kill(id_, SIGKILL);
        ::waitpid(id_, nullptr, 0);
    }
    std::string log() const {
        std::stringstream text;
        text << std::ifstream(log_).rdbuf();
        return text.str();
    }
    bool says(const std::string& text) const {
        for (int i = 0; i < 60'000; ++i) {
            if (log().find(text) != std::string::npos) return true;
            std::this_thread::sleep_for(1ms);
        }
        return false;
    }
    std::uint16_t port() const {
        EXPECT_TRUE(says("is ready")) << log();
        const std::string text = log();
        const std::string mark = "listening on http://127.0.0.1:";
        return static_cast<std::uint16_t>(std::stoi(text.substr(text.find(mark) + mark.size())));
    }
    void signal(int number) const { ::kill(id_, number); }
    // The exit status; minus the signal that ended it.
    int wait() {
        int status = 0;
        ::waitpid(std::exchange(id_, -1), &status, 0);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

  private:
    TemporaryDirectory directory_;
    std::filesystem::path log_;
    pid_t id_ = -1;
};

TEST(Signals, TheFirstDrainsAndExitsWithZero) {
    Process process({"--drain-seconds", "100", "--log-format", "json"});
    const std::uint16_t port = process.port();
    EXPECT_EQ(Json::parse(process.log().substr(0, process.log().find('\n')))["level"], "info");
    Client client(port);
    client.send(request_text("POST", "/v1/completions", streamed(400)));
    ASSERT_TRUE(client.receive_until("data: "));
    process.signal(SIGTERM);
    ASSERT_TRUE(process.says("shutting down"));
    EXPECT_TRUE(client.receive_until("data: [DONE]\n\n"));
    EXPECT_EQ(process.wait(), 0);
    EXPECT_NE(process.log().find("all requests finished"), std::string::npos);
}

TEST(Signals, WhatOutlastsTheDrainGetsAnErrorAndTheExitIsZero) {
    Process process({"--drain-seconds", "0"});
    Client client(process.port());
    client.send(request_text("POST", "/v1/completions", streamed(8000, 4)));
    ASSERT_TRUE(client.receive_until("data: "));
    process.signal(SIGINT);
    EXPECT_TRUE(client.receive_until("the server is shutting down"));
    EXPECT_EQ(process.wait(), 0);
}

TEST(Signals, TheSecondEndsItAtOnce) {
    Process process({"--drain-seconds", "10000"});
    Client client(process.port());
    client.send(request_text("POST", "/v1/completions", streamed(8000, 8)));
    ASSERT_TRUE(client.receive_until("data: "));
    process.signal(SIGTERM);
    ASSERT_TRUE(process.says("shutting down"));
    process.signal(SIGTERM);
    EXPECT_EQ(process.wait(), -SIGTERM);
}

// A disk that fills up under a trace is told at once; requests go on.
TEST(Trace, AFullDiskIsALineInTheLogAndACounter) {
    const TemporaryDirectory directory;
    Process process({"--trace", (directory.path() / "trace.jsonl").string()}, 48 << 10);
    const std::uint16_t port = process.port();
    while (process.log().find("the trace ends here: ") == std::string::npos) {
        Client client(port);
        EXPECT_EQ(
            client.post("/v1/completions", Json{{"prompt", "abc"}, {"max_tokens", 200}}).status,
            200);
    }
    EXPECT_NE(process.log().find("trace.jsonl: cannot be written: File too large"),
              std::string::npos)
        << process.log();
    Client client(port);
    const std::string metrics = client.get("/metrics").body;
    const std::size_t at = metrics.find("trace_events_lost_total{");
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(std::stod(metrics.substr(metrics.find("} ", at) + 2)), 0);
    process.signal(SIGTERM);
    EXPECT_EQ(process.wait(), 1);  // the trace is not what was asked for
    const std::string log = process.log();
    EXPECT_EQ(log.find("the trace ends here"), log.rfind("the trace ends here"));
}

// SIGHUP reads the file of keys again; without one it ends the process, as a terminal means it to.
TEST(Signals, HangUpReadsTheKeysAgain) {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "keys").string();
    std::ofstream(file) << "alice sk-alice-1\n";
    Process process({"--api-key-file", file, "--drain-seconds", "100"});
    const std::uint16_t port = process.port();
    const auto status = [&](const std::string& key) {
        Client client(port);
        return client.get("/v1/models", "Authorization: Bearer " + key + "\r\n").status;
    };
    EXPECT_EQ(status("sk-alice-1"), 200);
    std::ofstream(file) << "alice sk-alice-2\nbob sk-bob\n";
    process.signal(SIGHUP);
    ASSERT_TRUE(process.says("2 API keys")) << process.log();
    EXPECT_EQ(status("sk-alice-1"), 401);
    EXPECT_EQ(status("sk-alice-2"), 200);
    std::ofstream(file) << std::string("\0\xff broken", 9);
    process.signal(SIGHUP);
    ASSERT_TRUE(process.says("not read again: ")) << process.log();
    EXPECT_EQ(status("sk-alice-2"), 200);
    // Also while it drains.
    Client client(port);
    client.send(
        request_text("POST", "/v1/completions", streamed(600), "Authorization: Bearer sk-bob\r\n"));
    ASSERT_TRUE(client.receive_until("data: "));
    process.signal(SIGTERM);
    ASSERT_TRUE(process.says("shutting down"));
    process.signal(SIGHUP);
    EXPECT_TRUE(client.receive_until("data: [DONE]\n\n"));
    EXPECT_EQ(process.wait(), 0);
    EXPECT_EQ(process.log().find("sk-"), std::string::npos);

    Process plain({});
    plain.port();
    plain.signal(SIGHUP);
    EXPECT_EQ(plain.wait(), -SIGHUP);
}

TEST(Trace, NamesRequestsAsTheirSendersDo) {
    const TemporaryDirectory directory;
    const std::string file = (directory.path() / "trace.jsonl").string();
    const std::string parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    Process process({"--trace", file, "--log-format", "json", "--log-level", "debug"});
    Client client(process.port());
    const std::string body = Json{{"prompt", "abc"}, {"max_tokens", 3}}.dump();
    EXPECT_EQ(
        client.post("/v1/completions", body, "X-Request-Id: r-1\r\ntraceparent: " + parent + "\r\n")
            .status,
        200);
    EXPECT_EQ(client.get("/health").status, 200);
    process.signal(SIGTERM);
    EXPECT_EQ(process.wait(), 0);
    std::stringstream trace;
    trace << std::ifstream(file).rdbuf();
    EXPECT_NE(trace.str().find(R"("request_id":"r-1","traceparent":")" + parent), std::string::npos)
        << trace.str().substr(0, 3000);
    bool probe = false, request = false;
    std::istringstream lines(process.log());
    for (std::string line; std::getline(lines, line);) {
        const Json json = Json::parse(line);
        if (json["message"] != "request") continue;
        probe = probe || (json["path"] == "/health" && json["level"] == "debug");
        if (json["path"] != "/v1/completions") continue;
        request = true;
        EXPECT_EQ(json["status"], 200);
        EXPECT_EQ(json["request_id"], "r-1");
        EXPECT_EQ(json["trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
        EXPECT_EQ(json["output_tokens"], 3);
        EXPECT_GT(json["seconds"], 0);
    }
    EXPECT_TRUE(probe && request) << process.log();
}

TEST(Start, AToolFormatThatTheTokenizerDoesNotKnowIsToldInTheLog) {
    Process process({"--tool-format", "kimi_k2"});
    process.port();
    EXPECT_TRUE(process.says("--tool-format kimi_k2: the tokenizer has no token"));
}

}  // namespace
}  // namespace espalier::cli
