// SPDX-License-Identifier: Apache-2.0
#include "server/app.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "espalier/version.hpp"
#include "server/api/count_tokens.hpp"
#include "server/openapi.hpp"
#include "server/page.hpp"
#include "server/token_routes.hpp"

namespace espalier::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A path that ends with * stands for everything that begins so.
bool matches(std::string_view pattern, std::string_view path) {
    if (!pattern.ends_with('*')) return pattern == path;
    pattern.remove_suffix(1);
    return path.size() > pattern.size() && path.starts_with(pattern);
}

// %2F in a model's name.
std::string percent_decoded(std::string_view text) {
    std::string made;
    for (std::size_t i = 0; i < text.size(); ++i) {
        unsigned value = 0;
        if (text[i] == '%' && i + 2 < text.size() &&
            std::from_chars(&text[i + 1], &text[i + 1] + 2, value, 16).ptr == &text[i + 1] + 2) {
            made += static_cast<char>(value);
            i += 2;
        } else {
            made += text[i];
        }
    }
    return made;
}

ApiError no_route(const HttpRequest& head) {
    if (head.path.starts_with("/v1/responses/"))
        return {.status = 404,
                .message = head.path + ": this server keeps no responses",
                .code = "not_found"};
    return {.status = 404, .message = head.path + ": no such path", .code = "not_found"};
}

ApiError key_is_busy(const ApiKey& key) {
    return {.status = 429,
            .message = fmt::format("this API key may have {} requests at a time", key.max_requests),
            .type = "rate_limit_error",
            .code = "rate_limit_exceeded",
            .retry_after_seconds = 1};
}

// The fields of an access log's line; a path is cut where it is longer than any of ours.
std::vector<Log::Field> log_fields(const Access& access) {
    constexpr std::size_t kMaxPathBytes = 256;
    std::vector<Log::Field> fields = {{"client", access.client},
                                      {"method", access.method},
                                      {"path", access.path.substr(0, kMaxPathBytes)},
                                      {"status", std::to_string(access.status), true},
                                      {"bytes", std::to_string(access.bytes), true},
                                      {"seconds", fmt::format("{:.6f}", access.seconds), true},
                                      {"request_id", access.request_id}};
    if (!access.key.empty()) fields.push_back({"key", access.key});
    if (!access.traceparent.empty()) {
        fields.push_back({"trace_id", access.traceparent.substr(3, 32)});
        fields.push_back({"parent_id", access.traceparent.substr(36, 16)});
    }
    for (const auto& [name, tokens] : {std::pair("prompt_tokens", access.prompt_tokens),
                                       std::pair("output_tokens", access.output_tokens)})
        if (tokens) fields.push_back({name, std::to_string(*tokens), true});
    return fields;
}

template <Expected<std::string> (*make_body)(const ServedModel&, const std::string&)>
HttpResponse answered_by(const ServedModel& model, const std::string& body) {
    auto made = make_body(model, body);
    if (!made) return error_response(api_error(made.error()));
    return {.body = std::move(*made)};
}

OrderedJson model_json(const ServedModel& model, const std::string& name) {
    const ModelFacts& facts = model.facts();
    return {{"id", name},
            {"object", "model"},
            {"created", model.created()},
            {"owned_by", "espalier"},
            {"root", model.name()},
            {"parent", nullptr},
            {"max_model_len", model.max_model_len()},
            {"espalier",
             {{"architecture", facts.architecture},
              {"weights", facts.weights},
              {"cache", facts.kv_format},
              {"device", fmt::format("{}, {}", facts.backend, facts.variant)},
              {"drafters", model.engine().status().drafters}}}};
}

}  // namespace

