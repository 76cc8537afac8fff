// SPDX-License-Identifier: Apache-2.0
// The loop: accepts connections, keeps them in a list, and looks at their times four times a
// second. (A timer per connection would be started and stopped for every write.)
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <utility>

#include "server/http_session.hpp"

namespace espalier::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Failure = boost::system::error_code;

constexpr std::chrono::milliseconds kTimeCheck{250};

class Loop final : public HttpServer {
  public:
    Loop(const HttpLimits& limits, HttpHandler& handler)
        : room_(std::make_shared<SessionRoom>(SessionRoom{limits, handler})) {}
    ~Loop() override { stop(); }

    Expected<void> bind(const std::string& host, std::uint16_t port);
    std::uint16_t port() const override { return port_; }
    void run() override;
    void post(std::function<void()> call) override { asio::post(context_, std::move(call)); }
    void every(std::chrono::milliseconds interval, std::function<void()> call) override;
    void stop() override;
    std::int64_t connections() const override { return room_->connections; }
    std::int64_t answering() const override {
        return std::ranges::count_if(sessions_, [](const std::weak_ptr<Session>& weak) {
            const auto session = weak.lock();
            return session && session->answering();
        });
    }

  private:
    struct Repeated {
        asio::steady_timer timer;
        std::chrono::milliseconds interval;
        std::function<void()> call;
    };

    void accept();
    void on_accepted(Failure failure, tcp::socket socket);
    void check_times();
    void repeat(Repeated& repeated);

    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
    tcp::acceptor acceptor_{context_};
    std::shared_ptr<SessionRoom> room_;
    std::vector<std::weak_ptr<Session>> sessions_;
    std::list<Repeated> repeated_;
    std::uint16_t port_ = 0;
    bool accepting_ = false;
    bool accept_again_ = false;
};

Expected<void> Loop::bind(const std::string& host, std::uint16_t port) {
    Failure failure;
    tcp::resolver resolver(context_);
    const auto found =
        resolver.resolve(host, std::to_string(port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, failure);
    if (failure || found.empty())
        return fail_field(ErrorKind::invalid, "host", "{}: {}", host, failure.message());
    const tcp::endpoint endpoint = *found.begin();
    acceptor_.open(endpoint.protocol(), failure);
    if (!failure) acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
    if (!failure) acceptor_.bind(endpoint, failure);
    if (!failure) acceptor_.listen(asio::socket_base::max_listen_connections, failure);
    if (failure)
        return fail_field(ErrorKind::io, "port", "{}: cannot listen on {} ({})", port, host,
                          failure.message());
    port_ = acceptor_.local_endpoint().port();
    accepting_ = true;
    accept();
    every(kTimeCheck, [this] { check_times(); });
    return {};
}

// An exception is one connection's trouble (out of memory, mostly), not the others'.
void Loop::run() {
    for (;;) {
        try {
            context_.run();
            return;
        } catch (const std::exception& error) {
            room_->handler.failed(error.what());
        }
    }
}

void Loop::accept() {
    acceptor_.async_accept(
        [this](Failure failure, tcp::socket socket) { on_accepted(failure, std::move(socket)); });
}

void Loop::on_accepted(Failure failure, tcp::socket socket) {
    if (!accepting_) return;
    if (failure) {  // out of descriptors, mostly: the next look at the times tries again
        accept_again_ = true;
        return;
    }
    const bool full = room_->connections >= room_->limits.max_connections;
    const auto session = std::make_shared<Session>(std::move(socket), room_);
    sessions_.push_back(session);
    if (full)
        session->refuse();
    else
        session->start();
    accept();
}

void Loop::check_times() {
    if (accepting_ && std::exchange(accept_again_, false)) accept();
    const auto now = Session::Clock::now();
    std::erase_if(sessions_, [](const auto& session) { return session.expired(); });
    for (std::size_t i = 0; i < sessions_.size(); ++i)
        if (const auto session = sessions_[i].lock()) session->check_time(now);
}

void Loop::every(std::chrono::milliseconds interval, std::function<void()> call) {
    repeat(
        repeated_.emplace_back(Repeated{asio::steady_timer(context_), interval, std::move(call)}));
}

void Loop::repeat(Repeated& repeated) {
    repeated.timer.expires_after(repeated.interval);
    repeated.timer.async_wait([this, &repeated](Failure failure) {
        if (failure) return;
        repeated.call();
        repeat(repeated);
    });
}

void Loop::stop() {
    accepting_ = false;
    Failure ignored;
    acceptor_.close(ignored);
    for (const auto& weak : std::exchange(sessions_, {}))
        if (const auto session = weak.lock()) session->close();
    work_.reset();
    context_.stop();
}

}  // namespace

Expected<std::shared_ptr<HttpServer>> HttpServer::listen(const std::string& host,
                                                         std::uint16_t port,
                                                         const HttpLimits& limits,
                                                         HttpHandler& handler) {
    auto loop = std::make_shared<Loop>(limits, handler);
    ESPALIER_RETURN_IF_ERROR(loop->bind(host, port));
    return loop;
}

}  // namespace espalier::server
