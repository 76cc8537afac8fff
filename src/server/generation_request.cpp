// SPDX-License-Identifier: Apache-2.0
#include "server/generation_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "server/fields.hpp"

namespace espalier::server {
namespace {

using Json = nlohmann::json;

// Not built: refused, so that no client takes free text for a checked form.
constexpr const char* kRefused[] = {
    "functions",          "function_call",  "guided_json",   "guided_regex",
    "guided_choice",      "guided_grammar", "grammar",       "audio",
    "web_search_options", "suffix",         "prompt_embeds", "use_beam_search",
};

// Fields of chats alone.
constexpr const char* kOfChats[] = {"tools", "tool_choice", "thinking_token_budget",
                                    "max_reasoning_tokens", "continue_final_message"};

// OpenAI's, and without a meaning here.
constexpr const char* kIgnored[] = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "parallel_tool_calls",
    "verbosity",
    "reasoning_effort",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
};

constexpr std::int64_t kCompletionTokens = 16;  // OpenAI's, where a completion says nothing

bool says_nothing(const Json& value) {
    return value == false || (value.is_array() && value.empty()) ||
           (value.is_string() && value.get_ref<const std::string&>().empty());
}

// −1 where a client has no number to give.
bool says_none(const Json& value) { return as_integer(value) == -1; }

// What is refused is in no description of the body.
void refuse_unbuilt(Fields& fields, Api api) {
    if (fields.describes()) return;
    if (api == Api::completions)
        for (const char* name : kOfChats)
            if (const Json* value = fields.find(name); value != nullptr && !says_nothing(*value))
                fields.fail_at(name, "is of chats", ErrorKind::unsupported);
    for (const char* name : kRefused)
        if (const Json* value = fields.find(name); value != nullptr && !says_nothing(*value))
            fields.fail_at(name, "is not supported by this server", ErrorKind::unsupported);
    if (const Json* modalities = fields.find("modalities");
        modalities != nullptr && *modalities != Json{"text"})
        fields.fail_at("modalities", "only [\"text\"] is supported", ErrorKind::unsupported);
}

// Each parameter of accept::SamplingOptions by its own name; ranges are checked with the request.
struct SamplingReader {
    Fields& fields;

    void operator()(const accept::Parameter& parameter, float& value) const {
        fields.read(parameter.name, value);
        if (fields.describes()) describe(parameter);
    }
    void operator()(const accept::Parameter& parameter, std::int64_t& value) const {
        fields.read(parameter.name, value, -1, std::numeric_limits<std::int32_t>::max());
    }
    void describe(const accept::Parameter& parameter) const {
        fields.describe(parameter.name,
                        {{parameter.above_least ? "exclusiveMinimum" : "minimum", parameter.least},
                         {"description", parameter.help}});
        if (std::isfinite(parameter.most))
            fields.describe(parameter.name, {{"maximum", parameter.most}});
    }
    // The seed; −1 says none, as vLLM and llama-server have it.
    void operator()(const accept::Parameter& parameter, std::uint64_t& value) const {
        if (fields.describes())
            fields.describe(parameter.name,
                            {{"type", "integer"},
                             {"minimum", -1},
                             {"maximum", std::numeric_limits<std::uint64_t>::max()}});
        const Json* found = fields.find(parameter.name);
        if (found == nullptr || says_none(*found)) return;
        const std::optional<std::int64_t> integer = as_integer(*found);
        if (found->is_number_unsigned())
            value = found->get<std::uint64_t>();
        else if (integer && *integer >= 0)
            value = static_cast<std::uint64_t>(*integer);
        else
            fields.fail_at(parameter.name,
                           fmt::format("{}, not an integer of 64 bits, nor -1 for none",
                                       found->dump().substr(0, 40)));
    }
    void operator()(const accept::Parameter& parameter,
                    std::vector<accept::SamplingOptions::Bias>& value) const {
        if (fields.describes())
            fields.describe(parameter.name, {{"type", "object"},
                                             {"propertyNames", {{"pattern", "^[0-9]+$"}}},
                                             {"additionalProperties", {{"type", "number"}}},
                                             {"maxProperties", accept::kMaxLogitBiases}});
        const Json* found = fields.find(parameter.name);
        if (found == nullptr) return;
        if (!found->is_object())
            return fields.fail_at(parameter.name,
                                  fmt::format("an object is expected, not {}", json_kind(*found)));
        if (found->size() > static_cast<std::size_t>(accept::kMaxLogitBiases))
            return fields.fail_at(
                parameter.name,
                fmt::format("{} entries, at most {}", found->size(), accept::kMaxLogitBiases));
        Fields entries(*found, parameter.name);
        for (const auto& [key, bias] : found->items()) {
            accept::SamplingOptions::Bias entry;
            const auto [end, error] =
                std::from_chars(key.data(), key.data() + key.size(), entry.token);
            if (error != std::errc() || end != key.data() + key.size() || entry.token < 0)
                return fields.fail_at(parameter.name,
                                      fmt::format("'{}' is no token id", key.substr(0, 40)));
            entries.read(key.c_str(), entry.bias);
            value.push_back(entry);
        }
        if (const auto result = entries.result(); !result)
            fields.fail_at(parameter.name, result.error().message.substr(
                                               std::string_view(parameter.name).size() + 1));
    }
};

void take_defaults(accept::SamplingOptions& sampling,
                   const checkpoint::GenerationDefaults& defaults) {
    sampling.temperature = static_cast<float>(defaults.temperature.value_or(0.0));
    sampling.top_p = static_cast<float>(defaults.top_p.value_or(1.0));
    sampling.top_k = defaults.top_k.value_or(0);
    sampling.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1.0));
    sampling.min_p = static_cast<float>(defaults.min_p.value_or(0.0));
}

