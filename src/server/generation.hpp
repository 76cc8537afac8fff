// SPDX-License-Identifier: Apache-2.0
// One generation request from its body to its last byte. The body is parsed, tokenised and handed
// to the engine by a worker; between these a grammar is compiled, for which no worker waits; all
// else happens on the I/O thread: the engine's wake-ups are posted there, updates are taken when
// the last ones have left, and a client that goes ends its outputs before the next step.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "server/api/api_form.hpp"
#include "server/http.hpp"
#include "server/keys.hpp"
#include "server/log.hpp"
#include "server/metrics.hpp"
#include "server/output_plan.hpp"
#include "server/served_model.hpp"
#include "server/workers.hpp"

namespace espalier::server {

// Context that generations share; outlives them.
struct GenerationContext {
    std::shared_ptr<HttpServer> http;
    Workers& workers;
    Metrics& metrics;
    Log& log;
    std::chrono::nanoseconds request_time{0};  // 0: as long as it takes
    ToolLimits tools = {};
    bool drops_billing_header = true;  // of /v1/messages
    bool least_whitespace = false;     // in structured JSON
};

// Each unknown field is logged, once per server.
void warn_of_unknown_fields(const GenerationRequest& request, Log& log);
// 404: the request names a model that is not here.
std::optional<ApiError> check_model(const ServedModel& model, const GenerationRequest& request);

// The asking key, and the exchange's name.
struct Caller {
    std::shared_ptr<const ApiKey> key = {};  // null: none was needed
    std::string request_id = {}, traceparent = {};
};

class Generation final : public ExchangeListener, public std::enable_shared_from_this<Generation> {
  public:
    using Clock = std::chrono::steady_clock;
    // done is called once, when the exchange is over.
    Generation(const GenerationContext& context, std::shared_ptr<const ServedModel> model, Api api,
               Caller caller, std::shared_ptr<Exchange> exchange,
               std::function<void(const Generation*)> done);

    void start(std::string body);
    // A comment to a client that has heard nothing for this long, so that no proxy takes the
    // connection for dead.
    void ping_if_silent(Clock::time_point now);

    void written() override { pump(); }
    void closed() override;

  private:
    // Result of a worker for a body.
    struct Prepared {
        std::optional<ApiError> error;
        GenerationRequest request;
        OutputPlan plan;
        std::vector<EchoedPrompt> prompts;
        std::vector<engine::Stream> streams;
        std::int64_t prompt_tokens = 0;  // of all prompts
    };
    // Runs the step unless one before it was refused; what it throws is an error of the server.
    void attempt(Prepared& prepared, const std::function<Expected<void>()>& step);
    Expected<void> prepare(const std::string& body, Prepared& prepared);
    Expected<void> encode_prompts(Prepared& prepared);
    // A prompt of these tokens leaves room for an output; false: the error is set.
    bool fits(Prepared& prepared, TokenCount tokens, const std::string& field) const;
    void compile(std::shared_ptr<Prepared> prepared);
    void submit_all(std::shared_ptr<Prepared> prepared);
    // Reserves the tokens that the request may use of its key's.
    Expected<void> hold_tokens(const Prepared& prepared);
    void hand_over(std::shared_ptr<Prepared> prepared);
    std::function<void()> wake_up();
    Expected<void> submit(Prepared& prepared);
    Expected<void> submit_prompt(Prepared& prepared, std::size_t prompt);
    static std::string field_of_prompt(const GenerationRequest& request, std::size_t prompt);
    void begin(Prepared& prepared);
    void pump();
    void take_updates(std::string& out);
    void observe(std::size_t prompt, Clock::time_point now);
    void succeed(std::string out);
    void fail(const ApiError& error, std::string out);
    void over();

    const GenerationContext& context_;
    const std::shared_ptr<const ServedModel> model_;
    const ApiForm& form_;
    const char* const path_;
    const Caller caller_;
    KeyHold hold_;
    std::shared_ptr<Exchange> exchange_;
    std::function<void(const Generation*)> done_;
    std::vector<engine::Stream> streams_;  // by prompt
    std::unique_ptr<ReplyWriter> reply_;
    engine::Updates updates_;
    bool stream_ = false;
    RequestShape shape_;
    // Per choice, for the metrics.
    struct Seen {
        Clock::time_point last;
        std::int64_t tokens = 0;
        bool ended = false;
    };
    std::vector<Seen> seen_;
    std::int64_t prompt_tokens_ = 0;
    Clock::time_point last_write_;
};

}  // namespace espalier::server
