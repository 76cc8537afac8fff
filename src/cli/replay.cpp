// SPDX-License-Identifier: Apache-2.0
// espalier replay: runs a trace again and holds every token of this run to it; or draws the trace
// as a timeline, or one of its trees, which runs nothing.
#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cli/command.hpp"
#include "cli/draw_tree.hpp"
#include "cli/engine_flags.hpp"
#include "cli/terminal.hpp"
#include "engine/model_target.hpp"
#include "replay/convert.hpp"
#include "replay/replayer.hpp"
#include "runtime/identity.hpp"
#include "trace/chrome.hpp"

namespace espalier::cli {
namespace {

struct ReplayOptions {
    std::string file;
    std::string model;  // empty: the trace's
    std::string chrome;
    std::optional<std::int64_t> tree;  // step
    int threads = 0;
};

Expected<void> draw_timeline(const ReplayOptions& options, trace::Reader& reader) {
    ESPALIER_ASSIGN_OR_RETURN(const auto out, trace::open_file(options.chrome));
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t steps, trace::write_chrome(reader, *out));
    fmt::print("{}: {} steps, for chrome://tracing or ui.perfetto.dev\n", options.chrome, steps);
    return {};
}

Expected<void> draw_trees(const ReplayOptions& options, trace::Reader& reader) {
    const std::string& model = options.model.empty() ? reader.header().model.path : options.model;
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files, runtime::ModelFiles::open(model));
    ESPALIER_ASSIGN_OR_RETURN(const std::vector<DrawnTree> trees, trees_of(reader, *options.tree));
    if (trees.empty())
        return fail(ErrorKind::not_found, "{}: no tree was verified{}", options.file,
                    *options.tree > 0 ? fmt::format(" in step {}", *options.tree) : "");
    for (const DrawnTree& tree : trees)
        fmt::print(
            "step {}, request {}: {} drafts\n{}", tree.step, tree.request, tree.tokens.size() - 1,
            draw(tree, reader.header().settings.drafters, *files.tokenizer, terminal_colours()));
    return {};
}

const char* ending_text(trace::Ending ending) {
    switch (ending) {
        case trace::Ending::finished:
            return "";
        case trace::Ending::overflow:
            return "; the trace ends early, because the disk was too slow for it";
        case trace::Ending::missing:
            return "; the trace has no end line, as when a process is killed";
    }
    return "";
}

Expected<void> run(const ReplayOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(trace::Reader reader, trace::Reader::open(options.file));
    if (!options.chrome.empty()) return draw_timeline(options, reader);
    if (options.tree) return draw_trees(options, reader);
    const trace::Header& header = reader.header();
    ESPALIER_ASSIGN_OR_RETURN(
        const runtime::ModelFiles files,
        runtime::ModelFiles::open(options.model.empty() ? header.model.path : options.model));
    runtime::LoadOptions load = runtime::load_options_of(header.identity);
    load.threads = options.threads;
    // Another model or build is refused before the weights are read.
    ESPALIER_ASSIGN_OR_RETURN(
        const TextIdentity here,
        runtime::text_identity(*files.checkpoint, load, header.settings.prefill_segment));
    ESPALIER_RETURN_IF_ERROR(replay::check_identity(header, here));
    ESPALIER_ASSIGN_OR_RETURN(
        runtime::LoadedModel loaded,
        load_model(files.checkpoint, replay::stepper_settings_of(header.settings).schedule, load));
    const auto start = std::chrono::steady_clock::now();
    const auto make_target = [&](std::int64_t page_count) {
        return engine::ModelTarget::create(*loaded.model, page_count);
    };
    ESPALIER_ASSIGN_OR_RETURN(const replay::Replayed done,
                              replay::replay(reader, make_target, *files.tokenizer));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::string unfinished =
        done.unfinished > 0 ? fmt::format("; {} requests were not finished", done.unfinished) : "";
    fmt::print("{}: {} steps and {} tokens of {} requests are the same in {:.2f} s{}{}\n",
               options.file, done.steps, done.tokens, done.requests, seconds.count(), unfinished,
               ending_text(done.ending));
    return {};
}

}  // namespace

Run add_replay(CLI::App& app) {
    const auto options = std::make_shared<ReplayOptions>();
    CLI::App* command = app.add_subcommand(
        "replay", "Run a trace again, held to every token; or draw it as a timeline");
    command->add_option("file", options->file, "A trace, as --trace writes it")->required();
    CLI::Option* model = command->add_option("model", options->model,
                                             "Model directory, GGUF file or ORG/NAME in the local "
                                             "hub cache; the trace's own if not given");
    CLI::Option* threads = command->add_option("--threads", options->threads,
                                               "Threads; 0: OMP_NUM_THREADS or one per core");
    threads->capture_default_str();
    command
        ->add_option("--chrome", options->chrome,
                     "File for a timeline (chrome://tracing, Perfetto); runs nothing")
        ->excludes(model)
        ->excludes(threads);
    command
        ->add_option("--tree", options->tree,
                     "Step whose trees are drawn, with accepted paths; 0: the one tree that shows "
                     "most; runs nothing")
        ->excludes(threads);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
