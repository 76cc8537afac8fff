// SPDX-License-Identifier: Apache-2.0
// espalier generate: continues a text, streaming it to the terminal. The output is a function of
// model, prompt, seed and sampling parameters alone.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/loaded_model.hpp"
#include "model/sequence.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
    std::string model;
    std::string prompt;
    bool prompt_given = false;
    std::int64_t max_tokens = 128;
    std::optional<float> temperature;
    std::optional<float> top_p;
    std::optional<std::int32_t> top_k;
    float min_p = 0.0f;
    std::optional<std::uint64_t> seed;
    int threads = 0;
    bool ignore_eos = false;
    bool json = false;
};

struct Result {
    std::string text;
    std::vector<std::int32_t> tokens;
    std::string finish_reason = "length";
    std::size_t prompt_tokens = 0;
    double prompt_seconds = 0;
    double generation_seconds = 0;
};

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// Flags win over what the checkpoint recommends; without either, greedy.
ops::NodeSampling sampling_of(const Options& options,
                              const checkpoint::GenerationDefaults& defaults) {
    const bool samples = defaults.do_sample.value_or(true);
    ops::NodeSampling sampling;
    sampling.temperature = options.temperature.value_or(
        samples ? static_cast<float>(defaults.temperature.value_or(0.0)) : 0.0f);
    sampling.top_p = options.top_p.value_or(static_cast<float>(defaults.top_p.value_or(1.0)));
    sampling.top_k = options.top_k.value_or(static_cast<std::int32_t>(defaults.top_k.value_or(0)));
    sampling.min_p = options.min_p;
    sampling.seed = options.seed
                        ? *options.seed
                        : (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}();
    return sampling;
}

Expected<std::vector<std::int32_t>> prompt_tokens(const Options& options,
                                                  const text::Tokenizer& tokenizer) {
    const std::string prompt = options.prompt_given
                                   ? options.prompt
                                   : std::string(std::istreambuf_iterator<char>(std::cin),
                                                 std::istreambuf_iterator<char>());
    ESPALIER_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens, tokenizer.encode(prompt));
    if (tokenizer.bos()) tokens.insert(tokens.begin(), *tokenizer.bos());
    if (tokens.empty())
        return fail(ErrorKind::invalid,
                    "the prompt is empty, and this model has no token to begin with");
    return tokens;
}

Expected<ops::Draw> draw_next(model::DeepseekModel& model, ops::NodeSampling sampling,
                              std::int64_t position) {
    sampling.position = static_cast<std::int32_t>(position);
    std::array<ops::Draw, 1> draw;
    model.sample(std::array{sampling}, draw);
    if (draw[0].flag == ops::DrawFlag::fine) return draw[0];
    return fail(ErrorKind::invalid, "position {}: {}", position,
                draw[0].flag == ops::DrawFlag::bad_logits ? "the model computed a NaN or +infinity"
                                                          : "no token has a finite logit");
}

