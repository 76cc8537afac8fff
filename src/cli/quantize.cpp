// SPDX-License-Identifier: Apache-2.0
// espalier quantize: a BF16 or FP8 checkpoint as INT8 or INT4, in the layout of compressed-tensors.
#include "model/quantize.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/pack.hpp"
#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

struct QuantizeOptions {
    std::string model;
    std::string out;
    std::string weights = "int4";
    std::string head = "auto";
    bool packed = false;
    int threads = 0;
};

Expected<void> run(const QuantizeOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint source,
                              checkpoint::Checkpoint::open(options.model));
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(options.threads));
    ThreadPool pool(threads);
    {
        ProgressBar bar("rounding");
        ESPALIER_RETURN_IF_ERROR(model::quantize(
            source, options.out, pool,
            {.code = runtime::parse_rounding(options.weights).value_or(WeightCode::int4),
             .head_int8 = runtime::parse_head_rounding(options.head).has_value(),
             .progress = [&](std::uint64_t done, std::uint64_t total) {
                 bar.update(done, total);
             }}));
    }
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint made,
                              checkpoint::Checkpoint::open(options.out));
    fmt::print("{}: {} in {}, from {}\n", options.out,
               bytes_text(static_cast<double>(made.total_bytes())), options.weights,
               bytes_text(static_cast<double>(source.total_bytes())));
    if (options.packed) return write_packed(options.out, options.threads);
    return {};
}

}  // namespace

Run add_quantize(CLI::App& app) {
    const auto options = std::make_shared<QuantizeOptions>();
    CLI::App* command = app.add_subcommand(
        "quantize", "Write a BF16 or FP8 model again with weights of 8 or 4 bits");
    command
        ->add_option("model", options->model, "Model directory or ORG/NAME in the local hub cache")
        ->required();
    command
        ->add_option(
            "out", options->out,
            "Directory to write: new, empty, or begun by the same command, which then goes "
            "on")
        ->required();
    command
        ->add_option("--weights", options->weights,
                     "Rounding in groups of 32 (not embedding, head, router, kv_b)")
        ->check(CLI::IsMember({"int8", "int4"}))
        ->capture_default_str();
    command
        ->add_option("--head", options->head,
                     "Head: own, int8 (rounded in groups of 32; a tied embedding stays, so files "
                     "hold both) or auto, which is own")
        ->check(CLI::IsMember({"auto", "own", "int8"}))
        ->capture_default_str();
    command->add_flag("--packed", options->packed,
                      "Layout of the CPU's kernels too, as espalier pack writes it");
    add_threads_flag(*command, options->threads);
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
