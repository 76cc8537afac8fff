// SPDX-License-Identifier: Apache-2.0
// espalier demo: the same openings continued twice, first token by token, then with drafts; the
// text is compared, what it took is shown in a table, and one of the verified trees is drawn.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/json.hpp"
#include "cli/command.hpp"
#include "cli/continuation.hpp"
#include "cli/draw_tree.hpp"
#include "cli/engine_flags.hpp"
#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct DemoOptions {
    std::string model;
    std::string draft;
    std::string prompts = "data/prompts/demo.jsonl";
    std::int64_t count = 4;
    std::int64_t tokens = 100;
    int threads = 0;
};

struct Opening {
    std::string text;
    engine::Request request;
};

// Cost and text of one way of running.
struct Way {
    std::vector<std::vector<std::int32_t>> outputs;  // tokens of each opening
    double seconds = 0;                              // from first tokens to last
    std::int64_t tokens = 0;                         // in these
    accept::Usage usage;                             // summed: steps, drafted, accepted, from
    std::vector<std::string> drafters;
};

// Colours of drafters, by id; what the target drew unaided is plain.
constexpr std::array<const char*, kMaxDrafters> kColours = {"\033[33m", "\033[36m", "\033[35m",
                                                            "\033[34m"};

// JSON lines with a prompt each, those for a chat left out: they need the model's template.
Expected<std::vector<Opening>> read_openings(const DemoOptions& options,
                                             const runtime::ModelFiles& files) {
    std::ifstream in(options.prompts);
    if (!in) return fail(ErrorKind::not_found, "{}: cannot be read", options.prompts);
    std::vector<Opening> openings;
    for (std::string line; std::getline(in, line) && std::ssize(openings) < options.count;) {
        ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json one, parse_json(line, options.prompts, {4}));
        if (!one.is_object() || !one.contains("prompt") || !one["prompt"].is_string())
            return fail(ErrorKind::invalid, "{}: a line has no prompt", options.prompts);
        if (one.contains("chat")) continue;
        Opening opening;
        opening.text = one["prompt"].get<std::string>();
        ESPALIER_ASSIGN_OR_RETURN(opening.request.prompt,
                                  files.encode_prompt(opening.text, text::SpecialTokens::as_text));
        opening.request.output.max_tokens = options.tokens;
        opening.request.sampling.temperature = 0;
        openings.push_back(std::move(opening));
    }
    if (openings.empty()) return fail(ErrorKind::invalid, "{}: has no prompt", options.prompts);
    return openings;
}

// Text as it comes, accepted drafts in the colour of their drafter.
void print_emission(const accept::Emission& emission, std::int64_t before, bool colours) {
    if (!colours) {
        fmt::print("{}", emission.text);
        std::fflush(stdout);
        return;
    }
    std::size_t at = 0;
    const auto upto = [&](std::int64_t offset) {
        const auto end = static_cast<std::size_t>(
            std::clamp<std::int64_t>(offset - before, 0, std::ssize(emission.text)));
        const std::string piece = emission.text.substr(at, std::max(end, at) - at);
        at = std::max(end, at);
        return piece;
    };
    for (std::size_t i = 0; i < emission.tokens.size(); ++i) {
        fmt::print("{}", upto(emission.tokens[i].text_offset));
        const DraftOrigin& origin = emission.tokens[i].origin;
        const bool last = i + 1 == emission.tokens.size();
        const std::string piece =
            upto(last ? before + std::ssize(emission.text) : emission.tokens[i + 1].text_offset);
        if (origin.drafted())
            fmt::print("{}{}\033[0m", kColours.at(origin.drafter), piece);
        else
            fmt::print("{}", piece);
    }
    fmt::print("{}", emission.text.substr(at));
    std::fflush(stdout);
}

Expected<void> continue_opening(engine::Engine& engine, const Opening& opening, Way& way) {
    const bool colours = terminal_colours();
    fmt::print("\n{}{}{}", colours ? "\033[2m" : "", opening.text, colours ? "\033[0m" : "");
    std::int64_t printed = 0;
    ESPALIER_ASSIGN_OR_RETURN(
        Continuation made,
        continue_request(engine, opening.request, [&](const accept::Emission& emission) {
            print_emission(emission, printed, colours);
            printed += std::ssize(emission.text);
        }));
    fmt::print("\n");
    const accept::Usage& usage = made.usage;
    way.outputs.push_back(std::move(made.tokens));
    way.seconds += made.seconds;
    way.tokens += usage.completion_tokens - 1;  // the first comes with the prompt
    way.usage.steps += usage.steps - 1;
    way.usage.drafted += usage.drafted;
    way.usage.accepted += usage.accepted;
    for (std::size_t d = 0; d < usage.accepted_from.size(); ++d)
        way.usage.accepted_from[d] += usage.accepted_from[d];
    return {};
}