std::optional<PromptInput> one_prompt(const Json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (!value.is_array()) return std::nullopt;
    std::vector<std::int32_t> tokens;
    tokens.reserve(value.size());
    for (const Json& entry : value) {
        const std::optional<std::int64_t> token = as_integer(entry);
        if (!token || *token < 0 || *token > std::numeric_limits<std::int32_t>::max())
            return std::nullopt;
        tokens.push_back(static_cast<std::int32_t>(*token));
    }
    return tokens;
}

Json prompt_schema() {
    const Json text = {{"type", "string"}};
    const Json tokens = {{"type", "array"},
                         {"items",
                          {{"type", "integer"},
                           {"minimum", 0},
                           {"maximum", std::numeric_limits<std::int32_t>::max()}}}};
    const auto several = [](const Json& one) -> Json {
        return {{"type", "array"},
                {"items", one},
                {"minItems", 1},
                {"maxItems", kMaxChoicesPerRequest}};
    };
    return {{"anyOf", {text, tokens, several(text), several(tokens)}}};
}

// A string, tokens, or a list of either.
std::vector<PromptInput> read_prompts(Fields& fields) {
    constexpr const char* kForms =
        "a string, a list of token ids or a list of these is expected, not {}";
    fields.require("prompt");
    if (fields.describes()) fields.describe("prompt", prompt_schema());
    const Json* value = fields.find("prompt");
    if (value == nullptr) return {};
    const bool several = value->is_array() && !value->empty() &&
                         (value->front().is_string() || value->front().is_array());
    if (!several) {
        if (auto prompt = one_prompt(*value)) return {std::move(*prompt)};
        fields.fail_at("prompt", fmt::format(fmt::runtime(kForms), json_kind(*value)));
        return {};
    }
    if (value->size() > static_cast<std::size_t>(kMaxChoicesPerRequest)) {
        fields.fail_at("prompt",
                       fmt::format("{} prompts, at most {}", value->size(), kMaxChoicesPerRequest));
        return {};
    }
    std::vector<PromptInput> prompts;
    for (const Json& entry : *value) {
        auto prompt = one_prompt(entry);
        if (!prompt) {
            fields.fail_at(fmt::format("prompt[{}]", prompts.size()),
                           "a string or a list of token ids is expected");
            return {};
        }
        prompts.push_back(std::move(*prompt));
    }
    return prompts;
}

void read_completion_prompts(Fields& fields, GenerationRequest& request) {
    request.prompts = read_prompts(fields);
    fields.read("add_special_tokens", request.add_special_tokens);
}

void read_max_tokens(Fields& fields, GenerationRequest& request) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    const std::int64_t least = request.api == Api::chat ? 1 : 0;
    std::int64_t most = request.api == Api::chat ? kMost : kCompletionTokens;
    // The newer name counts where both are given; −1 is all the room there is.
    for (const char* name : {"max_tokens", "max_completion_tokens"}) {
        if (fields.describes())
            fields.describe(name, {{"type", "integer"}, {"minimum", -1}, {"maximum", kMost}});
        const Json* given = fields.find(name);
        if (given == nullptr) continue;
        most = kMost;
        request.max_tokens.reset();
        request.max_tokens_field = name;
        if (says_none(*given)) continue;
        fields.read(name, most, least, kMost);
        request.max_tokens = most;
    }
    request.engine.output.max_tokens = most;
}

