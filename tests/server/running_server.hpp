// SPDX-License-Identifier: Apache-2.0
// A server on a tiny model of random weights, in the test's own process: so a test can look at the
// engine behind it. The model is written once per process.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "runtime/runtime.hpp"
#include "server/client.hpp"
#include "server/server.hpp"

namespace espalier::server::test {

// The directory of the model.
const std::string& tiny_model();
// The same with the markers of reasoning and calls among its tokens, and a template in the form of
// DeepSeek-V3.1's: tools, calls, and a reasoning that `thinking` opens.
const std::string& tool_model();

// Options with a free port.
ServerOptions test_options();

class RunningServer {
  public:
    struct Setup {
        ServerOptions server = test_options();
        runtime::SizeOptions sizes = {.rows = 8, .pages = 600, .max_model_len = 8192};
        std::vector<std::string> speculate = {"ngram"};
        bool load = true;  // false: the model never comes
        std::string model = tiny_model();
    };
    RunningServer() : RunningServer(Setup{}) {}
    explicit RunningServer(const Setup& setup);
    ~RunningServer();

    std::uint16_t port() const { return server->port(); }
    Client client() const { return Client(port()); }
    Client secure_client() const { return Client::secure(port()); }
    engine::Engine& engine() { return runtime->engine(); }
    engine::EngineStatus status() { return engine().status(); }
    // Waits until the engine's status is so; false: it never is.
    bool reaches(const std::function<bool(const engine::EngineStatus&)>& condition);
    // No request waits or runs, and none holds a page.
    bool becomes_idle();
    std::string log_text();

    // A body for /v1/completions.
    static nlohmann::json completion(const std::string& prompt, int max_tokens = 8);

    std::FILE* log_file;
    Log log;
    std::unique_ptr<runtime::Runtime> runtime;
    std::unique_ptr<Server> server;
};

}  // namespace espalier::server::test
