// SPDX-License-Identifier: Apache-2.0
// The espalier binary: parses the command line and hands over to a sub-command.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"
#include "cli/flag_names.hpp"
#include "espalier/version.hpp"

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

int run(int argc, char** argv) {
    using namespace espalier;
    CLI::App app(
        "Runs MLA models (DeepSeek-V2/V3, Kimi K2) with speculative trees. Sub-commands have a "
        "--help "
        "of their own.",
        "espalier");
    app.set_version_flag("--version", "espalier " ESPALIER_VERSION);
    app.require_subcommand(1);
    app.failure_message(CLI::FailureMessage::simple);
    std::vector<cli::Run> commands = {
        cli::add_generate(app),   cli::add_inspect(app),  cli::add_tokenize(app),
        cli::add_make_model(app), cli::add_selftest(app), cli::add_bench(app),
        cli::add_replay(app),     cli::add_demo(app),     cli::add_quantize(app),
        cli::add_pack(app),       cli::add_eval(app)};
#ifdef ESPALIER_SERVER
    commands.push_back(cli::add_serve(app));
    commands.push_back(cli::add_chat(app));
#endif
    cli::require_decimal_integers(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    const auto chosen = app.get_subcommands({});
    for (std::size_t i = 0; i < commands.size(); ++i) {
        if (!chosen[i]->parsed()) continue;
        if (const auto result = commands[i](); !result)
            return report(cli::named_by_flag(given_command(app), result.error()).message);
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        return report(error.what());
    }
}