// A place for the trace that goes when the demo does.
class TemporaryFile {
  public:
    TemporaryFile()
        : path_((std::filesystem::temp_directory_path() /
                 fmt::format("espalier-demo-{}.jsonl", Clock::now().time_since_epoch().count()))
                    .string()) {}
    ~TemporaryFile() {
        std::error_code ignored;
        std::filesystem::remove(path_, ignored);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

class Demo {
  public:
    explicit Demo(const DemoOptions& options) : options_(options) {}

    Expected<void> run() {
        ESPALIER_ASSIGN_OR_RETURN(files_,
                                  runtime::ModelFiles::open(options_.model, options_.draft));
        ESPALIER_ASSIGN_OR_RETURN(openings_, read_openings(options_, *files_));
        ESPALIER_RETURN_IF_ERROR(load());
        fmt::print("{}, {}, {} threads. The same {} openings twice, greedily.\n", files_->name,
                   loaded_->backend->name(), loaded_->device->workers(), openings_.size());
        heading("Without speculation: one token a step");
        ESPALIER_ASSIGN_OR_RETURN(const Way plain, go({"off"}, ""));
        heading("With speculation: coloured tokens were drafted");
        ESPALIER_ASSIGN_OR_RETURN(const Way drafted, go({"auto"}, trace_.path()));
        if (plain.outputs != drafted.outputs)
            return fail(ErrorKind::invalid, "the two texts differ: that must not happen");
        heading("The same text, token for token");
        print_table(plain, drafted);
        return draw_best(drafted);
    }

  private:
    static void heading(const char* text) {
        const bool colours = terminal_colours();
        fmt::print("\n{}── {} ──{}\n", colours ? "\033[1m" : "", text, colours ? "\033[0m" : "");
    }

    Expected<void> load() {
        ESPALIER_ASSIGN_OR_RETURN(const runtime::DrafterChoice drafters,
                                  runtime::choose_drafters({"auto"}, *files_));
        runtime::LoadOptions load;
        load.threads = options_.threads;
        ESPALIER_ASSIGN_OR_RETURN(const runtime::SizeFacts facts,
                                  runtime::size_facts(*files_, drafters, load));
        runtime::SizeOptions sizes;
        sizes.rows = 1;
        sizes.step_tokens = 1024;
        for (const Opening& one : openings_)
            sizes.pages = std::max(sizes.pages,
                                   1 + cache::pages_for(std::ssize(one.request.prompt) +
                                                        one.request.output.max_tokens + kMaxNodes));
        ESPALIER_ASSIGN_OR_RETURN(sizes_, runtime::derive_sizes(sizes, facts));
        ESPALIER_ASSIGN_OR_RETURN(loaded_,
                                  load_model(files_->checkpoint, sizes_,
                                             runtime::with_drafters(load, drafters, *files_)));
        return {};
    }

    // All openings, on an engine of their own.
    Expected<Way> go(const std::vector<std::string>& speculate, const std::string& trace) {
        runtime::EngineOptions options;
        options.speculate = speculate;
        options.trace = trace;
        ESPALIER_ASSIGN_OR_RETURN(
            runtime::RunningEngine running,
            runtime::RunningEngine::start(*files_, *loaded_, sizes_, options));
        Way way;
        way.drafters = running.engine().status().drafters;
        for (const Opening& opening : openings_)
            ESPALIER_RETURN_IF_ERROR(continue_opening(running.engine(), opening, way));
        ESPALIER_RETURN_IF_ERROR(stop_engine(running));
        return way;
    }

    static void print_table(const Way& plain, const Way& drafted) {
        const auto rate = [](const Way& way) {
            return way.seconds > 0 ? static_cast<double>(way.tokens) / way.seconds : 0.0;
        };
        const auto per_step = [](const Way& way, std::int64_t count) {
            return static_cast<double>(count) /
                   static_cast<double>(std::max<std::int64_t>(way.usage.steps, 1));
        };
        std::vector<std::string> from;
        for (std::size_t d = 0; d < drafted.drafters.size(); ++d)
            from.push_back(
                fmt::format("{} {}", drafted.drafters[d], drafted.usage.accepted_from[d]));
        Table table;
        table.columns = {"", "without", "with"};
        const auto add = [&](const char* what, const std::string& a, const std::string& b) {
            table.rows.push_back({what, a, b});
        };
        add("tokens/s", fmt::format("{:.1f}", rate(plain)), fmt::format("{:.1f}", rate(drafted)));
        add("speed-up", "1",
            fmt::format("{:.2f}", rate(plain) > 0 ? rate(drafted) / rate(plain) : 0));
        add("steps", fmt::format("{}", plain.usage.steps), fmt::format("{}", drafted.usage.steps));
        add("accepted drafts per step", "0",
            fmt::format("{:.2f}", per_step(drafted, drafted.usage.accepted)));
        add("drafts verified per step (tree size)", "0",
            fmt::format("{:.2f}", per_step(drafted, drafted.usage.drafted)));
        add("accepted drafts came from", "-", fmt::format("{}", fmt::join(from, ", ")));
        fmt::print("\n{}", table.text(TableFormat::markdown));
    }

    Expected<void> draw_best(const Way& drafted) {
        ESPALIER_ASSIGN_OR_RETURN(trace::Reader reader, trace::Reader::open(trace_.path()));
        ESPALIER_ASSIGN_OR_RETURN(const std::vector<DrawnTree> trees, trees_of(reader, 0));
        if (trees.empty()) return {};
        heading("One of its trees: ● was accepted, ○ was not");
        fmt::print("{}", draw(trees[0], drafted.drafters, *files_->tokenizer, terminal_colours()));
        return {};
    }

    const DemoOptions& options_;
    std::optional<runtime::ModelFiles> files_;
    std::vector<Opening> openings_;
    EngineSizes sizes_;
    std::optional<runtime::LoadedModel> loaded_;
    TemporaryFile trace_;
};

}  // namespace

Run add_demo(CLI::App& app) {
    const auto options = std::make_shared<DemoOptions>();
    CLI::App* command = app.add_subcommand(
        "demo", "Continue the same texts without and with speculation, and compare");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    command->add_option("--draft", options->draft,
                        "EAGLE3 draft: directory or ORG/NAME in the local hub cache");
    command->add_option("--prompts", options->prompts, "JSON lines with a prompt each")
        ->capture_default_str();
    command->add_option("--count", options->count, "Texts to continue")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    command->add_option("-n,--max-tokens", options->tokens, "Tokens of each text")
        ->check(CLI::Range(1, 100000))
        ->capture_default_str();
    add_threads_flag(*command, options->threads);
    return [options] { return Demo(*options).run(); };
}

}  // namespace espalier::cli
