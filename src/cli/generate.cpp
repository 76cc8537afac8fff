// SPDX-License-Identifier: Apache-2.0
// espalier generate: continues a text, streaming it to the terminal. The output is a function of
// model, prompt, seed and sampling parameters alone: --speculate changes only how soon it is there.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/flag_names.hpp"
#include "cli/grammar_flags.hpp"
#include "cli/logits_file.hpp"
#include "cli/sampling_flags.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

struct GenerateOptions {
    std::string model;
    std::string prompt;
    bool prompt_given = false;
    SamplingFlags sampling;
    GrammarFlags grammar;
    EngineFlags engine;
    bool special = false;
    bool logprobs = false;
    std::string logits;  // file
    bool json = false;
};

struct Choice {
    accept::Emission emission;
    engine::ChoiceUpdate last;  // totals and the end
};

struct Generated {
    std::vector<Choice> choices;
    std::optional<accept::PromptLogprobs> prompt_logprobs;
    std::vector<std::string> drafters;  // names, by id
    double prompt_seconds = 0;
    double generation_seconds = 0;
};

// All choices together.
struct Totals {
    std::int64_t prompt_tokens = 0, tokens = 0, steps = 0, drafted = 0, accepted = 0;
    std::array<std::int64_t, kMaxDrafters> drafted_from = {}, accepted_from = {};
    double prompt_rate = 0, rate = 0;
    double acceptance() const {
        return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0.0;
    }
};

Expected<std::vector<std::int32_t>> prompt_tokens(const GenerateOptions& options,
                                                  const runtime::ModelFiles& files) {
    const std::string prompt = options.prompt_given
                                   ? options.prompt
                                   : std::string(std::istreambuf_iterator<char>(std::cin),
                                                 std::istreambuf_iterator<char>());
    return files.encode_prompt(
        prompt, options.special ? text::SpecialTokens::parsed : text::SpecialTokens::as_text);
}

// An engine for this one request. The whole request is checked before the weights are read.
Expected<EngineSizes> sizes_for(const engine::Request& request, const EngineFlags& flags,
                                const runtime::ModelFiles& files) {
    runtime::SizeOptions sizes = flags.engine.sizes;
    const checkpoint::ModelConfig& config = files.checkpoint->config();
    ESPALIER_ASSIGN_OR_RETURN(const runtime::DrafterChoice drafters,
                              runtime::choose_drafters(flags.engine.speculate, files));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::SizeFacts facts,
                              runtime::size_facts(files, drafters, flags.load));
    engine::RequestLimits limits;
    limits.vocabulary = config.vocab_size;
    limits.eos_token_ids = config.eos_token_ids;
    limits.sizes.max_model_len =
        sizes.max_model_len > 0 ? sizes.max_model_len : config.max_position_embeddings;
    limits.sizes.page_count =
        1 + (sizes.pages > 0 ? sizes.pages : cache::pages_for(limits.sizes.max_model_len));
    ESPALIER_ASSIGN_OR_RETURN(const engine::CheckedRequest checked,
                              engine::check_request(request, limits, *files.tokenizer));
    if (sizes.rows == 0) sizes.rows = request.choices;
    if (sizes.pages == 0)
        sizes.pages =
            request.choices * cache::pages_for(static_cast<std::int64_t>(request.prompt.size()) +
                                               checked.rules.options().max_tokens);
    return runtime::derive_sizes(sizes, facts);
}

void print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
}

// One choice is shown as it comes; of several, the first as it comes and the others after it.
Expected<Generated> generate(const GenerateOptions& options, engine::Engine& engine,
                             const engine::Request& request) {
    Generated result;
    result.drafters = engine.status().drafters;
    result.choices.resize(static_cast<std::size_t>(request.choices));
    if (!options.json && options.prompt_given) print(options.prompt);
    const auto start = Clock::now();
    auto first = start;
    ESPALIER_ASSIGN_OR_RETURN(engine::Stream stream, engine.submit(request));
    engine::Updates updates;
    while (stream.next(updates)) {
        if (first == start) first = Clock::now();
        for (std::size_t i = 0; i < updates.choices.size(); ++i) {
            result.choices[i].emission.append(updates.choices[i].emission);
            result.choices[i].last = updates.choices[i];
        }
        if (updates.prompt_logprobs) result.prompt_logprobs = std::move(updates.prompt_logprobs);
        if (!options.json) print(updates.choices[0].emission.text);
    }
    result.prompt_seconds = std::chrono::duration<double>(first - start).count();
    result.generation_seconds = std::chrono::duration<double>(Clock::now() - first).count();
    return result;
}

