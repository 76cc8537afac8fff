// SPDX-License-Identifier: Apache-2.0
#include "client/http_client.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#ifdef ESPALIER_TLS
#include <boost/asio/ssl/stream.hpp>
#endif
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <csignal>
#include <set>
#include <utility>

#include "client/answer_reader.hpp"
#include "espalier/version.hpp"
#include "tls/context.hpp"

namespace espalier::client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Code = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kReadBytes = 16 << 10;

auto into(Code& code) { return asio::redirect_error(asio::use_awaitable, code); }

// A call under way.
struct Running {
    Running(asio::io_context& context, std::string text, const Call& call,
            std::shared_ptr<CallListener> hears)
        : stream(context),
          request(std::move(text)),
          is_head(call.method == "HEAD"),
          any_length(call.any_length),
          listener(std::move(hears)) {}
    beast::tcp_stream stream;
    std::string request;
    bool is_head, any_length;
    std::shared_ptr<CallListener> listener;
    std::optional<Failure> ended;  // from this side
};

Headers headers_of(const http::response_header<>& head) {
    Headers headers;
    for (const auto& field : head) {
        std::string name(field.name_string());
        std::ranges::transform(name, name.begin(), [](char c) {
            return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        });
        headers.emplace_back(std::move(name), std::string(field.value()));
    }
    return headers;
}

class BeastClient final : public HttpClient {
  public:
    explicit BeastClient(const ServerAddress& address) : address_(address) {}
    Expected<void> resolve();

    void start(Call call, std::shared_ptr<CallListener> listener) override;
    void end_all(const Failure& failure) override;
    void after(double seconds, std::function<void()> act) override;
    void run(std::function<void()> on_interrupt) override;
    void stop() override { context_.stop(); }
    double now() const override {
        return std::chrono::duration<double>(Clock::now() - start_).count();
    }

  private:
    asio::awaitable<std::optional<Failure>> exchange(Running& call);
    // Stream: the call's own, or TLS around it.
    template <typename Stream>
    asio::awaitable<std::optional<Failure>> transfer(Running& call, Stream& stream);
    template <typename Stream>
    asio::awaitable<std::optional<Failure>> read_body(
        Running& call, Stream& stream, beast::flat_buffer& buffer,
        http::response_parser<http::buffer_body>& parser);
    void allow_more_time(Running& call);
    Failure failure_of(const Running& call, Code code, bool connected) const;
    std::string request_text(const Call& call) const;

    const ServerAddress address_;
    const Clock::time_point start_ = Clock::now();
    asio::io_context context_{1};
    tcp::resolver::results_type endpoints_;
    tls::Context tls_;  // null: plain
    std::set<std::shared_ptr<Running>> running_;
};

Expected<void> BeastClient::resolve() {
    if (address_.url.secure) {
        ESPALIER_ASSIGN_OR_RETURN(tls_, tls::client_context());
    }
    Code failure;
    tcp::resolver resolver(context_);
    endpoints_ = resolver.resolve(address_.url.host, address_.url.port,
                                  tcp::resolver::numeric_service, failure);
    if (failure || endpoints_.empty())
        return fail(ErrorKind::io, "{}: {}", address_.url.host, failure.message());
    return {};
}

std::string BeastClient::request_text(const Call& call) const {
    std::string text =
        fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: espalier/" ESPALIER_VERSION
                    "\r\nConnection: close\r\n",
                    call.method, address_.url.path, call.path, address_.url.authority());
    if (!address_.api_key.empty())
        text += fmt::format("Authorization: Bearer {}\r\n", address_.api_key);
    for (const auto& [name, value] : call.headers) text += fmt::format("{}: {}\r\n", name, value);
    if (call.method == "POST")
        text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                            call.body.size());
    return text + "\r\n" + call.body;
}

void BeastClient::start(Call call, std::shared_ptr<CallListener> listener) {
    const auto running =
        std::make_shared<Running>(context_, request_text(call), call, std::move(listener));
    running_.insert(running);
    asio::co_spawn(context_, exchange(*running),
                   [this, running](std::exception_ptr thrown, std::optional<Failure> failure) {
                       running_.erase(running);
                       if (thrown) std::rethrow_exception(thrown);
                       running->listener->on_end(running->ended ? running->ended : failure);
                   });
}

void BeastClient::end_all(const Failure& failure) {
    for (const auto& call : running_) {
        if (call->ended) continue;
        call->ended = failure;
        call->stream.close();
    }
}

void BeastClient::after(double seconds, std::function<void()> act) {
    const auto timer = std::make_shared<asio::steady_timer>(context_);
    timer->expires_after(std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(std::max(0.0, seconds))));
    timer->async_wait([timer, act = std::move(act)](Code code) {
        if (!code) act();
    });
}

void BeastClient::run(std::function<void()> on_interrupt) {
    context_.restart();
    const auto work = asio::make_work_guard(context_);
    asio::signal_set signals(context_, SIGINT, SIGTERM);
    std::function<void(Code, int)> interrupted = [&](Code code, int) {
        if (code) return;
        signals.async_wait(interrupted);
        on_interrupt();
    };
    signals.async_wait(interrupted);
    context_.run();
}

void BeastClient::allow_more_time(Running& call) {
    call.stream.expires_after(std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(address_.timeout_seconds)));
}

