// SPDX-License-Identifier: Apache-2.0
// Clients that do everything wrong, at random, while others do everything right: those are answered
// correctly throughout, and in the end no request holds anything. Some hundred faults by default,
// minutes of them in the long run; ESPALIER_FAULT_SECONDS says how long.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/random.hpp"
#include "server/running_server.hpp"

namespace espalier::server::test {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

#ifdef ESPALIER_LONG_RUN
constexpr int kSeconds = 180;
constexpr int kMegabytes = 100;
#else
constexpr int kSeconds = 0;     // a few rounds
constexpr int kMegabytes = 24;  // more than the 16 that a body may have
#endif

constexpr const char* kHead =
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

// Values of every type, and of numbers the ones that are too small, too large and no integer.
const std::vector<Json>& wrong_values() {
    static const std::vector<Json> values = {nullptr,
                                             true,
                                             false,
                                             0,
                                             -1,
                                             3,
                                             0.5,
                                             -0.5,
                                             1e308,
                                             -1e308,
                                             -9223372036854775807ll,
                                             18446744073709551615ull,
                                             4294967296ll,
                                             "",
                                             "x",
                                             std::string(300, 'x'),
                                             "\xc3\xa9",
                                             Json::array(),
                                             Json::object(),
                                             Json{1, "x", nullptr},
                                             Json{-1},
                                             Json{"a", "b"},
                                             Json{{"1", -1}, {"include_usage", true}},
                                             Json{{"role", 3}},
                                             Json::parse("[[[[1]]]]"),
                                             Json::parse("[{\"role\": \"user\", \"content\": 7}]")};
    return values;
}

constexpr const char* kFields[] = {"model",
                                   "messages",
                                   "prompt",
                                   "max_tokens",
                                   "temperature",
                                   "top_p",
                                   "top_k",
                                   "min_p",
                                   "seed",
                                   "n",
                                   "stop",
                                   "logprobs",
                                   "echo",
                                   "stream",
                                   "stream_options",
                                   "logit_bias",
                                   "presence_penalty",
                                   "frequency_penalty",
                                   "repetition_penalty",
                                   "min_tokens",
                                   "ignore_eos",
                                   "stop_token_ids",
                                   "speculate",
                                   "draft_depth",
                                   "draft_width",
                                   "draft_nodes",
                                   "speculation_report",
                                   "priority",
                                   "cache_salt",
                                   "best_of",
                                   "suffix",
                                   "max_completion_tokens",
                                   "tools",
                                   "response_format",
                                   "user",
                                   "skip_special_tokens",
                                   "include_stop_str_in_output",
                                   "top_logprobs",
                                   "chat_template_kwargs",
                                   "add_generation_prompt",
                                   "structured_outputs",
                                   "tool_choice",
                                   "parallel_tool_calls",
                                   "regex",
                                   "ebnf",
                                   "json_schema",
                                   "thinking_token_budget",
                                   "reasoning_effort",
                                   "metadata"};

Json wild_body(Random& random) {
    Json body = RunningServer::completion("abc", random.between(1, 20));
    for (int i = random.between(1, 4); i > 0; --i) {
        const std::vector<Json>& values = wrong_values();
        const auto value = random.bits() % values.size();
        body[random.one_of(kFields)] = values[value];
    }
    return body;
}

std::string garbage(Random& random) {
    std::string bytes(static_cast<std::size_t>(random.between(1, 2000)), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random.between(0, 255));
    if (random.chance(0.5)) bytes = "GET / HTTP/1.1\r\n" + bytes;
    return bytes + "\r\n\r\n";
}

std::string long_request(bool streams, int tokens = 4000) {
    Json body = RunningServer::completion("abc", tokens);
    body["stream"] = streams;
    if (streams) body["logprobs"] = 5;
    return request_text("POST", "/v1/completions", body.dump());
}

// Clients that hold their connections and do nothing with them, until others take their places.
class Holders {
  public:
    void hold(Client client) {
        const std::lock_guard lock(mutex_);
        if (held_.size() > 20) held_.erase(held_.begin(), held_.begin() + 10);
        held_.push_back(std::make_unique<Client>(std::move(client)));
    }

