// SPDX-License-Identifier: Apache-2.0
#include "server/server.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <future>
#include <utility>

namespace espalier::server {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kLineInterval{10};
// For the last bytes of requests that were ended.
constexpr std::chrono::seconds kFlushTime{2};

std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

}  // namespace

Expected<std::unique_ptr<Server>> Server::start(const ServerOptions& options, Log& log) {
    ESPALIER_RETURN_IF_ERROR(check_options(options));
    std::unique_ptr<Server> server(new Server(options, log));
    HttpLimits limits;
    limits.max_connections = options.max_connections;
    limits.max_header_bytes = options.max_header_bytes;
    limits.max_body_bytes = options.max_body_bytes;
    limits.max_bodies_bytes = std::max(limits.max_bodies_bytes, options.max_body_bytes);
    limits.idle_timeout = milliseconds(options.idle_seconds);
    limits.read_timeout = milliseconds(options.read_seconds);
    limits.write_timeout = milliseconds(options.write_seconds);
    ESPALIER_ASSIGN_OR_RETURN(
        server->http_, HttpServer::listen(options.host, static_cast<std::uint16_t>(options.port),
                                          limits, server->app_));
    ESPALIER_RETURN_IF_ERROR(server->load_tls());
    if (options.monitor_port >= 0) {
        ESPALIER_ASSIGN_OR_RETURN(
            server->monitor_port_,
            server->http_->listen_for_monitors(options.monitor_host,
                                               static_cast<std::uint16_t>(options.monitor_port)));
    }
    if (!options.kv_events_endpoint.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(
            server->kv_events_,
            KvEvents::start({.endpoint = options.kv_events_endpoint,
                             .replay_endpoint = options.kv_events_replay_endpoint,
                             .topic = options.kv_events_topic},
                            log));
    }
    ESPALIER_RETURN_IF_ERROR(server->app_.load_keys());
    server->app_.attach(server->http_);
    server->http_->every(kLineInterval, [self = server.get()] { self->log_throughput(); });
    server->http_->every(1s, [self = server.get()] {
        self->app_.ping_silent();
        self->app_.watch_trace();
    });
    server->io_ = std::thread([self = server.get()] { self->http_->run(); });
    return server;
}

void Server::reload() {
    http_->post([this] {
        for (const auto& read : {app_.load_keys(), load_tls()})
            if (!read) log_.error("not read again: " + read.error().message);
    });
}

Expected<void> Server::load_tls() {
    if (options_.tls_cert.empty()) return {};
    ESPALIER_ASSIGN_OR_RETURN(const tls::Context context,
                              tls::server_context(options_.tls_cert, options_.tls_key));
    if (const auto warning = tls::certificate_warning(context)) log_.warning(*warning);
    http_->use_tls(context);
    log_.info(fmt::format("TLS with the certificate of {}", options_.tls_cert));
    return {};
}

Server::~Server() {
    if (!io_.joinable()) return;
    shut_down();
}

Expected<void> Server::serve(runtime::Runtime& runtime) {
    ESPALIER_ASSIGN_OR_RETURN(model_, ServedModel::make(runtime, options_));
    if (const output::ToolFormat* tools = model_->formats().tools)
        if (const auto marker = output::missing_marker(*tools, model_->tokenizer()))
            log_.warning(fmt::format(
                "--tool-format {}: the tokenizer has no token {}, so this model was not trained on "
                "such calls",
                tools->name, *marker));
    http_->post([this, model = model_] { app_.set_model(model); });
    return {};
}

void Server::log_throughput() {
    const std::shared_ptr<const ServedModel>& model = app_.model();
    if (!model) return;
    const double seconds = std::chrono::duration<double>(kLineInterval).count();
    for (const std::string& line : throughput_.lines(model->engine().status(), seconds))
        log_.info(line);
}

bool Server::wait_until_idle(std::chrono::duration<double> timeout) {
    std::unique_lock lock(mutex_);
    return idle_changed_.wait_for(lock, timeout, [this] { return idle_; });
}

// Waits until the last answers have left.
void Server::flush() {
    const auto end = std::chrono::steady_clock::now() + kFlushTime;
    while (std::chrono::steady_clock::now() < end) {
        std::promise<std::int64_t> answering;
        http_->post([&] { answering.set_value(http_->answering()); });
        if (answering.get_future().get() == 0) return;
        std::this_thread::sleep_for(5ms);
    }
}

bool Server::shut_down() {
    if (std::exchange(down_, true)) return true;
    http_->post([this] {
        app_.start_draining([this] {
            const std::lock_guard lock(mutex_);
            idle_ = true;
            idle_changed_.notify_all();
        });
    });
    const bool finished = wait_until_idle(std::chrono::duration<double>(options_.drain_seconds));
    if (!finished && model_) {
        model_->engine().stop();  // ends what is left, and its clients are told
        wait_until_idle(kFlushTime);
    }
    flush();
    http_->post([this] {
        http_->stop();
        app_.set_model(nullptr);
    });
    io_.join();
    if (model_) model_->stop_compiling();  // whose threads hand over to workers
    app_.stop_workers();
    model_.reset();
    return finished;
}

void raise_file_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace espalier::server
