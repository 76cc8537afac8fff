// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 as the rest of the server sees it: requests, answers and the loop that carries them. The
// two files that implement it (http_server.cpp, http_session.cpp) are the only ones that include
// Boost.Beast. One thread runs the loop; whatever is said to be on the I/O thread runs there, so
// none of it needs a lock and none of it may wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "tls/context.hpp"

namespace espalier::server {

struct HttpRequest {
    std::string method;  // "GET"
    std::string path;    // without the query
    bool is_http_1_0 = false;
    // Headers that the server reads; empty: absent.
    std::string host, origin, content_type, content_encoding, authorization, x_api_key;
    // Names of the exchange: the client's X-Request-Id or a made one; the client's W3C traceparent,
    // empty if it is none.
    std::string request_id, traceparent;
    bool is_monitor = false;  // came to the port of probes
    std::string body;
};

// One exchange as a log tells it.
struct Access {
    std::string client = {}, method = {}, path = {}, request_id = {}, traceparent = {};
    int status = 0;          // 499: the client went before its answer had left
    std::int64_t bytes = 0;  // of the answer, its head included
    double seconds = 0;      // from its head's arrival
    // Filled by who answers.
    std::string key = {};
    std::optional<std::int64_t> prompt_tokens = {}, output_tokens = {};
};

struct HttpResponse {
    int status = 200;
    std::string content_type = "application/json";
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers = {};
};

// Told about one exchange, on the I/O thread.
class ExchangeListener {
  public:
    virtual ~ExchangeListener() = default;
    virtual void written() = 0;  // all that was written has left; only while a stream is open
    // The client has gone or was too slow. Nothing more comes, and calls do nothing from here on.
    virtual void closed() = 0;
};

// One request's way back, on the I/O thread: respond() once, or start_stream(), write() as often as
// wanted, finish(). A body that does not leave within the write timeout closes the exchange.
class Exchange {
  public:
    virtual ~Exchange() = default;
    // Held until the exchange is over.
    virtual void listen(std::shared_ptr<ExchangeListener> listener) = 0;
    virtual void respond(const HttpResponse& response) = 0;
    virtual void start_stream(const HttpResponse& head) = 0;
    virtual void write(std::string data) = 0;
    virtual void finish() = 0;
    // Something written has not left yet. Writers wait for written(), so that a slow client's text
    // stays where it is bounded.
    virtual bool writing() const = 0;
    virtual Access& access() = 0;
    // The request's body is no longer held: its bytes count as free for other bodies.
    virtual void release_body() = 0;
};

class HttpHandler {
  public:
    virtual ~HttpHandler() = default;
    // Before the body is read: an answer refuses the request, and the body is never taken in.
    virtual std::optional<HttpResponse> check_head(const HttpRequest& head) = 0;
    virtual void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
    // For errors of HTTP itself: 400, 408, 413, 431, 503.
    virtual HttpResponse refusal(int status, const std::string& message,
                                 const std::string& path) = 0;
    // Answers say that a page of this origin may read them.
    virtual bool allows_origin(const std::string& origin) const = 0;
    // An exchange is over.
    virtual void finished(const Access& access) = 0;
    // A connection ended before it had agreed on TLS.
    virtual void handshake_failed(const std::string& client, const std::string& reason) = 0;
    // Something threw on the I/O thread, which goes on.
    virtual void failed(const char* what) = 0;
};

struct HttpLimits {
    std::int64_t max_connections = 4096;
    std::int64_t max_header_bytes = 16 << 10;
    std::int64_t max_body_bytes = 16 << 20;
    // Sum over all bodies that are being read or held at one time.
    std::int64_t max_bodies_bytes = 256 << 20;
    std::chrono::milliseconds idle_timeout{75'000};  // until a request's head is there
    std::chrono::milliseconds read_timeout{30'000};  // from there to its body's end; of a handshake
    std::chrono::milliseconds write_timeout{30'000};  // for what was written to leave
};

class HttpServer {
  public:
    // Binds and listens; port 0: any free one. The handler outlives the server.
    static Expected<std::shared_ptr<HttpServer>> listen(const std::string& host, std::uint16_t port,
                                                        const HttpLimits& limits,
                                                        HttpHandler& handler);
    virtual ~HttpServer() = default;
    virtual std::uint16_t port() const = 0;
    // Before run(): requests to this address too, marked is_monitor. Returns its port.
    virtual Expected<std::uint16_t> listen_for_monitors(const std::string& host,
                                                        std::uint16_t port) = 0;
    // The I/O thread, or before run(): connections that come from now on speak TLS, but for those
    // of monitors. What is connected stays as it is.
    virtual void use_tls(tls::Context context) = 0;
    // The calling thread becomes the I/O thread, until stop().
    virtual void run() = 0;
    // Any thread: runs the call on the I/O thread.
    virtual void post(std::function<void()> call) = 0;

    // The I/O thread, or before run().
    virtual void every(std::chrono::milliseconds interval, std::function<void()> call) = 0;
    virtual void stop() = 0;  // closes everything
    virtual std::int64_t connections() const = 0;
    virtual std::int64_t answering() const = 0;  // of these, with an answer that has not left
};

}  // namespace espalier::server