void show(const Options& options, Result& result, const std::string& piece) {
    result.text += piece;
    if (options.json || piece.empty()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
}

Expected<Result> generate(const Options& options, LoadedModel& loaded,
                          const text::Tokenizer& tokenizer, const ops::NodeSampling& sampling,
                          const std::vector<std::int32_t>& prompt) {
    Result result;
    result.prompt_tokens = prompt.size();
    const std::vector<std::int32_t>& eos = loaded.checkpoint->config().eos_token_ids;
    const auto length = static_cast<std::int64_t>(prompt.size());
    const std::int64_t context = loaded.model->limits().max_kv_len;
    if (length >= context)
        return fail(ErrorKind::exhausted, "the prompt has {} tokens, but the model's context is {}",
                    length, context);
    const std::int64_t max_tokens = std::min(options.max_tokens, context - length);
    ESPALIER_ASSIGN_OR_RETURN(model::Sequence sequence,
                              model::Sequence::create(*loaded.model, length, length + max_tokens));
    if (!options.json && options.prompt_given) fmt::print("{}", options.prompt);
    std::fflush(stdout);
    const auto start = Clock::now();
    ESPALIER_RETURN_IF_ERROR(sequence.feed(*loaded.model, prompt, true));
    text::StreamDecoder decoder(tokenizer);
    while (static_cast<std::int64_t>(result.tokens.size()) < max_tokens) {
        ESPALIER_ASSIGN_OR_RETURN(const ops::Draw draw,
                                  draw_next(*loaded.model, sampling, sequence.length()));
        if (result.tokens.empty()) result.prompt_seconds = seconds_since(start);
        const bool ends = std::find(eos.begin(), eos.end(), draw.token) != eos.end();
        if (ends && !options.ignore_eos) {
            result.finish_reason = "stop";
            break;
        }
        result.tokens.push_back(draw.token);
        show(options, result, decoder.push(draw.token));
        if (static_cast<std::int64_t>(result.tokens.size()) == max_tokens) break;
        ESPALIER_RETURN_IF_ERROR(sequence.feed(*loaded.model, std::array{draw.token}, true));
    }
    show(options, result, decoder.finish());
    result.generation_seconds = seconds_since(start) - result.prompt_seconds;
    return result;
}

void report(const Options& options, const LoadedModel& loaded, const ops::NodeSampling& sampling,
            const Result& result) {
    const auto rate = [](double count, double seconds) {
        return seconds > 0 ? count / seconds : 0.0;
    };
    const double prompt_rate =
        rate(static_cast<double>(result.prompt_tokens), result.prompt_seconds);
    // The first token comes out of the prompt's forward; the rate is that of the forwards after it.
    const double steps =
        result.tokens.empty() ? 0.0 : static_cast<double>(result.tokens.size() - 1);
    const double rate_generated = rate(steps, result.generation_seconds);
    if (options.json) {
        const nlohmann::ordered_json object = {{"text", result.text},
                                               {"tokens", result.tokens},
                                               {"finish_reason", result.finish_reason},
                                               {"seed", sampling.seed},
                                               {"temperature", sampling.temperature},
                                               {"prompt_tokens", result.prompt_tokens},
                                               {"completion_tokens", result.tokens.size()},
                                               {"load_seconds", loaded.load_seconds},
                                               {"prompt_seconds", result.prompt_seconds},
                                               {"generation_seconds", result.generation_seconds},
                                               {"prompt_tokens_per_second", prompt_rate},
                                               {"generation_tokens_per_second", rate_generated}};
        fmt::print("{}\n", object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
        return;
    }
    fmt::print("\n");
    fmt::print(
        stderr,
        "\n[prompt {} tokens, {:.1f} tokens/s · generated {} tokens, {:.1f} tokens/s · {}{}]\n",
        result.prompt_tokens, prompt_rate, result.tokens.size(), rate_generated,
        result.finish_reason,
        sampling.temperature < 1e-5f ? " · greedy" : fmt::format(" · seed {}", sampling.seed));
}

Expected<void> run(const Options& options) {
    ESPALIER_ASSIGN_OR_RETURN(const auto directory, checkpoint::resolve_model_path(options.model));
    ESPALIER_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::load(directory));
    ESPALIER_ASSIGN_OR_RETURN(const std::vector<std::int32_t> prompt,
                              prompt_tokens(options, tokenizer));
    model::ModelLimits limits;
    limits.max_gather = 1;
    ESPALIER_ASSIGN_OR_RETURN(LoadedModel loaded,
                              load_model(directory.string(), options.threads, limits));
    const ops::NodeSampling sampling = sampling_of(options, loaded.checkpoint->generation());
    ESPALIER_ASSIGN_OR_RETURN(const Result result,
                              generate(options, loaded, tokenizer, sampling, prompt));
    report(options, loaded, sampling, result);
    return {};
}

}  // namespace

Run add_generate(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand("generate", "Continue a text");
    command
        ->add_option("model", options->model, "Model directory or ORG/NAME in the local hub cache")
        ->required();
    CLI::Option* prompt = command->add_option("-p,--prompt", options->prompt,
                                              "Text to continue; standard input if not given");
    command
        ->add_option("-n,--max-tokens", options->max_tokens,
                     "Tokens to generate at most; the context may end earlier")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
        ->capture_default_str();
    command
        ->add_option("--temperature", options->temperature,
                     "0 is greedy; the checkpoint's own, or 0, if not given")
        ->check(CLI::Range(0.0, 100.0));
    command
        ->add_option("--top-p", options->top_p,
                     "Keep the most likely tokens that make up this share")
        ->check(CLI::Range(0.0, 1.0));
    command
        ->add_option("--top-k", options->top_k,
                     "Keep this many of the most likely tokens; 0 keeps all")
        ->check(CLI::Range(0, 1 << 24));
    command
        ->add_option("--min-p", options->min_p,
                     "Drop tokens below this share of the most likely one")
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    command->add_option("--seed", options->seed,
                        "Seed of the noise; 64 random bits, reported, if not given");
    command->add_option("--threads", options->threads, "0: OMP_NUM_THREADS or one per core")
        ->capture_default_str();
    command->add_flag("--ignore-eos", options->ignore_eos, "Go on after the end-of-text token");
    command->add_flag("--json", options->json, "One JSON object instead of text");
    return [options, prompt] {
        options->prompt_given = prompt->count() > 0;
        return run(*options);
    };
}

}  // namespace espalier::cli