const App::Route App::kRoutes[] = {
    {"GET", "/", true, false, &App::page, "The page"},
    {"GET", "/health", true, false, &App::health, "Readiness"},
    {"GET", "/v1/health", true, false, &App::health, "Readiness"},
    {"GET", "/ping", true, false, &App::health, "Readiness"},
    {"GET", "/livez", true, false, &App::live, "Liveness"},
    {"GET", "/version", false, false, &App::version, "The version"},
    {"GET", "/openapi.json", false, false, &App::openapi, "This description"},
    {"GET", "/metrics", false, false, &App::metrics, "Metrics as Prometheus' text"},
    {"GET", "/v1/models", false, true, &App::models, "The models"},
    {"GET", "/v1/models/*", false, true, &App::one_model, "One model"},
    {"POST", path_of(Api::completions), false, true, &App::completions, "Continue texts",
     form_of(Api::completions).describe},
    {"POST", path_of(Api::chat), false, true, &App::chat, "Answer a chat",
     form_of(Api::chat).describe},
    {"POST", path_of(Api::responses), false, true, &App::responses,
     "Answer items, as OpenAI's newer API", form_of(Api::responses).describe},
    {"POST", path_of(Api::messages), false, true, &App::messages,
     "Answer messages, as Anthropic's API", form_of(Api::messages).describe},
    {"POST", "/v1/messages/count_tokens", false, true, &App::count_tokens,
     "Count the tokens of messages", describe_count_tokens},
    {"POST", "/apply-template", false, true, &App::apply_template, "Render a chat",
     describe_apply_template},
    {"POST", "/tokenize", false, true, &App::tokenize, "The tokens of a text or a chat",
     describe_tokenize},
    {"POST", "/detokenize", false, true, &App::detokenize, "The text of tokens",
     describe_detokenize},
};

App::App(const ServerOptions& options, Log& log)
    : options_(options),
      log_(log),
      guard_({options.api_key, options.allowed_host, options.allowed_origin}),
      workers_(static_cast<int>(options.workers)) {}

void App::attach(std::shared_ptr<HttpServer> http) {
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(
        std::chrono::duration<double>(options_.request_seconds));
    context_.emplace(
        GenerationContext{std::move(http),
                          workers_,
                          metrics_,
                          log_,
                          time,
                          {.functions = options_.max_tools, .bytes = options_.max_tools_bytes},
                          options_.billing_header == "drop",
                          options_.json_whitespace == "least"});
}

void App::start_draining(std::function<void()> idle) {
    draining_ = true;
    idle_ = std::move(idle);
    if (active_.empty() && idle_) idle_();
}

void App::ping_silent() {
    const auto now = Generation::Clock::now();
    for (const auto& [key, generation] : active_) generation->ping_if_silent(now);
}

void App::watch_trace() {
    if (trace_failed_ || !model_) return;
    const auto trace = model_->trace_status();
    if (!trace || trace->failure.empty()) return;
    trace_failed_ = true;
    log_.error(fmt::format("the trace ends here: {}", trace->failure));
}

Expected<void> App::load_keys() {
    if (options_.api_key_file.empty()) return {};
    if (const auto loaded = guard_.load_keys(options_.api_key_file); !loaded)
        return fail_field(loaded.error().kind, "api_key_file", "{}", loaded.error().message);
    log_.info(fmt::format("{} API keys, with those of {}", guard_.keys(), options_.api_key_file));
    return {};
}

// Requests of probes and of the page, which come by the thousand, only where all is wanted.
void App::finished(const Access& access) {
    if (options_.access_log == "off") return;
    const Route* route = find_route("GET", access.path);
    const bool is_quiet = route != nullptr && access.status < 400 &&
                          (route->is_open || route->answer == &App::metrics);
    const Log::Level level = is_quiet ? Log::Level::debug : Log::Level::info;
    if (log_.writes(level)) log_.write(level, "request", log_fields(access));
}

void App::handshake_failed(const std::string& client, const std::string& reason) {
    if (log_.writes(Log::Level::debug))
        log_.write(Log::Level::debug, "no TLS", {{"client", client}, {"reason", reason}});
}

void App::failed(const char* what) {
    log_.error(fmt::format("an exception on the I/O thread: {}", what));
}

// ---- who may come in ----------------------------------------------------------------------------

const App::Route* App::find_route(std::string_view method, std::string_view path) {
    for (const Route& route : kRoutes)
        if (matches(route.path, path) && (method.empty() || method == route.method)) return &route;
    return nullptr;
}

const App::Route* App::route_of(const HttpRequest& head) {
    if (head.method == "HEAD") return find_route("GET", head.path);
    if (head.method != "OPTIONS") return find_route(head.method, head.path);
    const Route* route = find_route("GET", head.path);
    return route != nullptr && is_probe(*route) ? route : nullptr;
}

bool App::is_probe(const Route& route) {
    return route.answer == &App::health || route.answer == &App::live;
}

