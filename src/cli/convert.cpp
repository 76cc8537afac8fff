// SPDX-License-Identifier: Apache-2.0
// espalier convert: a GGUF model as a directory of safetensors, with its tokenizer.
#include "model/convert.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "base/gguf.hpp"
#include "base/mapped_file.hpp"
#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/terminal.hpp"
#include "text/gguf_files.hpp"

namespace espalier::cli {
namespace {

struct ConvertOptions {
    std::string model;
    std::string out;
    int threads = 0;
};

Expected<void> run(const ConvertOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint source,
                              checkpoint::Checkpoint::open(options.model));
    model::ConvertOptions how;
    if (source.is_gguf()) {
        const std::string name = source.directory().filename().string();
        ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(source.directory()));
        ESPALIER_ASSIGN_OR_RETURN(const GgufHeader header, parse_gguf(file.bytes(), name));
        ESPALIER_ASSIGN_OR_RETURN(how.texts, text::gguf_tokenizer_files(header, name));
    }
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(options.threads));
    ThreadPool pool(threads);
    {
        ProgressBar bar("converting");
        how.progress = [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); };
        ESPALIER_RETURN_IF_ERROR(model::convert(source, options.out, pool, how));
    }
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint made,
                              checkpoint::Checkpoint::open(options.out));
    fmt::print("{}: {}, from {}\n", options.out,
               bytes_text(static_cast<double>(made.total_bytes())),
               bytes_text(static_cast<double>(source.total_bytes())));
    return {};
}

}  // namespace

Run add_convert(CLI::App& app) {
    const auto options = std::make_shared<ConvertOptions>();
    CLI::App* command =
        app.add_subcommand("convert", "Write a GGUF model as safetensors, with its tokenizer");
    command->add_option("model", options->model, "GGUF file, the first one of several")->required();
    command
        ->add_option(
            "out", options->out,
            "Directory to write: new, empty, or begun by the same command, which then goes on")
        ->required();
    add_threads_flag(*command, options->threads);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
