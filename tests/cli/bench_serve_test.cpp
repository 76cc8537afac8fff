// SPDX-License-Identifier: Apache-2.0
// bench serve against a stand-in for a server, and its report for outcomes that are known.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cli/serve_report.hpp"

namespace espalier::cli {
namespace {

// Answers every connection with what `answer` makes of the request, a few bytes at a time.
class FakeServer {
  public:
    explicit FakeServer(std::function<std::string(const std::string&)> answer)
        : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof address;
        auto* plain = reinterpret_cast<sockaddr*>(&address);
        if (::bind(listener_, plain, size) != 0 || ::listen(listener_, 64) != 0 ||
            ::getsockname(listener_, plain, &size) != 0)
            throw std::runtime_error("no socket");
        url = {.host = "127.0.0.1", .port = std::to_string(ntohs(address.sin_port)), .path = ""};
        thread_ = std::thread([this] { accept_all(); });
    }
    ~FakeServer() {
        ::shutdown(listener_, SHUT_RDWR);
        thread_.join();
        for (std::thread& one : connections_) one.join();
        ::close(listener_);
    }
    Url url;
    std::atomic<int> under_way = 0, most = 0;

  private:
    void accept_all() {
        while (true) {
            const int socket = ::accept(listener_, nullptr, nullptr);
            if (socket < 0) return;
            connections_.emplace_back([this, socket] { serve(socket); });
        }
    }
    void serve(int socket) {
        std::string request;
        char bytes[4096];
        const auto whole = [&] {
            const std::size_t end = request.find("\r\n\r\n");
            const std::size_t length = request.find("Content-Length: ");
            if (end == std::string::npos) return false;
            return length == std::string::npos ||
                   request.size() >= end + 4 + std::stoul(request.substr(length + 16));
        };
        while (!whole()) {
            const ssize_t count = ::recv(socket, bytes, sizeof bytes, 0);
            if (count <= 0) break;
            request.append(bytes, static_cast<std::size_t>(count));
        }
        most = std::max(most.load(), ++under_way);
        const std::string answer = answer_(request);
        for (std::size_t at = 0; at < answer.size(); at += 7)
            ::send(socket, answer.data() + at, std::min<std::size_t>(7, answer.size() - at),
                   MSG_NOSIGNAL);
        --under_way;
        ::close(socket);
    }

    std::function<std::string(const std::string&)> answer_;
    int listener_;
    std::thread thread_;
    std::vector<std::thread> connections_;
};

std::string chunked(const std::vector<std::string>& pieces) {
    std::string out = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (const std::string& piece : pieces)
        out += fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
    return out + "0\r\n\r\n";
}

std::string stream(int pieces) {
    std::vector<std::string> events = {": ping\n\n"};
    for (int i = 0; i < pieces; ++i)
        events.push_back(R"(data: {"choices":[{"text":"ab"}],"usage":null})"
                         "\n\n");
    events.push_back(R"(data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":)" +
                     std::to_string(2 * pieces) + "}}\n\ndata: [DONE]\n\n");
    return chunked(events);
}

std::string whole(int status, const std::string& body) {
    return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}

TEST(BenchServe, SendsItsLoadAndCountsWhatComesBack) {
    std::atomic<int> number = 0;
    FakeServer server([&](const std::string& request) {
        if (request.starts_with("GET /v1/models")) return whole(200, R"({"data":[{"id":"m"}]})");
        const auto body = nlohmann::json::parse(request.substr(request.find("\r\n\r\n") + 4));
        EXPECT_EQ(body["model"], "m");
        EXPECT_EQ(body["prompt"].size(), 12u);
        EXPECT_EQ(body["max_tokens"], 8);
        return ++number % 4 == 0 ? whole(429, R"({"error":{"message":"queue is full"}})")
                                 : stream(4);
    });
    const ServeLoad load{.url = server.url,
                         .requests = 20,
                         .concurrency = 3,
                         .input_tokens = 12,
                         .output_tokens = 8};
    const auto run = run_serve_load(load, [](std::int64_t) {});
    ASSERT_TRUE(run) << run.error().message;
    int failed = 0;
    for (const ServeOutcome& outcome : run->outcomes) {
        if (!outcome.error.empty()) {
            EXPECT_EQ(outcome.error, "429: queue is full");
            ++failed;
            continue;
        }
        EXPECT_EQ(outcome.output_tokens, 8);
        EXPECT_EQ(outcome.input_tokens, 5);
        EXPECT_EQ(outcome.gaps.size(), 3u);
        EXPECT_LE(outcome.first_token, outcome.whole);
    }
    EXPECT_EQ(failed, 5);
    EXPECT_EQ(run->model, "m");
    EXPECT_LE(server.most, 3);
    EXPECT_LE(run->most_under_way, 3);
}

