// SPDX-License-Identifier: Apache-2.0
// A stand-in for a server, on raw sockets: what it answers is written down, and need be no HTTP. A
// thread for each connection; no sleeps, so that no test depends on the machine's speed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace espalier::test {

struct ScriptedAnswer {
    std::string bytes = {};
    std::size_t at_a_time = 7;  // bytes of a send: events break anywhere
    bool hold = false;          // then the connection stays open, silent, until the client goes
    bool endless = false;       // the bytes come again and again, until the client goes
};

class StandInServer {
  public:
    // answer: of a whole request, head and body; called on connections' threads.
    explicit StandInServer(std::function<ScriptedAnswer(const std::string& request)> answer);
    ~StandInServer();
    StandInServer(const StandInServer&) = delete;

    std::uint16_t port() const { return port_; }
    std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
    int most_under_way() const { return most_; }

  private:
    void accept_all();
    void serve(int socket);
    std::string receive_request(int socket);

    std::function<ScriptedAnswer(const std::string&)> answer_;
    int listener_ = -1;
    std::uint16_t port_ = 0;
    std::mutex mutex_;
    int under_way_ = 0;
    std::atomic<int> most_ = 0;
    std::vector<std::thread> connections_;
    std::thread thread_;
};

// Answers in the form that OpenAI's API has.
std::string http_answer(int status, const std::string& body);
std::string http_chunked(const std::vector<std::string>& chunks);
// A completion of so many pieces "ab", two tokens each, with usage and [DONE].
std::string streamed_completion(int pieces);

}  // namespace espalier::test