void read_output(Fields& fields, accept::OutputOptions& output) {
    fields.read("stop_token_ids", output.stop_token_ids,
                static_cast<std::size_t>(accept::kMaxStopTokens));
    fields.read("ignore_eos", output.ignore_eos);
    fields.read("include_stop_str_in_output", output.include_stop);
    fields.read("skip_special_tokens", output.skip_special_tokens);
    fields.read("min_tokens", output.min_tokens, 0, std::numeric_limits<std::int32_t>::max());
}

void read_completion_logprobs(Fields& fields, GenerationRequest& request) {
    accept::OutputOptions& output = request.engine.output;
    fields.read("echo", request.echo);
    request.logprobs = fields.has("logprobs");
    fields.read("logprobs", output.top_logprobs, 0, accept::kMaxTopLogprobs);
    if (request.max_tokens == 0 && !request.echo && !request.prompt_logprobs)
        return fields.fail_at(request.max_tokens_field,
                              "0, at least 1 (or 0 with echo or prompt_logprobs)");
    // Nothing is drawn for 0; the engine takes that where the prompt's logprobs are wanted.
    if (request.max_tokens == 0 || (request.echo && request.logprobs))
        output.prompt_top_logprobs =
            std::max(output.top_logprobs, output.prompt_top_logprobs.value_or(0));
}

// vLLM's: a whole answer has them, no stream.
void read_prompt_logprobs(Fields& fields, GenerationRequest& request) {
    const bool given = fields.has("prompt_logprobs");
    std::int32_t count = 0;
    fields.read("prompt_logprobs", count, 0, accept::kMaxTopLogprobs);
    if (!given) return;
    request.prompt_logprobs = request.engine.output.prompt_top_logprobs = count;
    if (request.stream) fields.fail_at("prompt_logprobs", "goes with no \"stream\": true");
}

// OpenAI's: {"type": "content", "content": a text or parts of one}.
void read_prediction(Fields& fields, GenerationRequest& request) {
    auto inner = fields.object("prediction");
    if (!inner) return;
    constexpr const char* kTypes[] = {"content"};
    std::string type;
    inner->require("type");
    inner->read_word("type", type, kTypes, ErrorKind::unsupported);
    inner->require("content");
    if (inner->describes()) inner->describe("content", content_schema());
    const Json* content = inner->find("content");
    fields.adopt(*inner);
    if (content == nullptr) return;
    if (auto text = text_of_content(*content, fields, "prediction.content"))
        request.prediction = std::move(*text);
}

void read_chat_logprobs(Fields& fields, GenerationRequest& request) {
    fields.read("logprobs", request.logprobs);
    fields.read("top_logprobs", request.engine.output.top_logprobs, 0, accept::kMaxTopLogprobs);
    if (!request.logprobs && request.engine.output.top_logprobs > 0)
        fields.fail_at("top_logprobs", "wants \"logprobs\": true");
}

void read_choices(Fields& fields, GenerationRequest& request) {
    engine::Request& engine = request.engine;
    fields.read("n", engine.choices, 1, engine::kMaxChoices);
    std::int32_t best_of = engine.choices;
    fields.read("best_of", best_of, 1, engine::kMaxChoices);
    if (best_of != engine.choices)
        fields.fail_at("best_of",
                       fmt::format("{}, but n is {}: choosing among more is not "
                                   "supported",
                                   best_of, engine.choices),
                       ErrorKind::unsupported);
    const std::int64_t all =
        static_cast<std::int64_t>(request.prompts.size()) * std::int64_t{engine.choices};
    if (all > kMaxChoicesPerRequest)
        fields.fail_at("n",
                       fmt::format("{} choices for {} prompts, at most {} together", engine.choices,
                                   request.prompts.size(), kMaxChoicesPerRequest));
}

void read_stream(Fields& fields, GenerationRequest& request) {
    fields.read("stream", request.stream);
    auto options = fields.object("stream_options");
    if (!options) return;
    if (!request.stream) fields.fail_at("stream_options", "wants \"stream\": true");
    options->read("include_usage", request.include_usage);
    constexpr const char* kMeaningless[] = {"include_obfuscation", "continuous_usage_stats"};
    options->ignore(kMeaningless);
    fields.adopt(*options);
    for (std::string& name : options->unknown()) request.unknown.push_back(std::move(name));
}

