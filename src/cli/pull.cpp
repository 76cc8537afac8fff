// SPDX-License-Identifier: Apache-2.0
// espalier pull: a model by its name into the hub cache.
#include "cli/pull.hpp"

#include <fmt/format.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/safe_text.hpp"
#include "cli/terminal.hpp"
#include "hub/pull.hpp"

namespace espalier::cli {
namespace {

struct PullFlags {
    std::string model, revision;
    hub::PullOptions options;
};

// The bar ends with the owner of what comes back.
hub::PullOptions with_bar(hub::PullOptions options) {
    const auto bar = std::make_shared<ProgressBar>("fetching");
    options.progress = [bar](std::uint64_t done, std::uint64_t total) { bar->update(done, total); };
    options.say = [](const std::string& line) { fmt::print(stderr, "{}\n", printable(line)); };
    return options;
}

Expected<void> run_pull(const PullFlags& flags) {
    std::string name = flags.model;
    if (!flags.revision.empty()) {
        if (name.find('@') != std::string::npos)
            return fail(ErrorKind::invalid, "{} and --revision {}: two revisions", name,
                        flags.revision);
        name += "@" + flags.revision;
    }
    const auto wanted = hub::wanted_model(name);
    if (!wanted)
        return fail(ErrorKind::invalid,
                    "'{}': not of the form ORG/NAME, ORG/NAME@REVISION or ORG/NAME/FILE.gguf",
                    name);
    ESPALIER_ASSIGN_OR_RETURN(const hub::Pulled pulled,
                              hub::pull(*wanted, with_bar(flags.options)));
    fmt::print(stderr, "{} files of {}, {} of them fetched now\n", pulled.files, pulled.commit,
               bytes_text(static_cast<double>(pulled.fetched_bytes)));
    fmt::print("{}\n", pulled.path.string());
    return {};
}

}  // namespace

Expected<std::string> fetched_model(const std::string& model) {
    return hub::on_disk(model, with_bar({}));
}

Run add_pull(CLI::App& app) {
    const auto flags = std::make_shared<PullFlags>();
    CLI::App* command = app.add_subcommand("pull", "Fetch a model by its name into the hub cache");
    command->footer(
        "HF_ENDPOINT names another hub, HF_TOKEN opens what is not open to everyone, HF_HUB_CACHE "
        "(or HF_HOME)\nsays where the cache is. Partial files are resumed. Prints the directory.");
    command
        ->add_option("model", flags->model,
                     "ORG/NAME, or ORG/NAME/FILE.gguf for one GGUF file (with its parts)")
        ->required();
    command->add_option("--revision", flags->revision, "Branch, tag or commit (default: main)");
    command
        ->add_option("--connections", flags->options.threads,
                     "Parts of a file that are fetched at a time")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    command
        ->add_option("--retries", flags->options.retries,
                     "Tries in a row without a byte before it gives up")
        ->check(CLI::Range(0, 100))
        ->capture_default_str();
    command
        ->add_option("--part-bytes", flags->options.piece_bytes,
                     "Bytes of a file that one request fetches")
        ->check(CLI::Range(std::int64_t{4096}, std::int64_t{1} << 40))
        ->capture_default_str();
    return [flags] { return run_pull(*flags); };
}

}  // namespace espalier::cli
