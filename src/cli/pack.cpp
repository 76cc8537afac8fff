// SPDX-License-Identifier: Apache-2.0
// espalier pack: a model's weights once more, in the layout of this machine's kernels.
#include "cli/pack.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/terminal.hpp"
#include "model/packed_weights.hpp"

namespace espalier::cli {

Expected<void> write_packed(const std::string& model, int threads) {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(model));
    const auto source = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
    ESPALIER_ASSIGN_OR_RETURN(const int workers, runtime::thread_count(threads));
    CpuDevice device(workers);
    {
        ProgressBar bar("packing");
        ESPALIER_RETURN_IF_ERROR(model::write_packed_weights(
            source, device,
            [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); }));
    }
    const std::filesystem::path path = model::packed_weights_path(*source);
    fmt::print("{}: {}\n", path.string(),
               bytes_text(static_cast<double>(std::filesystem::file_size(path))));
    return {};
}

Run add_pack(CLI::App& app) {
    struct Options {
        std::string model;
        int threads = 0;
    };
    const auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "pack",
        "Write a model's weights in the layout of the CPU's kernels, which later starts map");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    add_threads_flag(*command, options->threads);
    return [options] { return write_packed(options->model, options->threads); };
}

}  // namespace espalier::cli