Expected<void> check_end(const Choice& choice, const std::string& model) {
    const std::int64_t tokens = choice.last.usage.completion_tokens;
    switch (choice.last.finish.reason) {
        case accept::FinishReason::bad_numbers:
            return fail(ErrorKind::invalid,
                        "{}: after {} tokens the model computed a NaN or infinity: its numbers, or "
                        "its files, are damaged",
                        model, tokens);
        case accept::FinishReason::nothing_left:
            return fail(ErrorKind::invalid, "after {} tokens: no token is left to choose", tokens);
        case accept::FinishReason::interrupted:
            return fail(ErrorKind::io, "after {} tokens: {}", tokens, choice.last.message);
        default:
            return {};
    }
}

const char* reason_of(const Choice& choice) {
    return choice.last.finish.reason == accept::FinishReason::length ? "length" : "stop";
}

Totals totals_of(const Generated& result) {
    Totals totals;
    for (const Choice& choice : result.choices) {
        const accept::Usage& usage = choice.last.usage;
        totals.prompt_tokens = usage.prompt_tokens;
        totals.tokens += usage.completion_tokens;
        totals.steps += usage.steps;
        totals.drafted += usage.drafted;
        totals.accepted += usage.accepted;
        for (std::size_t d = 0; d < totals.accepted_from.size(); ++d) {
            totals.drafted_from[d] += usage.drafted_from[d];
            totals.accepted_from[d] += usage.accepted_from[d];
        }
    }
    const auto rate = [](std::int64_t count, double seconds) {
        return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
    };
    totals.prompt_rate = rate(totals.prompt_tokens, result.prompt_seconds);
    // The first token comes out of the prompt's step; the rate is that of the steps after it.
    const auto first = static_cast<std::int64_t>(result.choices.size());
    totals.rate = rate(std::max<std::int64_t>(totals.tokens - first, 0), result.generation_seconds);
    return totals;
}

Json token_json(std::int32_t token, std::optional<float> logprob,
                const text::Tokenizer& tokenizer) {
    return {{"token", token},
            {"text", tokenizer.decode(std::vector{token}, false)},
            {"logprob", logprob ? Json(*logprob) : Json()}};
}

Json tops_json(std::span<const accept::TokenLogprob> tops, const text::Tokenizer& tokenizer) {
    Json list = Json::array();
    for (const accept::TokenLogprob& top : tops)
        list.push_back(token_json(top.token, top.logprob, tokenizer));
    return list;
}

// The accepted tokens that had been drafted, by index, and who had drafted them.
Json drafts_json(const accept::Emission& emission, const std::vector<std::string>& drafters) {
    Json list = Json::array();
    for (std::size_t i = 0; i < emission.tokens.size(); ++i) {
        const DraftOrigin& origin = emission.tokens[i].origin;
        if (!origin.drafted()) continue;
        Json who = Json::array();
        for (std::size_t d = 0; d < drafters.size(); ++d)
            if ((origin.drafters >> d & 1) != 0) who.push_back(drafters[d]);
        list.push_back({{"token", i},
                        {"drafters", std::move(who)},
                        {"from", drafters.at(origin.drafter)},
                        {"depth", origin.depth},
                        {"rank", origin.rank}});
    }
    return list;
}

Json logprobs_json(const accept::Emission& emission, const text::Tokenizer& tokenizer) {
    const std::size_t top =
        emission.tokens.empty() ? 0 : emission.top.size() / emission.tokens.size();
    Json list = Json::array();
    for (std::size_t i = 0; i < emission.tokens.size(); ++i) {
        Json one = token_json(emission.tokens[i].token, emission.tokens[i].logprob, tokenizer);
        one["top"] = tops_json(std::span(emission.top).subspan(i * top, top), tokenizer);
        list.push_back(std::move(one));
    }
    return list;
}

// Drafts by the drafter that they are counted to.
Json by_drafter(const std::array<std::int64_t, kMaxDrafters>& counts,
                const std::vector<std::string>& drafters) {
    Json object = Json::object();
    for (std::size_t d = 0; d < drafters.size(); ++d) object[drafters[d]] = counts[d];
    return object;
}

