// SPDX-License-Identifier: Apache-2.0
#include "cli/local_server.hpp"

#include <fmt/format.h>

#include <random>
#include <utility>

#include "cli/pull.hpp"

namespace espalier::cli {
namespace {

std::string random_key() {
    std::random_device random;  // the system's generator
    std::string key;
    for (int i = 0; i < 8; ++i) key += fmt::format("{:08x}", random());
    return key;
}

}  // namespace

// Its one client hears of every error in the answer: the log has no reader.
LocalServer::LocalServer()
    : key_(random_key()),
      log_file_(std::fopen("/dev/null", "w")),
      log_(server::Log::Format::text, log_file_ == nullptr ? stderr : log_file_) {}

LocalServer::~LocalServer() {
    if (server_) server_->shut_down();
    server_.reset();
    if (runtime_) static_cast<void>(runtime_->stop());  // keeps what speculation has learnt
    runtime_.reset();
    if (log_file_ != nullptr) std::fclose(log_file_);
}

Expected<std::unique_ptr<LocalServer>> LocalServer::open(const std::string& model,
                                                         const EngineFlags& flags,
                                                         const std::string& chat_template) {
    ESPALIER_ASSIGN_OR_RETURN(const std::string found, fetched_model(model));
    ESPALIER_ASSIGN_OR_RETURN(const std::string draft, fetched_model(flags.draft));
    runtime::RuntimeOptions wanted{
        .model = found, .draft = draft, .load = flags.load, .engine = flags.engine};
    if (wanted.engine.sizes.rows == 0) wanted.engine.sizes.rows = 1;
    std::unique_ptr<LocalServer> local(new LocalServer);
    {
        ProgressBar bar("loading");
        wanted.load.progress = [&](std::uint64_t done, std::uint64_t total) {
            bar.update(done, total);
        };
        wanted.load.say = [](const std::string& what) {
            fmt::print(stderr, "espalier: {}\n", what);
        };
        ESPALIER_ASSIGN_OR_RETURN(runtime::Runtime opened, runtime::Runtime::open(wanted));
        local->runtime_.emplace(std::move(opened));
    }
    server::ServerOptions options;
    options.port = 0;
    options.api_key = {local->key_};
    options.chat_template = chat_template;
    options.drain_seconds = 0;
    options.request_seconds = 0;
    ESPALIER_ASSIGN_OR_RETURN(local->server_, server::Server::start(options, local->log_));
    ESPALIER_RETURN_IF_ERROR(local->server_->serve(*local->runtime_));
    return local;
}

client::ServerAddress LocalServer::address() const {
    return {.url = {.host = "127.0.0.1", .port = std::to_string(server_->port()), .path = {}},
            .api_key = key_};
}

}  // namespace espalier::cli