  private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<Client>> held_;
};

using Fault = void (*)(Client client, Random& random, Holders& holders);

// Any fields with any values: an answer, whatever it says.
void send_wild_fields(Client client, Random& random, Holders&) {
    const std::string request = request_text("POST", "/v1/completions", wild_body(random).dump());
    client.send(request);
    const int status = client.receive().status;
    EXPECT_TRUE(status == 200 || status == 400 || status == 404) << status << request;
}

void send_half(Client client, Random& random, Holders& holders) {
    const std::string request = request_text("POST", "/v1/completions", wild_body(random).dump());
    const int size = static_cast<int>(request.size());
    client.send(request.substr(0, static_cast<std::size_t>(random.between(1, size - 1))));
    if (random.chance(0.3)) holders.hold(std::move(client));
}

void send_garbage(Client client, Random& random, Holders&) {
    client.send(garbage(random));
    client.end_sending();  // some of it may be the beginning of a request
    client.receive();
}

// Bytes behind a request are looked at only when that is answered.
void send_garbage_behind(Client client, Random& random, Holders&) {
    client.send(request_text("GET", "/health") + garbage(random));
    EXPECT_EQ(client.receive().status, 200);
    client.end_sending();
    client.receive();
}

void send_deep_json(Client client, Random& random, Holders&) {
    const auto depth = static_cast<std::size_t>(random.between(33, 10'000));
    const std::string open = random.chance(0.5) ? "[" : "{\"prompt\":";
    std::string body;
    for (std::size_t i = 0; i < depth; ++i) body += open;
    client.send(request_text("POST", "/v1/completions", body + std::string(depth, ']')));
    EXPECT_EQ(client.receive().status, 400);
}

void send_invalid_utf8(Client client, Random& random, Holders&) {
    constexpr const char* kInvalid[] = {"\xff\xfe", "\xc3", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                        "\xc0\xaf"};
    const std::string text = random.one_of(kInvalid);
    client.send(request_text("POST", "/v1/completions", "{\"prompt\": \"" + text + "\"}"));
    EXPECT_EQ(client.receive().status, 400);
}

void vanish_in_the_middle(Client client, Random& random, Holders&) {
    const bool streams = random.chance(0.5);
    client.send(long_request(streams));
    if (streams) client.receive_some();
    random.chance(0.5) ? client.reset() : client.close();
}

void vanish_at_once(Client client, Random& random, Holders&) {
    client.send(long_request(random.chance(0.5)));
    client.reset();
}

// Refused by its length, while the client goes on sending.
void send_too_large_a_body(Client client, Random&, Holders&) {
    client.send(std::string(kHead) + "Content-Length: 104857600\r\n\r\n");
    const std::string part(1 << 20, 'x');
    for (int i = 0; i < kMegabytes && client.send(part); ++i) {
    }
}

void send_chunks_without_end(Client client, Random&, Holders&) {
    client.send(std::string(kHead) + "Transfer-Encoding: chunked\r\n\r\n");
    const std::string part = "100000\r\n" + std::string(1 << 20, ' ') + "\r\n";
    for (int i = 0; i < kMegabytes && client.send(part); ++i) {
    }
}

void write_byte_by_byte(Client client, Random& random, Holders&) {
    const bool slow = random.chance(0.2);
    const std::string text =
        request_text("POST", "/v1/completions", RunningServer::completion("abc", 1).dump());
    for (std::size_t i = 0; i < text.size(); ++i) {
        client.send(text.substr(i, 1));
        if (slow && i % 16 == 0) std::this_thread::sleep_for(5ms);
    }
    EXPECT_EQ(client.receive().status, 200);
}

void read_slowly(Client client, Random& random, Holders&) {
    client.send(long_request(true));
    for (int i = random.between(1, 20); i > 0; --i) {
        client.receive_some();
        std::this_thread::sleep_for(5ms);
    }
}

void read_nothing(Client client, Random&, Holders& holders) {
    client.send(long_request(true, 1000));  // some 600 kB, more than sockets hold
    holders.hold(std::move(client));
}

constexpr Fault kFaults[] = {send_wild_fields,      send_half,
                             send_garbage,          send_garbage_behind,
                             send_deep_json,        send_invalid_utf8,
                             vanish_in_the_middle,  vanish_at_once,
                             send_too_large_a_body, send_chunks_without_end,
                             write_byte_by_byte,    read_slowly,
                             read_nothing};

std::chrono::seconds fault_time() {
    const char* given = std::getenv("ESPALIER_FAULT_SECONDS");
    return std::chrono::seconds(given == nullptr ? kSeconds : std::atoi(given));
}

// The text of the only choice, streamed or not.
std::string text_of(const Answer& answer) {
    if (answer.headers.at("content-type") == "application/json")
        return answer.json()["choices"][0]["text"];
    std::string text;
    for (const std::string& event : answer.events())
        if (event != "[DONE]") text += Json::parse(event)["choices"][0]["text"].get<std::string>();
    return text;
}

TEST(Faults, CorrectClientsNeverNotice) {
    const std::chrono::seconds time = fault_time();
    RunningServer::Setup setup;
    // For what is never completed, and for what is never read.
    setup.server.idle_seconds = setup.server.read_seconds = 5;
    setup.server.write_seconds = 1;
    RunningServer server(setup);
    Json asked = RunningServer::completion("the correct client", 16);
    const std::string expected = text_of(server.client().post("/v1/completions", asked));
    const auto start = std::chrono::steady_clock::now();
    std::atomic<bool> done = false;
    std::atomic<std::int64_t> faults = 0, answers = 0;
    Holders holders;
    std::vector<std::thread> clients;
    for (int thread = 0; thread < 3; ++thread)
        clients.emplace_back([&, thread] {
            Random random(static_cast<std::uint64_t>(thread) + 1);
            for (std::size_t i = 0;
                 i < 2 * std::size(kFaults) || std::chrono::steady_clock::now() - start < time;
                 ++i, ++faults)
                kFaults[i % std::size(kFaults)](server.client(), random, holders);
        });
    std::thread correct([&] {
        for (; !done; ++answers) {
            asked["stream"] = answers % 2 == 1;
            asked["speculation_report"] = answers % 3 == 1;
            const Answer answer = server.client().post("/v1/completions", asked);
            ASSERT_EQ(answer.status, 200) << answer.body;
            EXPECT_EQ(text_of(answer), expected);
        }
    });
    for (std::thread& client : clients) client.join();
    done = true;
    correct.join();
    std::printf("%lld faults, %lld correct answers\n", static_cast<long long>(faults.load()),
                static_cast<long long>(answers.load()));
    // Clients that read nothing still hold their connections; the server lets go of them.
    EXPECT_TRUE(server.becomes_idle());
    EXPECT_EQ(server.client().get("/health").status, 200);
}

// Each field alone, with each value: refused or answered, never an error of the server, and the
// connection goes on.
TEST(Faults, EveryFieldTakesEveryValue) {
    RunningServer::Setup setup;
    setup.sizes.max_model_len = 256;  // what a chat without max_tokens gets
    RunningServer server(setup);
    Client client = server.client();
    for (const bool chat : {false, true})
        for (const char* field : kFields)
            for (const Json& value : wrong_values()) {
                Json body = RunningServer::completion("abc", 1);
                if (chat) {
                    body.erase("prompt");
                    body["messages"] = {{{"role", "user"}, {"content", "abc"}}};
                }
                body[field] = value;
                const Answer answer =
                    client.post(chat ? "/v1/chat/completions" : "/v1/completions", body);
                ASSERT_TRUE(answer.status == 200 || answer.status == 400 || answer.status == 404)
                    << answer.status << " " << answer.body << body;
                if (answer.status == 400) {
                    EXPECT_FALSE(answer.message().empty());
                }
            }
    EXPECT_TRUE(server.becomes_idle());
}

}  // namespace
}  // namespace espalier::server::test
