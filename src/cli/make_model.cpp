// SPDX-License-Identifier: Apache-2.0
// espalier make-model: a model of random weights in the published format, for demos, tests and
// benchmarks.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/synthetic.hpp"
#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::cli {
namespace {

struct Options {
    std::string preset = "tiny-v3";
    std::string out;
    std::string dtype;
    std::string eagle3;
    std::uint64_t seed = 0;
};

// --dtype: how a model's projections are stored.
struct NamedDtype {
    std::string_view name;
    DType dtype = DType::bf16;
    checkpoint::Quantization quantization = {};
};
constexpr std::array<NamedDtype, 7> kDtypes = {{
    {"f32", DType::f32},
    {"f16", DType::f16},
    {"bf16", DType::bf16},
    {"fp8", DType::e4m3},
    {"int8", DType::bf16, {checkpoint::QuantizedLayout::int8, 8, 32}},
    {"int4", DType::bf16, {checkpoint::QuantizedLayout::packed_integers, 4, 32}},
    {"nvfp4", DType::bf16, {checkpoint::QuantizedLayout::nvfp4, 4, 16}},
}};

std::vector<std::string> dtype_names() {
    std::vector<std::string> names;
    for (const NamedDtype& dtype : kDtypes) names.emplace_back(dtype.name);
    return names;
}

Expected<void> run(const Options& options) {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::SyntheticModel model,
                              checkpoint::synthetic_preset(options.preset));
    model.seed = options.seed;
    for (const NamedDtype& dtype : kDtypes) {
        if (dtype.name != options.dtype) continue;
        model.dtype = dtype.dtype;
        model.config.quantization = dtype.quantization;
        model.config.fp8_block =
            model.dtype == DType::e4m3 ? std::optional<std::int64_t>(128) : std::nullopt;
    }
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
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("make-model", "Write a model of random weights in the published format");
    std::vector<std::string> presets;
    for (const std::string_view name : checkpoint::synthetic_preset_names())
        presets.emplace_back(name);
    command->add_option("--preset", options->preset, "Shape of the model")
        ->check(CLI::IsMember(presets))
        ->capture_default_str();
    command->add_option("--out", options->out, "Directory to write; new or empty")->required();
    command
        ->add_option("--dtype", options->dtype, "Of its projections; the preset's own if not given")
        ->check(CLI::IsMember(dtype_names()));
    command->add_option("--eagle3", options->eagle3,
                        "Directory for an EAGLE3 draft of random weights for the model");
    command->add_option("--seed", options->seed, "Other random weights")->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
