// SPDX-License-Identifier: Apache-2.0
#include "server/http_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/core/bind_handler.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <utility>

#include "server/request_names.hpp"

namespace espalier::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr std::size_t kReadBytes = 4096;
// Limit of what a client may send ahead while it is being answered.
constexpr std::size_t kMaxPipelinedBytes = 64 << 10;
constexpr std::chrono::milliseconds kLingerTime{1000};
constexpr const char* kApiKeyHeader = "x-api-key";  // Anthropic's clients
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string text_of(boost::beast::string_view view) {
    return std::string(view.data(), view.size());
}

bool repeats_header(const http::request<http::string_body>& message) {
    for (const http::field field :
         {http::field::host, http::field::origin, http::field::content_type,
          http::field::content_encoding, http::field::authorization})
        if (message.count(field) > 1) return true;
    return message.count(kApiKeyHeader) > 1;
}

// "http://name/path": the target's own name stands above the Host header (RFC 9112, 3.2.2).
void split_absolute_target(HttpRequest& request) {
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (!beast::iequals(request.path.substr(0, scheme.size()), scheme)) continue;
        const std::string rest = request.path.substr(scheme.size());
        const std::size_t slash = std::min(rest.find('/'), rest.size());
        request.host = rest.substr(0, slash);
        request.path = slash < rest.size() ? rest.substr(slash) : "/";
        return;
    }
}

// A header that stands once, and is of this form; otherwise nothing.
template <typename Check>
std::string header_if(const http::request<http::string_body>& message, const char* name,
                      Check is_fit) {
    const std::string value = message.count(name) == 1 ? text_of(message[name]) : std::string();
    return is_fit(value) ? value : std::string();
}

}  // namespace

Session::Session(asio::ip::tcp::socket socket, const tls::Context& tls,
                 std::shared_ptr<SessionRoom> room, bool is_monitor)
    : connection_(std::move(socket), tls), room_(std::move(room)), is_monitor_(is_monitor) {
    ++room_->connections;
    boost::system::error_code failure;
    const auto peer = connection_.socket().remote_endpoint(failure);
    if (!failure) access_.client = peer.address().to_string();
}

Session::~Session() {
    release_body();
    --room_->connections;
}

void Session::start() {
    boost::system::error_code ignored;
    connection_.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
    if (!connection_.has_tls()) return next_request();
    state_ = State::greeting;
    wait_until(room_->limits.read_timeout);
    connection_.wait_readable(
        [self = shared_from_this()](Error error) { self->on_first_byte(error); });
}

// A handshake begins with the byte 22, a request with the capital letter of its method.
void Session::on_first_byte(Error error) {
    if (state_ == State::closing) return;
    const int first = error ? -1 : connection_.first_byte();
    if (first < 0) return close();
    if (first >= 'A' && first <= 'Z') {
        connection_.drop_tls();
        return refuse_request(
            refusal(400, "this port speaks TLS: the address begins with https://"));
    }
    connection_.handshake(
        [self = shared_from_this()](Error failure) { self->on_handshake(failure); });
}

void Session::on_handshake(Error error) {
    if (state_ == State::closing) return;
    if (!error) return next_request();
    room_->handler.handshake_failed(access_.client, error.message());
    close();
}

void Session::refuse() {
    if (connection_.has_tls()) return close();
    refuse_request(refusal(503, "too many connections"));
}

void Session::close() {
    if (state_ == State::closing) return;
    state_ = State::closing;
    expires_ = Clock::time_point::max();
    boost::system::error_code ignored;
    connection_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    connection_.socket().close(ignored);
    if (const auto listener = std::exchange(listener_, nullptr)) listener->closed();
    if (began_ != Clock::time_point::max()) access_.status = 499;
    told();
}

// Once for each exchange.
void Session::told() {
    const Clock::time_point began = std::exchange(began_, Clock::time_point::max());
    if (began == Clock::time_point::max()) return;
    access_.seconds = std::chrono::duration<double>(Clock::now() - began).count();
    room_->handler.finished(access_);
}

void Session::check_time(Clock::time_point now) {
    if (now < expires_) return;
    // A request that came half is told; what waits for a first byte or a slow reader is not.
    if (state_ == State::reading && !writing_)
        refuse_request(refusal(408, "the request did not come within the time"));
    else
        close();
}

// ---- in -----------------------------------------------------------------------------------------

void Session::next_request() {
    state_ = State::waiting;
    parser_.reset();
    release_body();
    access_ = {.client = std::move(access_.client)};
    streaming_ = finished_ = head_only_ = false;
    wait_until(room_->limits.idle_timeout);
    if (watching_) {
        // Bytes that came ahead are in the buffer; the read under way must end before the parser's.
        if (buffer_.size() > 0) connection_.socket().cancel();
        return;
    }
    if (buffer_.size() > 0)
        read_head();
    else
        watch();
}

