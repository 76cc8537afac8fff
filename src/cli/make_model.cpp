// SPDX-License-Identifier: Apache-2.0
// espalier make-model: a model of random weights in the published format, for demos, tests and
// benchmarks.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "checkpoint/synthetic.hpp"
#include "cli/command.hpp"
#include "cli/synthetic_model.hpp"
#include "cli/terminal.hpp"
#include "runtime/loaded_model.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

struct MakeModelOptions {
    std::string preset = "tiny-v3";
    std::string out;
    std::string dtype;
    std::string tokenizer;
    std::string eagle3;
    std::uint64_t seed = 0;
};

// The vocabulary grows to hold the tokenizer's ids, padded as published models' are.
Expected<void> take_tokenizer(const std::string& directory, checkpoint::SyntheticModel& model) {
    ESPALIER_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::load(directory));
    checkpoint::ModelConfig& config = model.config;
    if (!tokenizer.eos())
        return fail(ErrorKind::invalid, "{}: a tokenizer without an eos token", directory);
    config.vocab_size = std::max(config.vocab_size, (tokenizer.vocabulary() + 127) / 128 * 128);
    config.eos_token_ids = {*tokenizer.eos()};
    if (tokenizer.bos()) config.bos_token_id = *tokenizer.bos();
    model.tokenizer = directory;
    return {};
}

Expected<void> run(const MakeModelOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::SyntheticModel model,
                              named_model(options.preset, options.dtype));
    model.seed = options.seed;
    if (!options.tokenizer.empty())
        ESPALIER_RETURN_IF_ERROR(take_tokenizer(options.tokenizer, model));
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(0));
    ThreadPool pool(threads);
    std::uint64_t written = 0;
    {
        ProgressBar bar("writing");
        ESPALIER_RETURN_IF_ERROR(checkpoint::write_synthetic(
            model, options.out, pool, [&](std::uint64_t done, std::uint64_t total) {
                written = done;
                bar.update(done, total);
            }));
    }
    fmt::print("{}: {} of random weights ({}, seed {})\n", options.out,
               bytes_text(static_cast<double>(written)), options.preset, options.seed);
    if (options.eagle3.empty()) return {};
    ESPALIER_RETURN_IF_ERROR(checkpoint::write_synthetic_draft(
        checkpoint::synthetic_draft_for(model), options.eagle3, pool));
    fmt::print("{}: an EAGLE3 draft for it\n", options.eagle3);
    return {};
}

}  // namespace

Run add_make_model(CLI::App& app) {
    const auto options = std::make_shared<MakeModelOptions>();
    CLI::App* command =
        app.add_subcommand("make-model", "Write a model of random weights in the published format");
    command->add_option("--preset", options->preset, "Shape of the model")
        ->check(preset_name())
        ->capture_default_str();
    command->add_option("--out", options->out, "Directory to write; new or empty")->required();
    add_dtype_flag(*command, options->dtype);
    command->add_option("--tokenizer", options->tokenizer,
                        "Directory of tokenizer.json and tokenizer_config.json for the model, "
                        "whose vocabulary grows to hold them");
    command->add_option("--eagle3", options->eagle3,
                        "Directory for an EAGLE3 draft of random weights");
    command->add_option("--seed", options->seed, "Seed of the weights")->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
