// SPDX-License-Identifier: Apache-2.0
#include "cli/http_client.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

namespace espalier::cli {
namespace {

constexpr std::size_t kMaxHeadBytes = 64 << 10;
constexpr std::size_t kMaxChunkLine = 1 << 10;

tl::unexpected<Error> system_error(const char* what) {
    return fail(ErrorKind::io, "{}: {}", what, std::strerror(errno));
}

Expected<int> connect_to(const Url& url, double timeout_seconds) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found))
        return fail(ErrorKind::io, "{}: {}", url.host, ::gai_strerror(code));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, ::freeaddrinfo);
    const timeval timeout{.tv_sec = static_cast<time_t>(std::ceil(timeout_seconds)), .tv_usec = 0};
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
        const int made = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, 0);
        if (made < 0) continue;
        const int yes = 1;
        ::setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        ::setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
        ::setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
        if (::connect(made, one->ai_addr, one->ai_addrlen) == 0) return made;
        ::close(made);
    }
    return fail(ErrorKind::io, "{}:{}: {}", url.host, url.port, std::strerror(errno));
}

Expected<void> send_all(int socket, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count <= 0) return system_error("send");
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return {};
}

std::string lower(std::string_view text) {
    std::string made(text);
    std::ranges::transform(made, made.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return made;
}

}  // namespace

Expected<Url> parse_url(const std::string& text) {
    constexpr std::string_view kScheme = "http://";
    if (!text.starts_with(kScheme))
        return fail(ErrorKind::invalid, "'{}' is no address of the form http://host:port", text);
    const std::string rest = text.substr(kScheme.size());
    const std::size_t slash = std::min(rest.find('/'), rest.size());
    const std::string place = rest.substr(0, slash);
    const std::size_t colon = place.rfind(':');
    Url url{.host = place.substr(0, colon),
            .port = colon == std::string::npos ? "80" : place.substr(colon + 1),
            .path = rest.substr(slash)};
    while (url.path.ends_with('/')) url.path.pop_back();
    if (url.host.empty() || url.port.empty() ||
        url.port.find_first_not_of("0123456789") != std::string::npos)
        return fail(ErrorKind::invalid, "'{}' is no address of the form http://host:port", text);
    return url;
}

HttpAnswer::HttpAnswer(HttpAnswer&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      status_(other.status_),
      chunked_(other.chunked_),
      ended_(other.ended_),
      left_(other.left_),
      buffer_(std::move(other.buffer_)) {}

HttpAnswer::~HttpAnswer() {
    if (socket_ >= 0) ::close(socket_);
}

Expected<HttpAnswer> HttpAnswer::of(const Url& url, const HttpCall& call) {
    ESPALIER_ASSIGN_OR_RETURN(const int socket, connect_to(url, call.timeout_seconds));
    HttpAnswer answer(socket);
    std::string head = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\n",
                                   call.method, url.path, call.path, url.host, url.port);
    if (!call.api_key.empty()) head += fmt::format("Authorization: Bearer {}\r\n", call.api_key);
    if (call.method == "POST")
        head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                            call.body.size());
    ESPALIER_RETURN_IF_ERROR(send_all(socket, head + "\r\n" + call.body));
    ESPALIER_RETURN_IF_ERROR(answer.read_head());
    return answer;
}

Expected<bool> HttpAnswer::receive() {
    std::array<char, 16384> bytes;
    const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), 0);
    if (count < 0) return system_error("receive");
    buffer_.append(bytes.data(), static_cast<std::size_t>(count));
    return count > 0;
}