Failure BeastClient::failure_of(const Running& call, Code code, bool connected) const {
    if (call.ended) return *call.ended;
    if (code == beast::error::timeout)
        return {FailureKind::timeout,
                fmt::format("nothing came for {} seconds", address_.timeout_seconds)};
    if (!connected)
        return {FailureKind::connect,
                fmt::format("{}: {}", address_.url.authority(), code.message())};
    const Code http_end = make_error_code(http::error::end_of_stream);
    const Code http_part = make_error_code(http::error::partial_message);
    if (code.category() != http_end.category() || code == http_end || code == http_part)
        return {FailureKind::closed, fmt::format("the connection ended: {}", code.message())};
    return {FailureKind::protocol, fmt::format("no HTTP answer: {}", code.message())};
}

asio::awaitable<std::optional<Failure>> BeastClient::exchange(Running& call) {
    Code code;
    allow_more_time(call);
    co_await call.stream.async_connect(endpoints_, into(code));
    if (code) co_return failure_of(call, code, false);
    call.stream.socket().set_option(tcp::no_delay(true), code);
    if (!tls_) co_return co_await transfer(call, call.stream);
#ifdef ESPALIER_TLS
    const auto session = tls::new_client_session(tls_, address_.url.host);
    if (!session) co_return Failure{FailureKind::connect, session.error().message};
    asio::ssl::stream<beast::tcp_stream&> stream(call.stream, *session);
    allow_more_time(call);
    co_await stream.async_handshake(asio::ssl::stream_base::client, into(code));
    if (code) {
        const std::string distrust = tls::distrust(stream.native_handle());
        if (call.ended || distrust.empty()) co_return failure_of(call, code, false);
        co_return Failure{FailureKind::connect,
                          fmt::format("{}: its certificate is not believed: {}",
                                      address_.url.authority(), distrust)};
    }
    co_return co_await transfer(call, stream);
#else
    co_return Failure{FailureKind::connect, "this build has no TLS"};
#endif
}

template <typename Stream>
asio::awaitable<std::optional<Failure>> BeastClient::transfer(Running& call, Stream& stream) {
    Code code;
    allow_more_time(call);
    co_await asio::async_write(stream, asio::buffer(call.request), into(code));
    // A server may refuse a body without reading it: its answer is there all the same.
    if (code && code != asio::error::broken_pipe && code != asio::error::connection_reset)
        co_return failure_of(call, code, true);
    beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.header_limit(kMaxHeadBytes);
    parser.body_limit(call.any_length ? boost::none
                                      : boost::optional<std::uint64_t>(kMaxBodyBytes));
    parser.skip(call.is_head);
    co_await http::async_read_header(stream, buffer, parser, into(code));
    if (code) co_return failure_of(call, code, true);
    call.listener->on_status(static_cast<int>(parser.get().result_int()));
    call.listener->on_headers(headers_of(parser.get()));
    co_return co_await read_body(call, stream, buffer, parser);
}

template <typename Stream>
asio::awaitable<std::optional<Failure>> BeastClient::read_body(
    Running& call, Stream& stream, beast::flat_buffer& buffer,
    http::response_parser<http::buffer_body>& parser) {
    Code code;
    std::array<char, kReadBytes> bytes;
    while (!parser.is_done()) {
        auto& body = parser.get().body();
        body.data = bytes.data();
        body.size = bytes.size();
        body.more = true;
        co_await http::async_read_some(stream, buffer, parser, into(code));
        if (code && code != http::error::need_buffer) co_return failure_of(call, code, true);
        const std::string_view came(bytes.data(), bytes.size() - body.size);
        const Verdict verdict = came.empty() ? Verdict::waiting : call.listener->on_bytes(came);
        if (call.ended) co_return call.ended;
        if (verdict == Verdict::enough) co_return std::nullopt;
        if (verdict == Verdict::progress) allow_more_time(call);
    }
    co_return std::nullopt;
}

}  // namespace

Expected<std::unique_ptr<HttpClient>> HttpClient::open(const ServerAddress& address) {
    if (!std::ranges::all_of(address.api_key, [](char c) { return c > ' ' && c < '\x7f'; }))
        return fail_field(ErrorKind::invalid, "api_key", "has characters that no header may have");
    auto client = std::make_unique<BeastClient>(address);
    ESPALIER_RETURN_IF_ERROR(client->resolve());
    return client;
}

namespace {

class Fetch final : public CallListener {
  public:
    Fetch(HttpClient& client, std::size_t limit) : client_(client), limit_(limit) {}
    void on_status(int status) override { status_ = status; }
    Verdict on_bytes(std::string_view bytes) override {
        body_ += bytes.substr(0, limit_ - body_.size());
        return body_.size() == limit_ ? Verdict::enough : Verdict::waiting;
    }
    void on_end(std::optional<Failure> failure) override {
        failure_ = std::move(failure);
        client_.stop();
    }
    Expected<std::string> result() && {
        if (failure_) return fail(ErrorKind::io, "{}", failure_->message);
        if (status_ != 200) return fail(ErrorKind::io, "{}", status_message(status_, body_));
        return std::move(body_);
    }

  private:
    HttpClient& client_;
    std::size_t limit_;
    int status_ = 0;
    std::string body_;
    std::optional<Failure> failure_;
};

}  // namespace

Expected<std::string> fetch(HttpClient& client, Call call, std::size_t limit_bytes) {
    const auto listener = std::make_shared<Fetch>(client, limit_bytes);
    client.start(std::move(call), listener);
    client.run([&] { client.end_all({FailureKind::interrupted, "interrupted"}); });
    return std::move(*listener).result();
}

}  // namespace espalier::client
