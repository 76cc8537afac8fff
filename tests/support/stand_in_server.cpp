// SPDX-License-Identifier: Apache-2.0
#include "support/stand_in_server.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

namespace espalier::test {
namespace {

// A signal that a test sends may come to any thread.
template <typename Call>
ssize_t again(Call call) {
    while (true) {
        const ssize_t result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

}  // namespace

StandInServer::StandInServer(std::function<ScriptedAnswer(const std::string&)> answer)
    : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* plain = reinterpret_cast<sockaddr*>(&address);
    if (::bind(listener_, plain, size) != 0 || ::listen(listener_, 128) != 0 ||
        ::getsockname(listener_, plain, &size) != 0)
        throw std::runtime_error("no socket");
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { accept_all(); });
}

StandInServer::~StandInServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    for (std::thread& one : connections_) one.join();
    ::close(listener_);
}

void StandInServer::accept_all() {
    while (true) {
        const auto socket =
            static_cast<int>(again([&] { return ::accept(listener_, nullptr, nullptr); }));
        if (socket < 0) return;
        connections_.emplace_back([this, socket] { serve(socket); });
    }
}

std::string StandInServer::receive_request(int socket) {
    std::string request;
    const auto is_whole = [&] {
        const std::size_t end = request.find("\r\n\r\n");
        const std::size_t length = request.find("Content-Length: ");
        if (end == std::string::npos) return false;
        return length == std::string::npos ||
               request.size() >= end + 4 + std::stoul(request.substr(length + 16));
    };
    char bytes[4096];
    while (!is_whole()) {
        const ssize_t count = again([&] { return ::recv(socket, bytes, sizeof bytes, 0); });
        if (count <= 0) break;
        request.append(bytes, static_cast<std::size_t>(count));
    }
    return request;
}

void StandInServer::serve(int socket) {
    const std::string request = receive_request(socket);
    {
        const std::lock_guard lock(mutex_);
        most_ = std::max(most_.load(), ++under_way_);
    }
    const ScriptedAnswer answer = answer_(request);
    {
        // Before the client can hear of the end, and send its next.
        const std::lock_guard lock(mutex_);
        --under_way_;
    }
    bool taken = true;
    do {
        for (std::size_t at = 0; taken && at < answer.bytes.size(); at += answer.at_a_time) {
            const std::size_t count = std::min(answer.at_a_time, answer.bytes.size() - at);
            taken = again([&] {
                        return ::send(socket, answer.bytes.data() + at, count, MSG_NOSIGNAL);
                    }) == static_cast<ssize_t>(count);
        }
    } while (taken && answer.endless);
    char byte = 0;
    while (answer.hold && again([&] { return ::recv(socket, &byte, 1, 0); }) > 0) {
    }
    ::close(socket);
}

std::string http_answer(int status, const std::string& body) {
    return fmt::format("HTTP/1.1 {} X\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}

std::string http_chunked(const std::vector<std::string>& chunks) {
    std::string out =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (const std::string& chunk : chunks)
        out += fmt::format("{:x}\r\n{}\r\n", chunk.size(), chunk);
    return out + "0\r\n\r\n";
}

std::string streamed_completion(int pieces) {
    std::vector<std::string> events = {": ping\n\n"};
    for (int i = 0; i < pieces; ++i)
        events.push_back("data: {\"choices\":[{\"text\":\"ab\"}],\"usage\":null}\n\n");
    events.push_back("data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n");
    events.push_back(
        fmt::format("data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":5,"
                    "\"completion_tokens\":{}}}}}\n\ndata: [DONE]\n\n",
                    2 * pieces));
    return http_chunked(events);
}

}  // namespace espalier::test
