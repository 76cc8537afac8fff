// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 as bench serve needs it: one request per connection, the answer piece by piece as it
// comes. Plain sockets, so that it needs no library that a machine may lack; no TLS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace espalier::cli {

struct Url {
    std::string host = {};
    std::string port = {};
    std::string path = {};  // before the API's own, without a slash at its end
};
// http://host[:port][/path]
Expected<Url> parse_url(const std::string& text);

struct HttpCall {
    std::string method = "POST";
    std::string path = {};
    std::string body = {};
    std::string api_key = {};
    double timeout_seconds = 600;  // without a byte
};

class HttpAnswer {
  public:
    // Connects, sends, and reads the answer's head.
    static Expected<HttpAnswer> of(const Url& url, const HttpCall& call);

    HttpAnswer(HttpAnswer&& other) noexcept;
    HttpAnswer& operator=(HttpAnswer&&) = delete;
    ~HttpAnswer();

    int status() const { return status_; }
    // The next bytes of the body; nothing at its end.
    Expected<std::optional<std::string>> read_some();
    Expected<std::string> read_all();

  private:
    explicit HttpAnswer(int socket) : socket_(socket) {}
    Expected<void> read_head();
    Expected<bool> receive();  // false: the server closed the connection
    Expected<std::optional<std::string>> read_chunk();

    int socket_;
    int status_ = 0;
    bool chunked_ = false;
    bool ended_ = false;
    std::optional<std::uint64_t> left_;  // bytes of the body, or of the chunk, still to come
    std::string buffer_;
};

// Cuts a stream of server-sent events into their data.
class EventCutter {
  public:
    std::vector<std::string> push(std::string_view bytes);

  private:
    std::string rest_;
};

}  // namespace espalier::cli
