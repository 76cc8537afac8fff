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
        : room_(std::make_shared<SessionRoom>(SessionRoom{limits, handler})) {
        every(kTimeCheck, [this] { check_times(); });
    }
    ~Loop() override { stop(); }

    Expected<std::uint16_t> bind(const std::string& host, std::uint16_t port, bool is_monitor);
    std::uint16_t port() const override { return port_; }
    void set_port(std::uint16_t port) { port_ = port; }
    Expected<std::uint16_t> listen_for_monitors(const std::string& host,
                                                std::uint16_t port) override {
        auto bound = bind(host, port, true);
        if (!bound && bound.error().field == "host")
            return tl::unexpected<Error>(with_field(std::move(bound.error()), "monitor_host"));
        if (!bound)
            return tl::unexpected<Error>(with_field(std::move(bound.error()), "monitor_port"));
        return bound;
    }
    void use_tls(tls::Context context) override { tls_ = std::move(context); }
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

    struct Acceptor {
        tcp::acceptor socket;
        bool is_monitor;
        bool again = false;  // to be tried at the next look at the times
    };
    void accept(Acceptor& acceptor);
    void on_accepted(Acceptor& acceptor, Failure failure, tcp::socket socket);
    void check_times();
    void repeat(Repeated& repeated);

    asio::io_context context_{1};
    asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
    std::list<Acceptor> acceptors_;
    tls::Context tls_;
    std::shared_ptr<SessionRoom> room_;
    std::vector<std::weak_ptr<Session>> sessions_;
    std::list<Repeated> repeated_;
    std::uint16_t port_ = 0;
    bool accepting_ = true;
};

Expected<std::uint16_t> Loop::bind(const std::string& host, std::uint16_t port, bool is_monitor) {
    Failure failure;
    tcp::resolver resolver(context_);
    const auto found =
        resolver.resolve(host, std::to_string(port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, failure);
    if (failure || found.empty())
        return fail_field(ErrorKind::invalid, "host", "{}: {}", host, failure.message());
    const tcp::endpoint endpoint = *found.begin();
    tcp::acceptor socket(context_);
    socket.open(endpoint.protocol(), failure);
    if (!failure) socket.set_option(tcp::acceptor::reuse_address(true), failure);
    if (!failure) socket.bind(endpoint, failure);
    if (!failure) socket.listen(asio::socket_base::max_listen_connections, failure);
    if (failure == boost::system::errc::address_not_available)
        return fail_field(ErrorKind::invalid, "host", "{}: {}", host, failure.message());
    if (failure)
        return fail_field(ErrorKind::io, "port", "{}: cannot listen on {} ({})", port, host,
                          failure.message());
    const std::uint16_t bound = socket.local_endpoint().port();
    accept(acceptors_.emplace_back(Acceptor{std::move(socket), is_monitor}));
    return bound;
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

void Loop::accept(Acceptor& acceptor) {
    acceptor.socket.async_accept([this, &acceptor](Failure failure, tcp::socket socket) {
        on_accepted(acceptor, failure, std::move(socket));
    });
}

void Loop::on_accepted(Acceptor& acceptor, Failure failure, tcp::socket socket) {
    if (!accepting_) return;
    if (failure) {  // out of descriptors, mostly: the next look at the times tries again
        acceptor.again = true;
        return;
    }
    const bool full = room_->connections >= room_->limits.max_connections;
    const auto session = std::make_shared<Session>(
        std::move(socket), acceptor.is_monitor ? nullptr : tls_, room_, acceptor.is_monitor);
    sessions_.push_back(session);
    if (full)
        session->refuse();
    else
        session->start();
    accept(acceptor);
}

void Loop::check_times() {
    for (Acceptor& acceptor : acceptors_)
        if (accepting_ && std::exchange(acceptor.again, false)) accept(acceptor);
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
    for (Acceptor& acceptor : acceptors_) acceptor.socket.close(ignored);
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
    ESPALIER_ASSIGN_OR_RETURN(const std::uint16_t bound, loop->bind(host, port, false));
    loop->set_port(bound);
    return loop;
}

}  // namespace espalier::server
