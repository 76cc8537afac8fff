// SPDX-License-Identifier: Apache-2.0
#include "server/generation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <random>
#include <utility>

namespace espalier::server {
namespace {

constexpr std::chrono::seconds kSilence{15};

std::uint64_t random_bits() {
    return (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
}

HttpResponse stream_head() {
    return {.content_type = "text/event-stream; charset=utf-8",
            .body = {},
            .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}};
}

}  // namespace

void warn_of_unknown_fields(const GenerationRequest& request, Log& log) {
    for (const std::string& name : request.unknown)
        log.warn_once(
            fmt::format("a request has the field '{}', which is not known here and was ignored",
                        name.substr(0, 80)));
}

std::optional<ApiError> check_model(const ServedModel& model, const GenerationRequest& request) {
    if (model.is_called(request.model)) return std::nullopt;
    return ApiError{.status = 404,
                    .message = fmt::format("model: '{}' is not here; this server has '{}'",
                                           request.model, model.name()),
                    .param = "model",
                    .code = "model_not_found"};
}

Generation::Generation(const GenerationContext& context, std::shared_ptr<const ServedModel> model,
                       Api api, Caller caller, std::shared_ptr<Exchange> exchange,
                       std::function<void(const Generation*)> done)
    : context_(context),
      model_(std::move(model)),
      form_(form_of(api)),
      path_(path_of(api)),
      caller_(std::move(caller)),
      hold_(caller_.key),
      exchange_(std::move(exchange)),
      done_(std::move(done)) {}

void Generation::start(std::string body) {
    exchange_->listen(shared_from_this());
    context_.workers.run([self = shared_from_this(), text = std::move(body)]() mutable {
        auto prepared = std::make_shared<Prepared>();
        self->attempt(*prepared, [&] { return self->prepare(text, *prepared); });
        text = {};
        if (!prepared->error && prepared->plan.grammar)
            self->compile(std::move(prepared));
        else
            self->submit_all(std::move(prepared));
    });
}

// ---- on a worker's thread -----------------------------------------------------------------------

void Generation::attempt(Prepared& prepared, const std::function<Expected<void>()>& step) {
    if (prepared.error) return;
    try {
        const auto done = step();
        if (done || prepared.error) return;
        const engine::EngineState state = model_->engine().status().state;
        if (done.error().kind == ErrorKind::exhausted && state != engine::EngineState::running)
            prepared.error = unavailable(done.error().message);
        else
            prepared.error = api_error(named_as_in_chat(done.error(), prepared.request.api));
    } catch (const std::exception& error) {  // out of memory, or an error of the program
        prepared.error = ApiError{.status = 500, .message = error.what(), .type = "server_error"};
    }
    prepared.streams.clear();
}

// The compiler's thread only hands over. It holds on to nothing that a client who goes gives up.
void Generation::compile(std::shared_ptr<Prepared> prepared) {
    Prepared& all = *prepared;
    if (context_.least_whitespace) {
        all.plan.grammar->specification.any_whitespace = false;
        if (all.plan.grammar->otherwise) all.plan.grammar->otherwise->any_whitespace = false;
    }
    model_->compile(
        *all.plan.grammar, all.request.chat.tools,
        [weak = weak_from_this(), made = std::move(prepared)](grammar::Compiled grammar) mutable {
            const auto self = weak.lock();
            if (!self) return;
            self->context_.workers.run(
                [self, made = std::move(made), grammar = std::move(grammar)]() mutable {
                    self->attempt(*made, [&]() -> Expected<void> {
                        ESPALIER_ASSIGN_OR_RETURN(made->request.engine.grammar, std::move(grammar));
                        return {};
                    });
                    self->submit_all(std::move(made));
                });
        });
}

void Generation::submit_all(std::shared_ptr<Prepared> prepared) {
    attempt(*prepared, [&] { return submit(*prepared); });
    hand_over(std::move(prepared));
}

// The I/O thread is to be the one that lets go of both.
void Generation::hand_over(std::shared_ptr<Prepared> prepared) {
    context_.http->post(
        [kept = shared_from_this(), made = std::move(prepared)] { kept->begin(*made); });
}

Expected<void> Generation::prepare(const std::string& body, Prepared& prepared) {
    ESPALIER_ASSIGN_OR_RETURN(
        prepared.request,
        form_.parse(body, {.generation = model_->defaults(),
                           .drops_billing_header = context_.drops_billing_header}));
    const GenerationRequest& parsed = prepared.request;
    warn_of_unknown_fields(parsed, context_.log);
    prepared.error = check_model(*model_, parsed);
    if (prepared.error) return {};
    ESPALIER_RETURN_IF_ERROR(check_tools(parsed.chat.tools, context_.tools));
    return encode_prompts(prepared);
}

Expected<void> Generation::encode_prompts(Prepared& prepared) {
    GenerationRequest& parsed = prepared.request;
    if (!parsed.prediction.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(parsed.engine.expected_output,
                                  model_->encode_expected(parsed.prediction, "prediction.content"));
    }
    if (is_chat(parsed.api)) {
        ESPALIER_ASSIGN_OR_RETURN(const chat::Rendered rendered, model_->render(parsed.chat));
        if (!fits(prepared, TokenCount{model_->least_tokens(rendered.text), true},
                  prompt_field(parsed.api)))
            return {};
        ESPALIER_ASSIGN_OR_RETURN(
            prepared.plan, plan_chat(parsed, model_->formats(), model_->tokenizer(), rendered));
        ESPALIER_ASSIGN_OR_RETURN(EchoedPrompt prompt, model_->encode(rendered));
        prepared.prompts.push_back(std::move(prompt));
        fits(prepared, TokenCount{std::ssize(prepared.prompts.back().tokens)},
             prompt_field(parsed.api));
        return {};
    }
    prepared.plan.grammar = parsed.grammar;
    for (std::size_t i = 0; i < parsed.prompts.size(); ++i) {
        const std::string field = field_of_prompt(parsed, i);
        const auto* text = std::get_if<std::string>(&parsed.prompts[i]);
        if (text != nullptr &&
            !fits(prepared, TokenCount{model_->least_tokens(*text), true}, field))
            return {};
        ESPALIER_ASSIGN_OR_RETURN(
            EchoedPrompt prompt,
            model_->encode(parsed.prompts[i], parsed.add_special_tokens, field));
        prepared.prompts.push_back(std::move(prompt));
        if (!fits(prepared, TokenCount{std::ssize(prepared.prompts.back().tokens)}, field))
            return {};
    }
    return {};
}

bool Generation::fits(Prepared& prepared, TokenCount tokens, const std::string& field) const {
    const std::int64_t output = prepared.request.max_tokens == 0 ? 0 : 1;
    if (tokens.number + output <= model_->max_model_len()) return true;
    prepared.error = form_.too_long(tokens, model_->max_model_len(), field);
    return false;
}

std::string Generation::field_of_prompt(const GenerationRequest& request, std::size_t prompt) {
    const char* name = prompt_field(request.api);
    return request.prompts.size() > 1 ? fmt::format("{}[{}]", name, prompt) : name;
}

// For the engine's thread, which may call it once more when all here is gone.
std::function<void()> Generation::wake_up() {
    return [weak = weak_from_this(), loop = std::weak_ptr(context_.http)] {
        if (const auto http = loop.lock())
            http->post([weak] {
                if (const auto self = weak.lock()) self->pump();
            });
    };
}

// All prompts, or none: a stream that is dropped is cancelled.
Expected<void> Generation::submit(Prepared& prepared) {
    GenerationRequest& parsed = prepared.request;
    engine::Request& request = parsed.engine;
    request.reasoning = prepared.plan.reasoning;
    if (prepared.plan.keeps_special_tokens) request.output.skip_special_tokens = false;
    if (!parsed.seed_given) request.sampling.seed = random_bits() >> (64 - kDrawnSeedBits);
    request.salt = model_->salt_of(caller_.key ? caller_.key->tenant : 0, parsed.cache_salt);
    request.request_id = caller_.request_id;
    request.traceparent = caller_.traceparent;
    if (context_.request_time.count() > 0)
        request.deadline = model_->engine().now() + context_.request_time.count();
    ESPALIER_RETURN_IF_ERROR(hold_tokens(prepared));
    for (const EchoedPrompt& prompt : prepared.prompts)
        prepared.prompt_tokens += std::ssize(prompt.tokens);
    for (std::size_t i = 0; i < prepared.prompts.size(); ++i)
        ESPALIER_RETURN_IF_ERROR(submit_prompt(prepared, i));
    return {};
}

Expected<void> Generation::hold_tokens(const Prepared& prepared) {
    const engine::Request& request = prepared.request.engine;
    std::int64_t tokens = 0;
    for (const EchoedPrompt& prompt : prepared.prompts) {
        const std::int64_t length = std::ssize(prompt.tokens);
        const std::int64_t room = std::max<std::int64_t>(model_->max_model_len() - length, 0);
        tokens += length + request.choices * std::min(request.output.max_tokens, room);
    }
    return hold_.add_tokens(tokens);
}

Expected<void> Generation::submit_prompt(Prepared& prepared, std::size_t prompt) {
    EchoedPrompt& encoded = prepared.prompts[prompt];
    engine::Request request = prepared.request.engine;
    request.prompt = encoded.tokens;
    auto stream = model_->engine().submit(std::move(request), wake_up());
    if (!stream) {
        Error error = named_as_in_request(std::move(stream.error()), prepared.request);
        const std::string field = field_of_prompt(prepared.request, prompt);
        if (error.field.starts_with("prompt") && field != "prompt")
            error = with_field(std::move(error), field);
        return tl::unexpected<Error>(std::move(error));
    }
    prepared.streams.push_back(std::move(*stream));
    const GenerationRequest& asked = prepared.request;
    if (!asked.echo && !asked.token_ids && !asked.prompt_logprobs) encoded = {};
    return {};
}

// ---- on the I/O thread --------------------------------------------------------------------------

void Generation::begin(Prepared& prepared) {
    if (!exchange_) return;  // the client has gone meanwhile, and so do the streams
    exchange_->release_body();
    if (prepared.error) return fail(*prepared.error, {});
    const GenerationRequest& request = prepared.request;
    stream_ = request.stream;
    prompt_tokens_ = prepared.prompt_tokens;
    shape_ = {.choices = request.engine.choices, .max_tokens = request.max_tokens.value_or(0)};
    seen_.assign(prepared.streams.size() * static_cast<std::size_t>(request.engine.choices),
                 {Clock::now()});
    streams_ = std::move(prepared.streams);
    reply_ = form_.make_reply(
        {.request = request,
         .id_digits = fmt::format("{:016x}{:016x}", random_bits(), random_bits()),
         .created = std::time(nullptr),
         .model = model_->name(),
         .drafters = request.speculation_report ? model_->engine().status().drafters
                                                : std::vector<std::string>{},
         .drafter_states = request.speculation_report
                               ? engine::drafter_states(model_->engine().status())
                               : std::vector<std::string_view>{},
         .parser = prepared.plan.parser,
         .tokenizer = model_->tokenizer(),
         .prompts = std::move(prepared.prompts)});
    if (stream_) {
        exchange_->start_stream(stream_head());
        std::string first;
        reply_->begin(first);
        exchange_->write(std::move(first));
        last_write_ = Clock::now();
    }
    pump();
}

void Generation::pump() {
    if (!exchange_ || !reply_ || exchange_->writing()) return;
    std::string out;
    take_updates(out);
    if (reply_->failure()) return fail(*reply_->failure(), std::move(out));
    if (reply_->complete()) return succeed(std::move(out));
    if (out.empty()) return;
    last_write_ = Clock::now();
    exchange_->write(std::move(out));
}

void Generation::take_updates(std::string& out) {
    const Clock::time_point now = Clock::now();
    for (std::size_t prompt = 0; prompt < streams_.size(); ++prompt) {
        const auto poll = streams_[prompt].next_within(updates_, std::chrono::nanoseconds(0));
        if (poll != engine::Mailbox::Poll::updated) continue;
        observe(prompt, now);
        reply_->add(prompt, updates_, out);
    }
}

void Generation::observe(std::size_t prompt, Clock::time_point now) {
    for (std::size_t i = 0; i < updates_.choices.size(); ++i) {
        const engine::ChoiceUpdate& update = updates_.choices[i];
        Seen& seen = seen_[prompt * updates_.choices.size() + i];
        const std::int64_t tokens = update.usage.completion_tokens;
        if (seen.ended) continue;
        if (seen.tokens > 0)
            context_.metrics.observe_gap(std::chrono::duration<double>(now - seen.last).count(),
                                         tokens - seen.tokens);
        if (tokens > seen.tokens) seen.last = now;
        seen.tokens = tokens;
        seen.ended = update.ended;
        if (update.ended) context_.metrics.observe_choice(update);
    }
}

void Generation::succeed(std::string out) {
    reply_->end(out);
    std::int64_t longest = 0;
    for (const Seen& seen : seen_) longest = std::max(longest, seen.tokens);
    context_.metrics.observe_request(shape_, longest);
    context_.metrics.count_response(200, path_);
    if (stream_) {
        exchange_->write(std::move(out));
        exchange_->finish();
    } else {
        exchange_->respond({.body = std::move(out)});
    }
    over();
}

// A stream that has begun has sent its status: the error is its last event.
void Generation::fail(const ApiError& error, std::string out) {
    context_.metrics.count_response(error.status, path_);
    if (stream_) {
        exchange_->write(std::move(out) + reply_->failed(error));
        exchange_->finish();
    } else {
        exchange_->respond(form_.error(error));
    }
    over();
}

void Generation::closed() {
    if (!exchange_) return;
    context_.metrics.count_response(499, path_);  // as nginx counts clients that went
    over();
}

void Generation::over() {
    if (reply_) {
        Access& access = exchange_->access();
        access.prompt_tokens = prompt_tokens_;
        access.output_tokens = 0;
        for (const Seen& seen : seen_) *access.output_tokens += seen.tokens;
    }
    hold_.release();
    exchange_.reset();
    streams_.clear();
    if (const auto done = std::exchange(done_, nullptr)) done(this);
}

void Generation::ping_if_silent(Clock::time_point now) {
    if (!exchange_ || !reply_ || !stream_ || exchange_->writing()) return;
    if (now - last_write_ < kSilence) return;
    last_write_ = now;
    exchange_->write(reply_->ping());
}

}  // namespace espalier::server
