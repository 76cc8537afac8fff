// SPDX-License-Identifier: Apache-2.0
#include "cli/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "cli/flag_names.hpp"
#include "cli/nearest.hpp"
#include "espalier/version.hpp"

namespace espalier::cli {
namespace {

int report(const std::string& message) {
    fmt::print(stderr, "espalier: {}\n", message);
    return 1;
}

// The innermost command that was given: bench, then engine.
const CLI::App& given_command(const CLI::App& app) {
    const auto given = app.get_subcommands();
    return given.empty() ? app : given_command(*given.front());
}

// Advice for a word that was not expected; empty: no flag or command is near it.
std::string advice(const CLI::App& app, int argc, char** argv) {
    const CLI::App& command = given_command(app);
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options())
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    for (const CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; }))
        known.push_back(inner->get_name());
    for (int i = 1; i < argc; ++i) {
        const std::string_view whole = argv[i];
        const std::string_view word = whole.substr(0, whole.find('='));
        if (std::ranges::find(known, word) != known.end()) continue;
        if (const std::string meant = near_slip(word, known); !meant.empty())
            return fmt::format("'{}': did you mean {}?", word, meant);
    }
    return {};
}

// A sub-command, under the heading of the help that says what one wants to do with it.
struct Command {
    const char* group;
    Run (*add)(CLI::App&);
};

constexpr Command kCommands[] = {
    {"Run a model", add_generate},
#ifdef ESPALIER_SERVER
    {"Run a model", add_chat},
    {"Run a model", add_serve},
#endif
    {"Run a model", add_demo},
    {"Look into a model", add_inspect},
    {"Look into a model", add_tokenize},
    {"Look into a model", add_eval},
#ifdef ESPALIER_SERVER
    {"Get or write a model", add_pull},
#endif
    {"Get or write a model", add_quantize},
    {"Get or write a model", add_convert},
    {"Get or write a model", add_pack},
    {"Get or write a model", add_make_model},
    {"Check and measure", add_selftest},
    {"Check and measure", add_bench},
    {"Check and measure", add_replay},
};

constexpr const char* kExamples = R"(Examples:
  espalier generate models/sapling "def add(a, b):"     continue a text
  espalier serve ORG/NAME --port 8000                   OpenAI-compatible, with a page in the browser
  espalier inspect FILE.gguf                            what it is, whether it fits, how fast it can be

espalier COMMAND --help lists a command's flags.)";

int run(int argc, char** argv) {
    CLI::App app(
        "Runs and serves MLA models (DeepSeek, Kimi, GLM) with speculative trees: the same text, "
        "sooner.",
        "espalier");
    app.set_version_flag("--version", "espalier " ESPALIER_VERSION);
    app.require_subcommand(1);
    app.failure_message(CLI::FailureMessage::simple);
    std::vector<Run> commands;
    for (const Command& command : kCommands) {
        commands.push_back(command.add(app));
        app.get_subcommands({}).back()->group(command.group);
    }
    commands.push_back(add_follow_rank(app));  // not in the help
    app.footer(kExamples);                     // after the commands, which would inherit it
    require_decimal_integers(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (app.exit(error) == 0) return 0;
        if (const std::string meant = advice(app, argc, argv); !meant.empty())
            fmt::print(stderr, "{}\n", meant);
        return 2;
    }
    const auto chosen = app.get_subcommands({});
    for (std::size_t i = 0; i < commands.size(); ++i) {
        if (!chosen[i]->parsed()) continue;
        if (const auto result = commands[i](); !result)
            return report(named_by_flag(given_command(app), result.error()).message);
    }
    return 0;
}

}  // namespace

int run_program(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        return report(error.what());
    }
}

}  // namespace espalier::cli
