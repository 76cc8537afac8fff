// SPDX-License-Identifier: Apache-2.0
// A small HTTP client on raw sockets: it shows the bytes as they are, and can misbehave.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct ssl_st;

namespace espalier::server::test {

struct Answer {
    int status = 0;                              // 0: the connection ended before an answer
    std::map<std::string, std::string> headers;  // names in lower case
    std::string body;                            // chunks joined

    nlohmann::json json() const { return nlohmann::json::parse(body); }
    // error.param of the body.
    std::string param() const;
    std::string message() const { return json()["error"]["message"].get<std::string>(); }
    // Texts behind "data: ", in order, [DONE] too.
    std::vector<std::string> events() const;
};

class Client {
  public:
    explicit Client(std::uint16_t port);
    // With TLS, believing any certificate. min and max: protocol versions of OpenSSL; 0: any.
    // status 0 of answers, and false of send(), where no TLS was agreed on.
    static Client secure(std::uint16_t port, int min_version = 0, int max_version = 0);
    ~Client() { close(); }
    Client(Client&& other) noexcept;
    Client(const Client&) = delete;

    // False: the other side has closed.
    bool send(std::string_view bytes);
    // The next answer, or status 0 when the connection ends before it is whole.
    Answer receive();
    // Some bytes of what comes; empty at the end.
    std::string receive_some();
    // Reads until what came has `text`; false: the connection ended before.
    bool receive_until(std::string_view text);
    // The other side has closed, and nothing is left to read.
    bool at_end();
    // Nothing more is sent; what comes can still be read.
    void end_sending();
    void close();
    // Ends the connection as a process that is killed with bytes unread does.
    void reset();

    Answer get(const std::string& path, const std::string& headers = {});
    Answer post(const std::string& path, const std::string& body, const std::string& headers = {});
    Answer post(const std::string& path, const nlohmann::json& body) {
        return post(path, body.dump());
    }

    // Name in the server's certificate, and the version of TLS; empty: none.
    std::string certificate_name() const;
    std::string tls_version() const;

  private:
    int socket_ = -1;
    std::shared_ptr<ssl_st> tls_;
    std::string pending_;
};

std::string request_text(const std::string& method, const std::string& path,
                         const std::string& body = {}, const std::string& headers = {});

}  // namespace espalier::server::test