// No text depends on any of it.
void read_speculation(Fields& fields, GenerationRequest& request) {
    engine::Request& engine = request.engine;
    fields.read("speculate", engine.speculate);
    fields.read("draft_depth", engine.draft_depth, 0, kMaxDrafts);
    fields.read("draft_width", engine.draft_width, 0, kMaxDrafts);
    fields.read("draft_nodes", engine.draft_nodes, 0, kMaxDrafts);
}

}  // namespace

// vLLM's name, and a plainer one.
void read_reasoning_budget(Fields& fields, GenerationRequest& request) {
    for (const char* name : {"thinking_token_budget", "max_reasoning_tokens"}) {
        if (!fields.has(name) && !fields.describes()) continue;
        std::int64_t value = 0;
        fields.read(name, value, 0, std::numeric_limits<std::int32_t>::max());
        if (request.reasoning_budget && *request.reasoning_budget != value)
            fields.fail_at(name,
                           fmt::format("{}, but {} is {}", value, request.reasoning_budget_field,
                                       *request.reasoning_budget));
        request.reasoning_budget = value;
        request.reasoning_budget_field = name;
    }
}

void read_engine_fields(Fields& fields, GenerationRequest& request,
                        const checkpoint::GenerationDefaults& defaults) {
    take_defaults(request.engine.sampling, defaults);
    const Json* seed = fields.find("seed");
    request.seed_given = seed != nullptr && !says_none(*seed);
    accept::SamplingOptions::parameters(SamplingReader{fields}, request.engine.sampling);
    read_output(fields, request.engine.output);
    read_speculation(fields, request);
    fields.read("priority", request.engine.priority, 0, kMaxPriority);
    fields.read("cache_salt", request.cache_salt);
}

Expected<GenerationRequest> read_generation_request(Fields& fields,
                                                    const nlohmann::ordered_json& ordered, Api api,
                                                    const RequestDefaults& defaults) {
    GenerationRequest request;
    request.api = api;
    refuse_unbuilt(fields, api);
    fields.read("model", request.model);
    if (api == Api::chat)
        request.chat = read_chat(fields, ordered);
    else
        read_completion_prompts(fields, request);
    request.grammar = read_grammar(fields, ordered);
    if (api == Api::chat) read_reasoning_budget(fields, request);
    read_engine_fields(fields, request, defaults.generation);
    read_max_tokens(fields, request);
    fields.read_strings("stop", request.engine.output.stop,
                        static_cast<std::size_t>(accept::kMaxStopStrings));
    read_stream(fields, request);
    read_prompt_logprobs(fields, request);
    if (api == Api::chat)
        read_chat_logprobs(fields, request);
    else
        read_completion_logprobs(fields, request);
    request.engine.logprobs = request.logprobs;
    read_choices(fields, request);
    read_prediction(fields, request);
    fields.read("return_token_ids", request.token_ids);
    fields.read("speculation_report", request.speculation_report);
    request.engine.report_trees = request.speculation_report;
    fields.ignore(kIgnored);
    ESPALIER_RETURN_IF_ERROR(fields.result());
    for (std::string& name : fields.unknown()) request.unknown.push_back(std::move(name));
    return request;
}

Expected<GenerationRequest> parse_generation_request(
    const Json& body, const nlohmann::ordered_json& ordered, Api api,
    const checkpoint::GenerationDefaults& defaults) {
    Fields fields(body);
    return read_generation_request(fields, ordered, api, {.generation = defaults});
}

Error named_as_in_chat(Error error, Api api) {
    if (api == Api::responses && error.field == "messages")
        return with_field(std::move(error), prompt_field(api));
    constexpr std::string_view kChatsName = ".function.parameters";
    const std::size_t place = error.field.find(kChatsName);
    if (api == Api::chat || place == std::string::npos || !error.field.starts_with("tools["))
        return error;
    std::string field = error.field;
    field.replace(place, kChatsName.size(), api == Api::messages ? ".input_schema" : ".parameters");
    return with_field(std::move(error), std::move(field));
}

Error named_as_in_request(Error error, const GenerationRequest& request) {
    if (error.field == "choices") return with_field(std::move(error), "n");
    if (error.field == "max_tokens") return with_field(std::move(error), request.max_tokens_field);
    if (error.field == "reasoning.budget")
        return with_field(std::move(error), request.reasoning_budget_field);
    if (error.field == "prompt") return with_field(std::move(error), prompt_field(request.api));
    if (error.field == "stop" || error.field.starts_with("stop["))
        return with_field(std::move(error), stop_field(request.api) + error.field.substr(4));
    if (request.api == Api::completions &&
        (error.field == "top_logprobs" || error.field == "prompt_logprobs"))
        return with_field(std::move(error), "logprobs");
    return error;
}

}  // namespace espalier::server
