// SPDX-License-Identifier: Apache-2.0
// One connection: reads a request, lets the handler answer it, reads the next. While an answer is
// being made the socket is read on, so that a client that goes is noticed at once. Private to the
// two files of Beast. Everything happens on the I/O thread.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/connection.hpp"
#include "server/http.hpp"

namespace espalier::server {

// State that all connections of a server share.
struct SessionRoom {
    HttpLimits limits;
    HttpHandler& handler;
    std::int64_t connections = 0;
    std::int64_t body_bytes = 0;  // reserved for bodies, of all connections
};

class Session final : public Exchange, public std::enable_shared_from_this<Session> {
  public:
    using Clock = std::chrono::steady_clock;
    // tls: null for a connection without it.
    Session(boost::asio::ip::tcp::socket socket, const tls::Context& tls,
            std::shared_ptr<SessionRoom> room, bool is_monitor);
    ~Session() override;

    void start();
    // Answers 503 and closes: there are too many connections. With TLS it closes, as an answer
    // would cost a handshake.
    void refuse();
    void close();
    // Closes if it has waited for too long.
    void check_time(Clock::time_point now);

    bool answering() const { return state_ == State::answering; }

    void listen(std::shared_ptr<ExchangeListener> listener) override;
    void respond(const HttpResponse& response) override;
    void start_stream(const HttpResponse& head) override;
    void write(std::string data) override;
    void finish() override;
    bool writing() const override { return writing_; }
    Access& access() override { return access_; }
    void release_body() override;

  private:
    using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
    using Error = boost::system::error_code;
    // greeting: TLS is being agreed on.
    // lingering: the answer has left, and what still comes is thrown away until the client closes.
    enum class State { greeting, waiting, reading, answering, lingering, closing };

    void on_first_byte(Error error);
    void on_handshake(Error error);
    void next_request();
    void watch();
    void on_watched(Error error, std::size_t bytes);
    void read_head();
    bool still_reading();
    void on_head(Error error);
    HttpRequest request() const;
    void told();
    bool admit_body();
    void read_body();
    void on_body(Error error);
    HttpResponse refusal(int status, const std::string& message) const;
    void refuse_request(const HttpResponse& response);
    void on_read_error(Error error);
    std::string head_of(const HttpResponse& response, bool stream);
    void send(std::string bytes);
    void on_sent(Error error);
    void on_idle();
    void linger();
    void wait_until(std::chrono::milliseconds timeout) { expires_ = Clock::now() + timeout; }

    Connection connection_;
    std::shared_ptr<SessionRoom> room_;
    boost::beast::flat_buffer buffer_;
    std::optional<Parser> parser_;
    std::shared_ptr<ExchangeListener> listener_;
    State state_ = State::waiting;
    Clock::time_point expires_ = Clock::time_point::max();
    bool watching_ = false;    // a read is under way that no parser asked for
    bool parsing_ = false;     // a read of the parser is under way
    bool writing_ = false;     // bytes are under way
    bool streaming_ = false;   // between start_stream() and finish()
    bool finished_ = false;    // the answer is complete, once all has left
    bool keep_alive_ = false;  // after this answer
    bool chunked_ = false;
    bool head_only_ = false;  // HEAD: the answer's body stays here
    const bool is_monitor_;
    Access access_;
    Clock::time_point began_ = Clock::time_point::max();  // the head's arrival; max: told, or none
    std::string allowed_origin_;  // of the request, if a page there may read the answer
    std::string sending_, queued_;
    std::int64_t reserved_bytes_ = 0;
};

}  // namespace espalier::server
