// SPDX-License-Identifier: Apache-2.0
// A server from its first listening socket to its last byte: the I/O thread, what it answers with,
// and the way down. The model comes later, so that probes are answered while it loads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.hpp"
#include "runtime/runtime.hpp"
#include "server/app.hpp"
#include "server/http.hpp"
#include "server/kv_events.hpp"
#include "server/log.hpp"
#include "server/options.hpp"
#include "server/throughput_line.hpp"

namespace espalier::server {

class Server {
  public:
    // Listens and answers from here on. The log outlives the server.
    static Expected<std::unique_ptr<Server>> start(const ServerOptions& options, Log& log);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    std::uint16_t port() const { return http_->port(); }
    // Port of --monitor-port; none: there is none.
    std::optional<std::uint16_t> monitor_port() const { return monitor_port_; }
    // Publisher of the prefix cache, for the engine's options; null: none was asked for.
    const std::shared_ptr<KvEvents>& kv_events() const { return kv_events_; }
    // Reads again what operators change while it runs: the file of keys, certificate and key of
    // TLS. What is wrong in one of them leaves that as it was. Any thread.
    void reload();
    // The model is there. The runtime outlives the server, or shut_down() comes first.
    Expected<void> serve(runtime::Runtime& runtime);
    // Takes nothing new, lets what runs finish for up to the options' drain_seconds, ends the rest
    // with an error, closes everything. True: all finished by themselves.
    bool shut_down();

  private:
    Server(const ServerOptions& options, Log& log)
        : options_(options), log_(log), app_(options, log) {}
    // Certificate and key as the files are now.
    Expected<void> load_tls();
    void log_throughput();
    void flush();
    bool wait_until_idle(std::chrono::duration<double> timeout);

    const ServerOptions options_;
    Log& log_;
    App app_;
    std::shared_ptr<HttpServer> http_;
    std::optional<std::uint16_t> monitor_port_;
    std::shared_ptr<KvEvents> kv_events_;
    ThroughputLine throughput_;
    std::shared_ptr<const ServedModel> model_;
    std::mutex mutex_;
    std::condition_variable idle_changed_;
    bool idle_ = false;
    bool down_ = false;
    std::thread io_;
};

// Raises the limit of open files as far as the system lets it: every connection is one.
void raise_file_limit();

}  // namespace espalier::server