Expected<void> HttpAnswer::read_head() {
    std::size_t end = std::string::npos;
    while ((end = buffer_.find("\r\n\r\n")) == std::string::npos) {
        if (buffer_.size() > kMaxHeadBytes)
            return fail(ErrorKind::invalid, "an answer's head has more than {} bytes",
                        kMaxHeadBytes);
        ESPALIER_ASSIGN_OR_RETURN(const bool more, receive());
        if (!more) return fail(ErrorKind::io, "the server closed the connection without an answer");
    }
    const std::string head = lower(buffer_.substr(0, end + 2));
    buffer_.erase(0, end + 4);
    if (!head.starts_with("http/1.") || head.size() < 12 ||
        std::from_chars(head.data() + 9, head.data() + 12, status_).ec != std::errc())
        return fail(ErrorKind::invalid, "the answer is no HTTP/1.1");
    chunked_ = head.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos;
    constexpr std::string_view kLength = "\r\ncontent-length: ";
    if (const std::size_t at = head.find(kLength); at != std::string::npos && !chunked_) {
        std::uint64_t length = 0;
        const char* digits = head.data() + at + kLength.size();
        if (std::from_chars(digits, head.data() + head.size(), length).ec != std::errc())
            return fail(ErrorKind::invalid, "the answer's content-length is no number");
        left_ = length;
    }
    return {};
}

Expected<std::optional<std::string>> HttpAnswer::read_some() {
    if (ended_) return std::nullopt;
    if (chunked_) return read_chunk();
    if (buffer_.empty() && left_ != 0) {
        ESPALIER_ASSIGN_OR_RETURN(const bool more, receive());
        if (!more && left_) return fail(ErrorKind::io, "the answer broke off");
    }
    std::string bytes = std::exchange(buffer_, {});
    if (left_) *left_ -= std::min<std::uint64_t>(*left_, bytes.size());
    if (bytes.empty()) {
        ended_ = true;
        return std::nullopt;
    }
    return bytes;
}

Expected<std::optional<std::string>> HttpAnswer::read_chunk() {
    const auto more = [&]() -> Expected<void> {
        ESPALIER_ASSIGN_OR_RETURN(const bool came, receive());
        if (!came) return fail(ErrorKind::io, "the answer broke off");
        return {};
    };
    if (!left_) {
        std::size_t end = std::string::npos;
        while ((end = buffer_.find("\r\n")) == std::string::npos) {
            if (buffer_.size() > kMaxChunkLine)
                return fail(ErrorKind::invalid, "a chunk's line has more than {} bytes",
                            kMaxChunkLine);
            ESPALIER_RETURN_IF_ERROR(more());
        }
        std::uint64_t size = 0;
        if (std::from_chars(buffer_.data(), buffer_.data() + end, size, 16).ec != std::errc())
            return fail(ErrorKind::invalid, "a chunk has no size");
        buffer_.erase(0, end + 2);
        if (size == 0) {
            ended_ = true;
            return std::nullopt;
        }
        left_ = size;
    }
    while (buffer_.empty()) ESPALIER_RETURN_IF_ERROR(more());
    const auto taken = static_cast<std::size_t>(std::min<std::uint64_t>(*left_, buffer_.size()));
    std::string bytes = buffer_.substr(0, taken);
    buffer_.erase(0, taken);
    *left_ -= taken;
    if (*left_ == 0) {
        while (buffer_.size() < 2) ESPALIER_RETURN_IF_ERROR(more());
        if (!buffer_.starts_with("\r\n"))
            return fail(ErrorKind::invalid, "a chunk is longer than it says");
        buffer_.erase(0, 2);
        left_.reset();
    }
    return bytes;
}

Expected<std::string> HttpAnswer::read_all() {
    std::string all;
    while (true) {
        ESPALIER_ASSIGN_OR_RETURN(const auto bytes, read_some());
        if (!bytes) return all;
        all += *bytes;
    }
}

std::vector<std::string> EventCutter::push(std::string_view bytes) {
    rest_ += bytes;
    std::vector<std::string> events;
    std::size_t from = 0;
    for (std::size_t end; (end = rest_.find("\n\n", from)) != std::string::npos; from = end + 2) {
        const std::string_view event = std::string_view(rest_).substr(from, end - from);
        if (event.starts_with("data: ")) events.emplace_back(event.substr(6));
    }
    rest_.erase(0, from);
    return events;
}

}  // namespace espalier::cli
