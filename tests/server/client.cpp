// SPDX-License-Identifier: Apache-2.0
#include "server/client.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#ifdef ESPALIER_TLS
#include <openssl/ssl.h>
#include <openssl/x509.h>
#endif
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <csignal>
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
    : socket_(std::exchange(other.socket_, -1)),
      tls_(std::move(other.tls_)),
      pending_(std::move(other.pending_)) {}

namespace {

#ifdef ESPALIER_TLS
ssize_t tls_write(ssl_st* tls, std::string_view bytes) {
    return SSL_write(tls, bytes.data(), static_cast<int>(bytes.size()));
}
ssize_t tls_read(ssl_st* tls, char* bytes, std::size_t size) {
    return SSL_read(tls, bytes, static_cast<int>(size));
}
#else
ssize_t tls_write(ssl_st*, std::string_view) { return -1; }
ssize_t tls_read(ssl_st*, char*, std::size_t) { return -1; }
#endif

}  // namespace

#ifdef ESPALIER_TLS
Client Client::secure(std::uint16_t port, int min_version, int max_version) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
    Client client(port);
    const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                               SSL_CTX_free);
    SSL_CTX_set_security_level(context.get(), 0);  // old versions are the server's to refuse
    SSL_CTX_set_min_proto_version(context.get(), min_version);
    SSL_CTX_set_max_proto_version(context.get(), max_version);
    client.tls_.reset(SSL_new(context.get()), SSL_free);
    SSL_set_fd(client.tls_.get(), client.socket_);
    if (SSL_connect(client.tls_.get()) != 1) client.close();
    return client;
}

std::string Client::certificate_name() const {
    if (!tls_) return {};
    char name[256] = {};
    const std::unique_ptr<X509, void (*)(X509*)> shown(SSL_get1_peer_certificate(tls_.get()),
                                                       X509_free);
    if (shown)
        X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, name,
                                  sizeof name);
    return name;
}

std::string Client::tls_version() const {
    return tls_ && socket_ >= 0 ? SSL_get_version(tls_.get()) : std::string();
}
#endif

void Client::end_sending() { ::shutdown(socket_, SHUT_WR); }

void Client::close() {
    tls_.reset();
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

void Client::reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close();
}

bool Client::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = tls_ ? tls_write(tls_.get(), bytes)
                                   : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (count <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
}

std::string Client::receive_some() {
    if (!pending_.empty()) return std::exchange(pending_, {});
    std::array<char, 65536> bytes{};
    const ssize_t count = tls_ ? tls_read(tls_.get(), bytes.data(), bytes.size())
                               : ::recv(socket_, bytes.data(), bytes.size(), 0);
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