bool App::is_offered(const Route& route, const HttpRequest& head) const {
    if (head.is_monitor) return is_probe(route) || route.answer == &App::metrics;
    return options_.monitor_port < 0 || route.answer != &App::metrics;
}

std::optional<ApiError> App::unready() const {
    if (draining_) return unavailable("the server is shutting down");
    if (!model_) return unavailable("Loading model");
    return std::nullopt;
}

const char* App::label_of(std::string_view path) {
    const Route* route = find_route({}, path);
    return route != nullptr ? route->path : "other";
}

HttpResponse App::counted(const ApiError& error, std::string_view path) {
    metrics_.count_response(error.status, label_of(path));
    return error_response(error, path);
}

HttpResponse App::refusal(int status, const std::string& message, const std::string& path) {
    ApiError error{.status = status, .message = message};
    if (status == 503) error = unavailable(message);
    return counted(error, path);
}

// A browser asks first, without a key, whether a page may.
std::optional<HttpResponse> App::preflight(const HttpRequest& head) {
    if (head.method != "OPTIONS" || !allows_origin(head.origin)) return std::nullopt;
    if (const auto error = guard_.check(head, true)) return counted(*error, head.path);
    metrics_.count_response(204, label_of(head.path));
    return HttpResponse{.status = 204,
                        .body = {},
                        .headers = {{"Access-Control-Allow-Methods", "GET, POST"},
                                    // * is every header but Authorization; official clients send
                                    // a dozen of their own.
                                    {"Access-Control-Allow-Headers", "Authorization, *"},
                                    {"Access-Control-Max-Age", "600"}}};
}

// The path is there, by another method; or the request asks for just that.
HttpResponse App::wrong_method(const HttpRequest& head) {
    const Route* other = find_route({}, head.path);
    if (other == nullptr && head.path != "*") return counted(no_route(head), head.path);
    const bool asks = head.method == "OPTIONS";
    const std::string_view method = other != nullptr ? other->method : "GET, HEAD, POST";
    HttpResponse response{.status = 204, .body = {}};
    if (asks)
        metrics_.count_response(204, label_of(head.path));
    else
        response = counted(
            {.status = 405, .message = fmt::format("{} wants {}", head.path, method)}, head.path);
    response.headers.emplace_back(
        "Allow", fmt::format("{}, OPTIONS", method == "GET" ? "GET, HEAD" : method));
    return response;
}

std::optional<HttpResponse> App::check_head(const HttpRequest& head) {
    if (auto answer = preflight(head)) return answer;
    const Route* route = route_of(head);
    const bool is_open =
        head.is_monitor || (route != nullptr ? route->is_open : head.method == "OPTIONS");
    if (const auto error = guard_.check(head, is_open)) return counted(*error, head.path);
    if (route != nullptr && !is_offered(*route, head)) return counted(no_route(head), head.path);
    if (route == nullptr) return wrong_method(head);
    if (route->needs_model)
        if (const auto error = unready()) return counted(*error, head.path);
    return std::nullopt;
}

void App::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
    const Route* route = route_of(request);
    // Its head passed, but the model may have gone while the body came.
    if (route->needs_model)
        if (const auto error = unready())
            return send(exchange, error_response(*error, request.path));
    if (const auto key = guard_.key_of(request)) exchange->access().key = key->name;
    (this->*route->answer)(request, exchange);
}

void App::send(const std::shared_ptr<Exchange>& exchange, const HttpResponse& response) {
    metrics_.count_response(response.status, label_of(exchange->access().path));
    exchange->respond(response);
}

// ---- what is answered at once -------------------------------------------------------------------

void App::health(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    if (const auto error = unready()) return send(exchange, error_response(*error));
    const engine::EngineStatus status = model_->engine().status();
    if (status.state == engine::EngineState::failed)
        return send(exchange,
                    error_response(unavailable("the engine is out of order: " + status.failure)));
    send(exchange, {.body = R"({"status":"ok"})"});
}

// Alive while it loads and drains too: a restart would not help then.
void App::live(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    if (!model_) return send(exchange, {.body = R"({"status":"loading"})"});
    const engine::EngineStatus status = model_->engine().status();
    const double age = model_->heartbeat_age_seconds(status);
    if (status.state == engine::EngineState::failed || age > options_.heartbeat_seconds)
        return send(exchange, error_response(unavailable(fmt::format(
                                  "the engine has not come round for {:.0f} seconds{}{}", age,
                                  status.failure.empty() ? "" : ": ", status.failure))));
    send(exchange,
         {.body = OrderedJson({{"status", "ok"}, {"heartbeat_age_seconds", age}}).dump()});
}

