// SPDX-License-Identifier: Apache-2.0
// A model of this process behind a server of its own, on a port of 127.0.0.1 that asks for a key
// no other process has: so what talks to a model talks to it as to any server.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "cli/engine_flags.hpp"
#include "client/http_client.hpp"
#include "runtime/runtime.hpp"
#include "server/server.hpp"

namespace espalier::cli {

class LocalServer {
  public:
    // Reads the weights behind a progress bar. chat_template: a file; empty: the model's own.
    static Expected<std::unique_ptr<LocalServer>> open(const std::string& model,
                                                       const EngineFlags& flags,
                                                       const std::string& chat_template);
    ~LocalServer();
    LocalServer(const LocalServer&) = delete;
    LocalServer& operator=(const LocalServer&) = delete;

    client::ServerAddress address() const;

  private:
    LocalServer();

    const std::string key_;
    std::FILE* log_file_;
    server::Log log_;
    std::optional<runtime::Runtime> runtime_;
    std::unique_ptr<server::Server> server_;  // goes before the runtime
};

}  // namespace espalier::cli