// The prompt's own tokens; the first has no logprob, since nothing speaks of it.
Json prompt_json(std::span<const std::int32_t> prompt, const accept::PromptLogprobs& known,
                 const text::Tokenizer& tokenizer) {
    const auto top = static_cast<std::size_t>(known.top_count());
    Json list = Json::array();
    list.push_back(token_json(prompt.front(), std::nullopt, tokenizer));
    for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
        Json one = token_json(prompt[i + 1], known.logprobs()[i], tokenizer);
        one["top"] = tops_json(known.tops().subspan(i * top, top), tokenizer);
        list.push_back(std::move(one));
    }
    return list;
}

void report_json(const GenerateOptions& options, const runtime::LoadedModel& loaded,
                 const text::Tokenizer& tokenizer, const engine::Request& request,
                 const Generated& result, const Totals& totals) {
    Json list = Json::array();
    for (const Choice& choice : result.choices) {
        Json tokens = Json::array();
        for (const accept::CommittedToken& token : choice.emission.tokens)
            tokens.push_back(token.token);
        Json one = {{"text", choice.emission.text},
                    {"tokens", std::move(tokens)},
                    {"finish_reason", reason_of(choice)}};
        if (options.logprobs) one["logprobs"] = logprobs_json(choice.emission, tokenizer);
        if (!result.drafters.empty()) one["drafts"] = drafts_json(choice.emission, result.drafters);
        list.push_back(std::move(one));
    }
    Json object = list.size() == 1 ? list[0] : Json{{"choices", list}};
    if (result.prompt_logprobs)
        object["prompt_logprobs"] = prompt_json(request.prompt, *result.prompt_logprobs, tokenizer);
    object.update(Json{{"seed", request.sampling.seed},
                       {"temperature", request.sampling.temperature},
                       {"prompt_tokens", totals.prompt_tokens},
                       {"completion_tokens", totals.tokens},
                       {"speculate", options.engine.engine.speculate},
                       {"steps", totals.steps},
                       {"drafted_tokens", totals.drafted},
                       {"accepted_tokens", totals.accepted},
                       {"drafted_from", by_drafter(totals.drafted_from, result.drafters)},
                       {"accepted_from", by_drafter(totals.accepted_from, result.drafters)},
                       {"acceptance_length", totals.acceptance()},
                       {"load_seconds", loaded.load_seconds},
                       {"packed_bytes", loaded.packed_bytes},
                       {"prompt_seconds", result.prompt_seconds},
                       {"generation_seconds", result.generation_seconds},
                       {"prompt_tokens_per_second", totals.prompt_rate},
                       {"generation_tokens_per_second", totals.rate}});
    if (loaded.expert_reads) {
        object["expert_bytes_needed"] = loaded.expert_reads->needed.load();
        object["expert_bytes_in_memory"] = loaded.expert_reads->in_memory.load();
    }
    fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

// " (ngram 12, mtp 40)": where accepted drafts came from, if there can be a question.
std::string sources_text(const Generated& result, const Totals& totals) {
    if (result.drafters.size() < 2) return {};
    std::vector<std::string> parts;
    for (std::size_t d = 0; d < result.drafters.size(); ++d)
        parts.push_back(fmt::format("{} {}", result.drafters[d], totals.accepted_from[d]));
    return fmt::format(" ({})", fmt::join(parts, ", "));
}

// " · experts 12.3 GB, 87 % in memory"
std::string experts_text(const runtime::LoadedModel& loaded) {
    if (!loaded.expert_reads) return {};
    return fmt::format(" · experts {}, {:.0f} % of them in memory",
                       bytes_text(static_cast<double>(loaded.expert_reads->needed.load())),
                       100 * loaded.expert_reads->hit_rate());
}

void report(const GenerateOptions& options, const runtime::LoadedModel& loaded,
            const engine::Request& request, const Generated& result, const Totals& totals) {
    for (std::size_t i = 1; i < result.choices.size(); ++i)
        fmt::print("\n── choice {} ──\n{}{}", i + 1, options.prompt,
                   result.choices[i].emission.text);
    fmt::print("\n");
    std::fflush(stdout);
    const std::string drafts = result.drafters.empty()
                                   ? ""
                                   : fmt::format(", {:.2f} accepted drafts per step{}",
                                                 totals.acceptance(), sources_text(result, totals));
    const std::string seed = request.sampling.temperature < 1e-5f
                                 ? "greedy"
                                 : fmt::format("seed {}", request.sampling.seed);
    fmt::print(stderr,
               "\n[prompt {} tokens, {:.1f} tokens/s · generated {} tokens, {:.1f} tokens/s · {} "
               "steps{}{} · {} · {}]\n",
               totals.prompt_tokens, totals.prompt_rate, totals.tokens, totals.rate, totals.steps,
               drafts, experts_text(loaded), reason_of(result.choices[0]), seed);
}

Expected<void> run(GenerateOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const auto ranks, options.engine.start_ranks());
    if (!options.logits.empty() && ranks->count() > 1)
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{}, but --logits writes those of one rank", ranks->count());
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              runtime::ModelFiles::open(options.model, options.engine.draft));
    ESPALIER_ASSIGN_OR_RETURN(engine::Request request,
                              options.sampling.make(files.checkpoint->generation()));
    request.logprobs = options.logprobs;
    ESPALIER_ASSIGN_OR_RETURN(request.grammar, options.grammar.compiled(files));
    ESPALIER_ASSIGN_OR_RETURN(request.prompt, prompt_tokens(options, files));
    // With -n 0 the prompt's logits are all; a step is sized for one token.
    const bool logits_alone = request.output.max_tokens == 0 && !options.logits.empty() &&
                              !request.output.prompt_top_logprobs && !options.json;
    if (logits_alone) request.output.max_tokens = 1;
    for (const std::string& note : files.notes()) fmt::print(stderr, "espalier: {}\n", note);
    ESPALIER_ASSIGN_OR_RETURN(const EngineSizes sizes, sizes_for(request, options.engine, files));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::DrafterChoice drafters,
                              runtime::choose_drafters(options.engine.engine.speculate, files));
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::LoadedModel loaded,
        load_model(files.checkpoint, sizes,
                   runtime::with_drafters(options.engine.load, drafters, files)));
    if (!options.logits.empty())
        ESPALIER_RETURN_IF_ERROR(write_logits(options.logits, *loaded.model, request.prompt));
    if (logits_alone) return {};
    if (const auto note = runtime::note_on_cache(loaded))
        fmt::print(stderr, "espalier: {}\n", *note);
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::RunningEngine running,
        runtime::RunningEngine::start(files, loaded, sizes, options.engine.engine));
    if (!running.note().empty()) fmt::print(stderr, "espalier: {}\n", running.note());
    ESPALIER_ASSIGN_OR_RETURN(const Generated result, generate(options, running.engine(), request));
    ESPALIER_RETURN_IF_ERROR(stop_engine(running));
    for (const Choice& choice : result.choices)
        ESPALIER_RETURN_IF_ERROR(check_end(choice, files.checkpoint->directory().string()));
    const Totals totals = totals_of(result);
    if (options.json)
        report_json(options, loaded, *files.tokenizer, request, result, totals);
    else
        report(options, loaded, request, result, totals);
    return {};
}

}  // namespace