TEST(BenchServe, BrokenAnswersAreErrors) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "the server closed the connection without an answer"},
        {"SSH-2.0\r\n\r\n", "the answer is no HTTP/1.1"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "the answer broke off"},
        {"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nab",
         "the answer's content-length is no number"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "a chunk has no size"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
         "a chunk is longer than it says"},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "the answer broke off"},
        {chunked({"data: [DONE]\n\n"}), "the answer has no text"},
        {chunked({"data: {\n\n"}), "a chunk: "},
        {chunked({"data: {\"error\":{\"message\":\"x\"}}\n\n"}), "{\"message\":\"x\"}"},
    };
    for (const auto& [answer, message] : cases) {
        FakeServer server([text = answer](const std::string&) { return text; });
        const auto run =
            run_serve_load({.url = server.url, .model = "m", .requests = 1}, [](std::int64_t) {});
        ASSERT_TRUE(run);
        EXPECT_TRUE(run->outcomes[0].error.starts_with(message)) << run->outcomes[0].error;
    }
}

TEST(BenchServe, Addresses) {
    const auto url = parse_url("http://host:81/prefix/");
    ASSERT_TRUE(url);
    EXPECT_EQ(url->host + " " + url->port + " " + url->path, "host 81 /prefix");
    EXPECT_EQ(parse_url("http://host")->port, "80");
    for (const char* wrong : {"", "host:80", "https://host", "http://", "http://:80", "http://h:x"})
        EXPECT_FALSE(parse_url(wrong)) << wrong;
}

TEST(BenchServe, EventsAreCutWhereverTheBytesBreak) {
    const std::string bytes = ": ping\n\ndata: a\n\ndata: {\"b\": 1}\n\n";
    for (std::size_t width = 1; width <= bytes.size(); ++width) {
        EventCutter cutter;
        std::vector<std::string> events;
        for (std::size_t at = 0; at < bytes.size(); at += width)
            for (std::string& event : cutter.push(std::string_view(bytes).substr(at, width)))
                events.push_back(std::move(event));
        EXPECT_EQ(events, (std::vector<std::string>{"a", "{\"b\": 1}"}));
    }
}

TEST(BenchServe, ArrivalsKeepTheRate) {
    for (const double burstiness : {0.3, 1.0, 5.0}) {
        const auto times =
            arrival_times({.requests = 20000, .rate = 50, .burstiness = burstiness, .seed = 3});
        EXPECT_TRUE(std::ranges::is_sorted(times));
        EXPECT_NEAR(times.back() / 20000, 1.0 / 50, 0.002) << burstiness;
    }
    EXPECT_EQ(arrival_times({.requests = 3}), std::vector<double>(3, 0.0));
}

TEST(BenchServe, PromptsFollowFromTheSeed) {
    ServeLoad load{.requests = 4, .input_tokens = 6, .text = "Ünïcode words of a small text, cut."};
    EXPECT_EQ(request_bodies(load, "m"), request_bodies(load, "m"));
    for (const std::string& body : request_bodies(load, "m"))
        EXPECT_TRUE(nlohmann::json::parse(body)["prompt"].is_string()) << body;
    load.text.clear();
    const auto ids = nlohmann::json::parse(request_bodies(load, "m")[0])["prompt"];
    EXPECT_EQ(ids.size(), 6u);
    for (const auto& id : ids) EXPECT_TRUE(id >= 100 && id < 1000);
}

TEST(BenchServe, MetricsOfAnyPrefix) {
    const std::string text = "# HELP a:x b\na:x{l=\"1\"} 2\na:x{l=\"2\"} 3.5\nvllm:y 7\nz 1\n";
    EXPECT_EQ(metric_of(text, "x"), 5.5);
    EXPECT_EQ(metric_of(text, "y"), 7);
    EXPECT_EQ(metric_of(text, "z"), 1);
    EXPECT_FALSE(metric_of(text, "w"));
}

TEST(BenchServe, Percentiles) {
    EXPECT_EQ(percentile({}, 50), 0);
    EXPECT_EQ(percentile({3}, 99), 3);
    EXPECT_EQ(percentile({4, 1, 3, 2}, 50), 2.5);
    EXPECT_DOUBLE_EQ(percentile({0, 10}, 99), 9.9);
}