void Session::watch() {
    watching_ = true;
    connection_.async_read_some(
        buffer_.prepare(kReadBytes),
        beast::bind_front_handler(&Session::on_watched, shared_from_this()));
}

void Session::on_watched(Error error, std::size_t bytes) {
    watching_ = false;
    if (state_ == State::closing) return;
    buffer_.commit(bytes);
    if (error == asio::error::operation_aborted && state_ == State::waiting) return read_head();
    if (error) return close();
    if (state_ == State::waiting) return read_head();
    if (state_ == State::lingering) buffer_.consume(buffer_.size());
    if (buffer_.size() > kMaxPipelinedBytes) return close();
    watch();
}

void Session::read_head() {
    state_ = State::reading;
    parsing_ = true;
    parser_.emplace();
    parser_->header_limit(static_cast<std::uint32_t>(room_->limits.max_header_bytes));
    parser_->body_limit(static_cast<std::uint64_t>(room_->limits.max_body_bytes));
    http::async_read_header(
        connection_, buffer_, *parser_,
        [self = shared_from_this()](Error error, std::size_t) { self->on_head(error); });
}

HttpRequest Session::request() const {
    const auto& message = parser_->get();
    HttpRequest request;
    request.method = text_of(message.method_string());
    request.path = text_of(message.target());
    request.path = request.path.substr(0, request.path.find('?'));
    request.is_http_1_0 = message.version() < 11;
    request.host = text_of(message[http::field::host]);
    split_absolute_target(request);
    request.origin = text_of(message[http::field::origin]);
    request.content_type = text_of(message[http::field::content_type]);
    request.content_encoding = text_of(message[http::field::content_encoding]);
    request.authorization = text_of(message[http::field::authorization]);
    request.x_api_key = text_of(message[kApiKeyHeader]);
    request.request_id = access_.request_id;
    request.traceparent = access_.traceparent;
    request.is_monitor = is_monitor_;
    return request;
}

// False: the request was refused meanwhile.
bool Session::still_reading() {
    parsing_ = false;
    if (state_ == State::lingering) close();
    return state_ == State::reading;
}

void Session::on_head(Error error) {
    if (!still_reading()) return;
    began_ = Clock::now();
    if (error) return on_read_error(error);
    wait_until(room_->limits.read_timeout);
    keep_alive_ = parser_->keep_alive();
    head_only_ = parser_->get().method() == http::verb::head;
    access_.request_id = header_if(parser_->get(), "X-Request-Id", is_request_id);
    access_.traceparent = header_if(parser_->get(), "traceparent", is_traceparent);
    if (access_.request_id.empty()) access_.request_id = new_request_id();
    const HttpRequest head = request();
    access_.method = head.method;
    access_.path = head.path;
    if (repeats_header(parser_->get()))
        return refuse_request(refusal(400, "a header that may stand once stands twice"));
    allowed_origin_ = room_->handler.allows_origin(head.origin) ? head.origin : std::string();
    if (auto refused = room_->handler.check_head(head)) return refuse_request(*refused);
    if (!admit_body()) return;
    const bool expects = beast::iequals(parser_->get()[http::field::expect], "100-continue");
    if (!expects || parser_->is_done()) return read_body();
    parsing_ = true;
    asio::async_write(connection_, asio::buffer(kContinue),
                      [self = shared_from_this()](Error failure, std::size_t) {
                          if (!self->still_reading()) return;
                          if (failure) return self->close();
                          self->read_body();
                      });
}

// A body whose length is not told may become as long as any.
bool Session::admit_body() {
    const HttpLimits& limits = room_->limits;
    const auto length = parser_->content_length();
    std::int64_t bytes = 0;
    if (length)
        bytes = *length > static_cast<std::uint64_t>(limits.max_body_bytes)
                    ? limits.max_body_bytes + 1
                    : static_cast<std::int64_t>(*length);
    else if (parser_->chunked())
        bytes = limits.max_body_bytes;
    if (bytes > limits.max_body_bytes) {
        refuse_request(refusal(413, fmt::format("the body has {} bytes; at most {} are taken",
                                                *length, limits.max_body_bytes)));
        return false;
    }
    if (room_->body_bytes + bytes > limits.max_bodies_bytes) {
        refuse_request(refusal(503, "too many large requests at a time"));
        return false;
    }
    reserved_bytes_ = bytes;
    room_->body_bytes += bytes;
    return true;
}

void Session::release_body() { room_->body_bytes -= std::exchange(reserved_bytes_, 0); }

void Session::read_body() {
    if (parser_->is_done()) return on_body({});
    parsing_ = true;
    http::async_read(
        connection_, buffer_, *parser_,
        [self = shared_from_this()](Error error, std::size_t) { self->on_body(error); });
}