Run add_generate(CLI::App& app) {
    const auto options = std::make_shared<GenerateOptions>();
    CLI::App* command = app.add_subcommand("generate", "Continue a text");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    CLI::Option* prompt = command->add_option("prompt,-p,--prompt", options->prompt,
                                              "Text to continue; standard input if not given");
    options->sampling.add_to(*command);
    options->grammar.add_to(*command);
    command->add_flag("--special", options->special, "Recognise special tokens in the prompt");
    options->engine.add_speculate_to(*command);
    options->engine.add_kept_to(*command);
    options->engine.add_to(
        *command, {.rows = "0: one for each choice", .pages = "0: what the request needs"});
    CLI::Option* json =
        command->add_flag("--json", options->json, "One JSON object instead of text");
    CLI::Option* logprobs =
        command
            ->add_option("--logprobs", options->sampling.request.output.top_logprobs,
                         "Logprob of each token and this many alternatives")
            ->needs(json);
    command
        ->add_option("--prompt-logprobs", options->sampling.request.output.prompt_top_logprobs,
                     "The same for the prompt's own tokens; with -n 0 the prompt is all")
        ->needs(json);
    command
        ->add_option("--logits", options->logits,
                     "File for the logits of the prompt's positions: .npy, float32 [positions, "
                     "vocabulary]; with -n 0 that is all")
        ->check(not_empty());
    return [options, prompt, logprobs] {
        options->prompt_given = prompt->count() > 0;
        options->logprobs = logprobs->count() > 0;
        return run(*options);
    };
}

}  // namespace espalier::cli