TEST(BenchServe, GoodputIsReadOrRefused) {
    EXPECT_EQ(parse_goodput({"ttft:500", "e2el:2000.5"})->e2el, 2000.5);
    for (const char* wrong : {"ttft", "ttft:", "ttft:x", "ttft:-1", "other:1", "ttft:1x"})
        EXPECT_EQ(parse_goodput({wrong}).error().field, "goodput") << wrong;
}

ServeReport known_report() {
    ServeReport report{.load = {.requests = 3, .concurrency = 2}, .date = "20250101-000000"};
    report.run = {.seconds = 2, .model = "m", .outcomes = {}, .most_under_way = 2};
    for (const double first : {0.1, 0.3})
        report.run.outcomes.push_back({.began = 0,
                                       .first_token = first,
                                       .whole = first + 0.4,
                                       .gaps = {0.2, 0.2},
                                       .input_tokens = 10,
                                       .output_tokens = 5});
    report.run.outcomes.push_back({.error = "429: full"});
    report.goodput.ttft = 200;
    report.speculation = {.drafts = 4, .draft_tokens = 12, .accepted_tokens = 6};
    return report;
}

TEST(BenchServe, TheBlockThatPeersPrint) {
    EXPECT_EQ(known_report().text(),
              "============ Serving Benchmark Result ============\n"
              "Successful requests:                     2         \n"
              "Failed requests:                         1         \n"
              "Maximum request concurrency:             2         \n"
              "Benchmark duration (s):                  2.00      \n"
              "Total input tokens:                      20        \n"
              "Total generated tokens:                  10        \n"
              "Request throughput (req/s):              1.00      \n"
              "Request goodput (req/s):                 0.50      \n"
              "Output token throughput (tok/s):         5.00      \n"
              "Peak output token throughput (tok/s):    10.00     \n"
              "Peak concurrent requests:                2         \n"
              "Total token throughput (tok/s):          15.00     \n"
              "---------------Time to First Token----------------\n"
              "Mean TTFT (ms):                          200.00    \n"
              "Median TTFT (ms):                        200.00    \n"
              "P99 TTFT (ms):                           298.00    \n"
              "-----Time per Output Token (excl. 1st token)------\n"
              "Mean TPOT (ms):                          100.00    \n"
              "Median TPOT (ms):                        100.00    \n"
              "P99 TPOT (ms):                           100.00    \n"
              "---------------Inter-token Latency----------------\n"
              "Mean ITL (ms):                           200.00    \n"
              "Median ITL (ms):                         200.00    \n"
              "P99 ITL (ms):                            200.00    \n"
              "----------------End-to-end Latency----------------\n"
              "Mean E2EL (ms):                          600.00    \n"
              "Median E2EL (ms):                        600.00    \n"
              "P99 E2EL (ms):                           698.00    \n"
              "---------------Speculative Decoding---------------\n"
              "Acceptance rate (%):                     50.00     \n"
              "Acceptance length:                       2.50      \n"
              "Drafts:                                  4         \n"
              "Draft tokens:                            12        \n"
              "Accepted tokens:                         6         \n"
              "==================================================\n");
}

TEST(BenchServe, TheKeysThatPeersWrite) {
    const auto json = known_report().json(true);
    for (const char* key : {"date",
                            "backend",
                            "model_id",
                            "num_prompts",
                            "request_rate",
                            "max_concurrency",
                            "duration",
                            "completed",
                            "failed",
                            "total_input_tokens",
                            "total_output_tokens",
                            "request_throughput",
                            "output_throughput",
                            "total_token_throughput",
                            "mean_ttft_ms",
                            "median_ttft_ms",
                            "std_ttft_ms",
                            "p99_ttft_ms",
                            "mean_tpot_ms",
                            "p99_itl_ms",
                            "median_e2el_ms",
                            "input_lens",
                            "output_lens",
                            "ttfts",
                            "itls",
                            "errors"})
        EXPECT_TRUE(json.contains(key)) << key;
    EXPECT_EQ(json["completed"], 2);
    EXPECT_EQ(json["request_rate"], "inf");
    EXPECT_EQ(json["errors"][2], "429: full");
    EXPECT_NEAR(json["std_ttft_ms"].get<double>(), 100, 1e-9);
    EXPECT_FALSE(known_report().json(false).contains("itls"));
}

}  // namespace
}  // namespace espalier::cli