// Needs no key: it holds nothing secret, and asks for the key where one is needed. No other page
// may put it into a frame.
void App::page(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    send(exchange, {.content_type = "text/html; charset=utf-8",
                    .body = std::string(page_html()),
                    .headers = {{"Cache-Control", "no-cache"},
                                {"X-Frame-Options", "DENY"},
                                {"X-Content-Type-Options", "nosniff"}}});
}

void App::openapi(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    std::vector<DescribedRoute> routes;
    for (const Route& route : kRoutes)
        routes.push_back({route.method, route.path, route.summary, route.is_open, route.describe});
    send(exchange, {.body = openapi_json(routes)});
}

void App::version(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    send(exchange, {.body = OrderedJson({{"version", ESPALIER_VERSION}}).dump()});
}

void App::models(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    OrderedJson list = OrderedJson::array();
    for (const std::string& name : model_->names()) list.push_back(model_json(*model_, name));
    send(exchange, {.body = OrderedJson({{"object", "list"}, {"data", std::move(list)}}).dump()});
}

void App::one_model(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    const std::string name = percent_decoded(
        std::string_view(request.path).substr(std::string_view("/v1/models/").size()));
    if (!model_->is_called(name))
        return send(exchange, error_response({.status = 404,
                                              .message = "model: '" + name + "' is not here",
                                              .param = "model",
                                              .code = "model_not_found"}));
    send(exchange, {.body = model_json(*model_, name).dump()});
}

void App::metrics(HttpRequest&, const std::shared_ptr<Exchange>& exchange) {
    std::optional<engine::EngineStatus> status;
    ServerFacts facts{.connections = context_->http->connections()};
    facts.process = process_facts();
    if (model_) {
        status = model_->engine().status();
        facts.model = model_->facts();
        facts.experts = model_->expert_bytes();
        facts.trace = model_->trace_status();
        facts.grammars = model_->grammar_status();
    }
    send(exchange, {.content_type = "text/plain; version=0.0.4; charset=utf-8",
                    .body = metrics_.text(metrics_names_of(options_.metrics_names),
                                          status ? &*status : nullptr, facts)});
}

// ---- what takes a while -------------------------------------------------------------------------

void App::completions(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    generate(Api::completions, request, exchange);
}

void App::chat(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    generate(Api::chat, request, exchange);
}

void App::messages(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    generate(Api::messages, request, exchange);
}

void App::responses(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    generate(Api::responses, request, exchange);
}

void App::generate(Api api, HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    const auto key = guard_.key_of(request);
    if (key && !has_room(*key))
        return send(exchange, error_response(key_is_busy(*key), request.path));
    const auto generation = std::make_shared<Generation>(
        *context_, model_, api, Caller{key, request.request_id, request.traceparent}, exchange,
        [this](const Generation* over) {
            active_.erase(over);
            if (draining_ && active_.empty() && idle_) idle_();
        });
    active_.emplace(generation.get(), generation);
    generation->start(std::move(request.body));
}

void App::run_work(HttpRequest& request, const std::shared_ptr<Exchange>& exchange, Work work) {
    workers_.run([this, exchange, model = model_, path = request.path,
                  body = std::move(request.body), work = std::move(work)]() mutable {
        HttpResponse response;
        try {
            response = work(*model, body);
        } catch (const std::exception& error) {
            response = error_response(
                {.status = 500, .message = error.what(), .type = "server_error"}, path);
        }
        body = {};
        context_->http->post(
            [this, exchange = std::move(exchange), response = std::move(response)] {
                exchange->release_body();
                send(exchange, response);
            });
    });
}

void App::count_tokens(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    run_work(request, exchange, [this](const ServedModel& model, const std::string& body) {
        return server::count_tokens(model, body, *context_);
    });
}

void App::tokenize(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    run_work(request, exchange, answered_by<tokenize_body>);
}

void App::apply_template(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    run_work(request, exchange, answered_by<apply_template_body>);
}

void App::detokenize(HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    run_work(request, exchange, answered_by<detokenize_body>);
}

}  // namespace espalier::server
