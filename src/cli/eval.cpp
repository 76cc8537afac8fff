// SPDX-License-Identifier: Apache-2.0
// espalier eval: what weights in fewer bits cost. A text in windows of a few hundred tokens; each
// token but a window's first is predicted from those before it.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/eval_figures.hpp"
#include "cli/terminal.hpp"
#include "cli/text_windows.hpp"

namespace espalier::cli {
namespace {

constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
constexpr std::int64_t kMaxWindow = 1 << 16;

struct EvalOptions {
    std::string model;
    std::string text;
    std::string against;
    std::int64_t window = 512;
    std::int64_t limit = 0;
    runtime::LoadOptions load;
    bool json = false;
};

void print(const EvalOptions& options, const EvalFigures& figures) {
    if (options.json) {
        nlohmann::ordered_json report = {{"tokens", figures.tokens()},
                                         {"bits_per_byte", figures.bits_per_byte()},
                                         {"bits_per_token", figures.bits_per_token()}};
        if (!options.against.empty()) {
            report["mean_kl_bits"] = figures.mean_kl_bits();
            report["top_agreement"] = figures.top_agreement();
        }
        fmt::print("{}\n", report.dump());
        return;
    }
    fmt::print("tokens         {}\nbits per byte  {:.4f}\nbits per token {:.4f}\n",
               figures.tokens(), figures.bits_per_byte(), figures.bits_per_token());
    if (!options.against.empty())
        fmt::print("mean KL        {:.5f} bits per token against {}\nsame best      {:.2f} %\n",
                   figures.mean_kl_bits(), options.against, 100 * figures.top_agreement());
}

Expected<void> run(const EvalOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const std::string text, read_text_file(options.text, kMaxTextBytes));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              runtime::ModelFiles::open(options.model));
    ESPALIER_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens,
                              files.encode_prompt(text, text::SpecialTokens::as_text));
    if (options.limit > 0 && options.limit < std::ssize(tokens))
        tokens.resize(static_cast<std::size_t>(options.limit));
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::LoadedModel loaded,
        load_model(files.checkpoint, window_sizes(options.window), options.load));
    WindowReader reader(loaded);
    std::optional<runtime::LoadedModel> loaded_against;
    std::optional<WindowReader> against;
    if (!options.against.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles other,
                                  runtime::ModelFiles::open(options.against));
        runtime::LoadOptions own = options.load;
        own.rounding.reset();
        own.head_rounding.reset();
        own.activations = NumberMode::own;
        ESPALIER_ASSIGN_OR_RETURN(loaded_against,
                                  load_model(other.checkpoint, window_sizes(options.window), own));
        against.emplace(*loaded_against);
        ESPALIER_ASSIGN_OR_RETURN(const std::vector<std::int32_t> same,
                                  other.encode_prompt(text, text::SpecialTokens::as_text));
        if (reader.vocabulary() != against->vocabulary() || same.size() < tokens.size() ||
            !std::equal(tokens.begin(), tokens.end(), same.begin()))
            return fail_field(ErrorKind::invalid, "against",
                              "{} makes other tokens of the text than {}", options.against,
                              options.model);
    }
    EvalFigures figures;
    StatusLine line;
    const auto window = static_cast<std::size_t>(options.window);
    for (std::size_t first = 0; first + 1 < tokens.size(); first += window) {
        ESPALIER_RETURN_IF_ERROR(
            read_window(std::span(tokens).subspan(first, std::min(window, tokens.size() - first)),
                        *files.tokenizer, reader, against ? &*against : nullptr, figures));
        line.update("{} of {} tokens, {:.4f} bits per byte", first, tokens.size(),
                    figures.bits_per_byte());
    }
    if (figures.tokens() == 0)
        return fail_field(ErrorKind::invalid, "text", "{} makes {} token(s); two are needed",
                          options.text, tokens.size());
    print(options, figures);
    return {};
}

}  // namespace

Run add_eval(CLI::App& app) {
    const auto options = std::make_shared<EvalOptions>();
    CLI::App* command = app.add_subcommand(
        "eval", "Say how well a model predicts a text, and how far it is from another one");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    command->add_option("--text", options->text, "File with the text")->required();
    command->add_option(
        "--against", options->against,
        "Model with the same tokens to compare with: mean KL, share of equal likeliest tokens");
    command->add_option("--window", options->window, "Tokens of a window")
        ->check(CLI::Range(std::int64_t{2}, kMaxWindow))
        ->capture_default_str();
    command->add_option("--limit", options->limit, "Tokens of the text at most; 0: all")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
        ->capture_default_str();
    command->add_flag("--json", options->json, "One JSON object");
    add_weights_flag(*command, options->load.rounding);
    add_head_flag(*command, options->load.head_rounding);
    add_activations_flag(*command, options->load.activations);
    add_kv_format_flag(*command, options->load.kv_format);
    add_device_flag(*command, options->load.device);
    add_threads_flag(*command, options->load.threads);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
