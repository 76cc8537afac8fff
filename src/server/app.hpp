// SPDX-License-Identifier: Apache-2.0
// What each path does. The model comes when it is loaded; until then, and once the server drains,
// what needs it is answered with 503. Belongs to the I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "server/generation.hpp"
#include "server/guard.hpp"
#include "server/http.hpp"
#include "server/log.hpp"
#include "server/metrics.hpp"
#include "server/options.hpp"
#include "server/served_model.hpp"
#include "server/workers.hpp"

namespace espalier::server {

class App final : public HttpHandler {
  public:
    App(const ServerOptions& options, Log& log);

    // Before the I/O thread runs.
    void attach(std::shared_ptr<HttpServer> http);
    void set_model(std::shared_ptr<const ServedModel> model) { model_ = std::move(model); }
    const std::shared_ptr<const ServedModel>& model() const { return model_; }
    // Takes no generation from now on. idle is called when the last one is over.
    void start_draining(std::function<void()> idle);
    void ping_silent();
    // Logs, once, that the trace's file can no longer be written.
    void watch_trace();

    std::optional<HttpResponse> check_head(const HttpRequest& head) override;
    void handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
    HttpResponse refusal(int status, const std::string& message, const std::string& path) override;
    bool allows_origin(const std::string& origin) const override {
        return !origin.empty() && guard_.allows_origin(origin);
    }
    void finished(const Access& access) override;
    void handshake_failed(const std::string& client, const std::string& reason) override;
    void failed(const char* what) override;
    // Reads the file of keys, if there is one, again; an error leaves those of before.
    Expected<void> load_keys();
    // Waits for jobs that workers have begun.
    void stop_workers() { workers_.stop(); }

  private:
    struct Route {
        const char* method;
        const char* path;
        bool is_open;      // needs no key
        bool needs_model;  // 503 until it is there
        void (App::*answer)(HttpRequest&, const std::shared_ptr<Exchange>&);
        const char* summary;
        void (*describe)(nlohmann::json& schema) = nullptr;  // the body
    };
    static const Route kRoutes[];
    static bool is_probe(const Route& route);
    static const Route* find_route(std::string_view method, std::string_view path);
    // A path as metrics name it.
    static const char* label_of(std::string_view path);
    // HEAD goes where GET goes; the session keeps the body. So does OPTIONS of a probe, which is
    // what load balancers ask by.
    static const Route* route_of(const HttpRequest& head);

    void health(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void live(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void page(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void openapi(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void version(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void models(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void one_model(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void metrics(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void completions(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void chat(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void messages(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void responses(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void count_tokens(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void apply_template(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void tokenize(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void detokenize(HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    void generate(Api api, HttpRequest& request, const std::shared_ptr<Exchange>& exchange);
    // Runs on a worker; what it returns is sent.
    using Work = std::function<HttpResponse(const ServedModel&, const std::string& body)>;
    void run_work(HttpRequest& request, const std::shared_ptr<Exchange>& exchange, Work work);
    std::optional<HttpResponse> preflight(const HttpRequest& head);
    // True if the request's port offers the route: monitors have a port of their own, or none.
    bool is_offered(const Route& route, const HttpRequest& head) const;
    HttpResponse wrong_method(const HttpRequest& head);
    std::optional<ApiError> unready() const;
    void send(const std::shared_ptr<Exchange>& exchange, const HttpResponse& response);
    HttpResponse counted(const ApiError& error, std::string_view path);

    const ServerOptions options_;
    Log& log_;
    Guard guard_;
    Metrics metrics_;
    Workers workers_;
    std::optional<GenerationContext> context_;
    std::shared_ptr<const ServedModel> model_;
    std::unordered_map<const Generation*, std::shared_ptr<Generation>> active_;
    bool draining_ = false;
    bool trace_failed_ = false;
    std::function<void()> idle_;
};

}  // namespace espalier::server
