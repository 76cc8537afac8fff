// SPDX-License-Identifier: Apache-2.0
#include "server/client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <stdexcept>
#include <utility>

namespace espalier::server::test {

std::string Answer::param() const {
    const auto value = json()["error"]["param"];
    return value.is_string() ? value.get<std::string>() : "";
}

std::vector<std::string> Answer::events() const {
    std::vector<std::string> made;
    std::string_view rest = body;
    while (!rest.empty()) {
        const std::size_t end = rest.find("\n\n");
        if (end == std::string_view::npos) throw std::runtime_error("an event without an end");
        std::string_view event = rest.substr(0, end);
        rest.remove_prefix(end + 2);
        if (event.starts_with(":")) continue;
        if (event.starts_with("event: ")) event.remove_prefix(event.find('\n') + 1);
        if (!event.starts_with("data: ")) throw std::runtime_error("an event without data");
        made.emplace_back(event.substr(6));
    }
    return made;
}

Client::Client(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    // A small one, so that what a silent reader leaves behind fills it soon.
    const int receive_bytes = 16 << 10;
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    const int segment_bytes = 1024;  // the sender's buffer grows with it
    ::setsockopt(socket_, IPPROTO_TCP, TCP_MAXSEG, &segment_bytes, sizeof segment_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        ::close(socket_);
        throw std::runtime_error("cannot connect");
    }
    // Longer than anything here takes: a test that waits in vain should end.
    const timeval patience{.tv_sec = 120, .tv_usec = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

Client::Client(Client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), pending_(std::move(other.pending_)) {}

void Client::end_sending() { ::shutdown(socket_, SHUT_WR); }

void Client::close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void Client::reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
}

bool Client::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
}

std::string Client::receive_some() {
    if (!pending_.empty()) return std::exchange(pending_, {});
    std::array<char, 65536> bytes{};
    const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
    return count <= 0 ? std::string() : std::string(bytes.data(), static_cast<std::size_t>(count));
}

bool Client::receive_until(std::string_view text) {
    std::string seen;
    while (seen.find(text) == std::string::npos) {
        const std::string more = receive_some();
        if (more.empty()) return false;
        seen += more;
    }
    return true;
}

bool Client::at_end() { return pending_.empty() && receive_some().empty(); }

Answer Client::receive() {
    std::string& bytes = pending_;
    const auto more = [&] {
        std::string kept = std::exchange(bytes, {});
        const std::string next = receive_some();
        bytes = std::move(kept) + next;
        return !next.empty();
    };
    Answer answer;
    while (bytes.find("\r\n\r\n") == std::string::npos)
        if (!more()) return {};
    const std::string head = bytes.substr(0, bytes.find("\r\n\r\n"));
    bytes.erase(0, head.size() + 4);
    answer.status = std::stoi(head.substr(9, 3));
    for (std::size_t at = head.find("\r\n"); at != std::string::npos; at = head.find("\r\n", at)) {
        at += 2;
        const std::size_t colon = head.find(':', at);
        std::string name = head.substr(at, colon - at);
        std::ranges::transform(name, name.begin(),
                               [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        answer.headers[name] = head.substr(colon + 2, head.find("\r\n", at) - colon - 2);
    }
    if (answer.headers.contains("content-length")) {
        const std::size_t length = std::stoul(answer.headers["content-length"]);
        while (bytes.size() < length)
            if (!more()) return {};
        answer.body = bytes.substr(0, length);
        bytes.erase(0, length);
        return answer;
    }
    for (;;) {  // chunks
        while (bytes.find("\r\n") == std::string::npos)
            if (!more()) return {};
        const std::size_t line = bytes.find("\r\n");
        const std::size_t size = std::stoul(bytes.substr(0, line), nullptr, 16);
        while (bytes.size() < line + 2 + size + 2)
            if (!more()) return {};
        answer.body += bytes.substr(line + 2, size);
        bytes.erase(0, line + 2 + size + 2);
        if (size == 0) return answer;
    }
}

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& body, const std::string& headers) {
    std::string text = method + " " + path + " HTTP/1.1\r\n";
    if (headers.find("Host:") == std::string::npos) text += "Host: 127.0.0.1\r\n";
    if (method == "POST") {
        if (headers.find("Content-Type:") == std::string::npos)
            text += "Content-Type: application/json\r\n";
        text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    }
    return text + headers + "\r\n" + body;
}

Answer Client::get(const std::string& path, const std::string& headers) {
    send(request_text("GET", path, {}, headers));
    return receive();
}

Answer Client::post(const std::string& path, const std::string& body, const std::string& headers) {
    send(request_text("POST", path, body, headers));
    return receive();
}

}  // namespace espalier::server::test