void Session::on_body(Error error) {
    if (!still_reading()) return;
    if (error) return on_read_error(error);
    HttpRequest request = this->request();
    request.body = std::move(parser_->get().body());
    state_ = State::answering;
    chunked_ = parser_->get().version() >= 11;
    keep_alive_ = parser_->keep_alive();
    expires_ = Clock::time_point::max();
    if (!watching_) watch();
    room_->handler.handle(std::move(request), shared_from_this());
}

void Session::on_read_error(Error error) {
    const HttpLimits& limits = room_->limits;
    if (error == http::error::header_limit)
        return refuse_request(
            refusal(431, fmt::format("the head has more than {} bytes", limits.max_header_bytes)));
    if (error == http::error::body_limit)
        return refuse_request(
            refusal(413, fmt::format("the body has more than {} bytes", limits.max_body_bytes)));
    if (error.category() == http::make_error_code(http::error::bad_method).category() &&
        error != http::error::end_of_stream && error != http::error::partial_message)
        return refuse_request(refusal(400, "not HTTP: " + error.message()));
    if (access_.method.empty()) began_ = Clock::time_point::max();
    close();
}

// A head that is at fault may have named its path before.
HttpResponse Session::refusal(int status, const std::string& message) const {
    std::string path = access_.path;
    if (path.empty() && parser_) path = std::string(parser_->get().target());
    return room_->handler.refusal(status, message, path);
}

// The rest of the request stays unread, so the connection ends with the answer.
void Session::refuse_request(const HttpResponse& response) {
    if (state_ == State::closing) return;
    keep_alive_ = false;
    state_ = State::answering;
    if (began_ == Clock::time_point::max()) began_ = Clock::now();
    respond(response);
}

// ---- out ----------------------------------------------------------------------------------------

void Session::listen(std::shared_ptr<ExchangeListener> listener) {
    listener_ = std::move(listener);
}

std::string Session::head_of(const HttpResponse& response, bool stream) {
    access_.status = response.status;
    if (access_.request_id.empty()) access_.request_id = new_request_id();
    const auto status = http::int_to_status(static_cast<unsigned>(response.status));
    // Request-Id is what Anthropic's clients tell of.
    std::string head = fmt::format(
        "HTTP/1.1 {0} {1}\r\nServer: espalier\r\nContent-Type: {2}\r\nX-Request-Id: {3}\r\n"
        "Request-Id: {3}\r\n",
        response.status, text_of(http::obsolete_reason(status)), response.content_type,
        access_.request_id);
    for (const auto& [name, value] : response.headers)
        head += fmt::format("{}: {}\r\n", name, value);
    if (!allowed_origin_.empty())
        head += fmt::format(
            "Access-Control-Allow-Origin: {}\r\n"
            "Access-Control-Expose-Headers: X-Request-Id, Request-Id, Retry-After\r\n"
            "Vary: Origin\r\n",
            allowed_origin_);
    if (!stream)
        head += fmt::format("Content-Length: {}\r\n", response.body.size());
    else if (chunked_)
        head += "Transfer-Encoding: chunked\r\n";
    head += keep_alive_ ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
    return head;
}

void Session::respond(const HttpResponse& response) {
    if (state_ != State::answering) return;
    finished_ = true;
    send(head_of(response, false) + (head_only_ ? std::string() : response.body));
}

void Session::start_stream(const HttpResponse& head) {
    if (state_ != State::answering) return;
    streaming_ = true;
    if (!chunked_) keep_alive_ = false;
    send(head_of(head, true));
}

void Session::write(std::string data) {
    if (state_ != State::answering || !streaming_ || data.empty()) return;
    send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", data.size(), data) : std::move(data));
}

void Session::finish() {
    if (state_ != State::answering || !streaming_) return;
    finished_ = true;
    if (chunked_)
        send("0\r\n\r\n");
    else if (!writing_)
        on_idle();
}

void Session::send(std::string bytes) {
    queued_ += bytes;
    if (writing_) return;
    writing_ = true;
    sending_ = std::exchange(queued_, {});
    access_.bytes += static_cast<std::int64_t>(sending_.size());
    wait_until(room_->limits.write_timeout);
    asio::async_write(
        connection_, asio::buffer(sending_),
        [self = shared_from_this()](Error error, std::size_t) { self->on_sent(error); });
}

void Session::on_sent(Error error) {
    writing_ = false;
    if (state_ == State::closing) return;
    if (error) return close();
    if (!queued_.empty()) return send({});
    expires_ = Clock::time_point::max();
    on_idle();
}

void Session::on_idle() {
    if (!finished_) {
        if (const auto listener = listener_) listener->written();
        return;
    }
    listener_.reset();
    told();
    if (keep_alive_) return next_request();
    linger();
}

// The client gets what is on its way before it sees the end: closing with its bytes unread would
// reset the connection and take the answer along.
void Session::linger() {
    state_ = State::lingering;
    connection_.end_sending(shared_from_this());
    wait_until(kLingerTime);
    if (!watching_ && !parsing_) watch();
}

}  // namespace espalier::server
