// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_flags.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "base/user_cache.hpp"
#include "cli/flag_names.hpp"

namespace espalier::cli {

void add_threads_flag(CLI::App& command, int& threads) {
    command.add_option("--threads", threads, "Threads; 0: OMP_NUM_THREADS or one per core")
        ->capture_default_str();
}

void add_device_flag(CLI::App& command, DeviceKind& device) {
    command
        .add_option_function<std::string>(
            "--device",
            [&device](const std::string& name) {
                device = runtime::parse_device(name).value_or(DeviceKind::cpu);
            },
            "Where the model runs: cpu, or cuda (a Hopper GPU; no F32 or F16 weights)")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->default_str("cpu");
}

void add_weights_flag(CLI::App& command, std::optional<WeightCode>& rounding) {
    command
        .add_option_function<std::string>(
            "--weights",
            [&rounding](const std::string& name) { rounding = runtime::parse_rounding(name); },
            "Weights in memory: own (the checkpoint's), or BF16 and F8_E4M3 ones rounded to int8 "
            "or int4 in groups of 32 (not embedding, head, router, kv_b)")
        ->check(CLI::IsMember({"own", "int8", "int4"}))
        ->default_str("own");
}

void add_head_flag(CLI::App& command, std::optional<WeightCode>& rounding) {
    command
        .add_option_function<std::string>(
            "--head",
            [&rounding](const std::string& name) { rounding = runtime::parse_head_rounding(name); },
            "Head in memory: own (the checkpoint's), int8 (a BF16 or F8_E4M3 one rounded in groups "
            "of 32; a tied embedding stays) or auto, which is own")
        ->check(CLI::IsMember({"auto", "own", "int8"}))
        ->default_str("auto");
}

void add_activations_flag(CLI::App& command, std::optional<NumberMode>& mode) {
    command
        .add_option_function<std::string>(
            "--activations", [&mode](const std::string& name) { mode = parse_number_mode(name); },
            "Inputs of products with INT8 and INT4 weights: own (bf16), int8 (by blocks of 32, on "
            "the CPU), fp8 (no device yet) or auto: int8 where the device has it")
        ->check(CLI::IsMember({"auto", "own", "int8", "fp8"}))
        ->default_str("auto");
}

void add_mmap_experts_flag(CLI::App& command, bool& mmap_experts) {
    command.add_flag("--mmap-experts", mmap_experts,
                     "Routed experts stay on disk, mapped from the file of espalier pack or of the "
                     "weight cache; on the CPU, the same text");
}

void add_enforce_eager_flag(CLI::App& command, bool& enforce_eager) {
    command.add_flag(
        "--enforce-eager", enforce_eager,
        "No captured graphs on a GPU: each operation is queued by itself; for debugging");
}

void add_kv_format_flag(CLI::App& command, std::optional<mla::KvFormat>& format) {
    command
        .add_option_function<std::string>(
            "--kv-format",
            [&format](const std::string& name) { format = runtime::parse_kv_format(name); },
            "Cache format: own (f32 or bf16, as the activations), fp8_token or fp8_tensor")
        ->check(CLI::IsMember({"own", "fp8_token", "fp8_tensor"}))
        ->default_str("own");
}

void EngineFlags::add_speculate_to(CLI::App& command) {
    command.add_option("--speculate", engine.speculate, kSpeculateHelp)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember(runtime::kDrafterNames))
        ->capture_default_str();
}

void EngineFlags::add_kept_to(CLI::App& command) {
    engine.speculation_memory = runtime::SpeculationMemory::default_directory().string();
    command
        .add_option_function<std::string>(
            "--speculation-memory",
            [this](const std::string& text) {
                engine.speculation_memory = text == "off" ? "" : text;
            },
            "Directory of what speculation learnt, for the next start: numbers, no text; off: "
            "none. Default: espalier/speculation in the user's cache directory")
        ->check(not_empty());
    load.weight_cache = {.directory = user_cache("weights").string(),
                         .least_bytes = std::uint64_t{1} << 30};
    command
        .add_option_function<std::string>(
            "--weight-cache",
            [this](const std::string& text) {
                load.weight_cache = {.directory = text == "off" ? "" : text};
            },
            "Directory where the CPU keeps packed weights, which later starts map; off: none. "
            "Default: espalier/weights in the user's cache directory, for models of 1 GiB and more")
        ->check(not_empty());
}

void EngineFlags::add_to(CLI::App& command, const Defaults& defaults) {
    const auto number = [&](const char* name, std::int64_t& value, const std::string& help) {
        command.add_option(name, value, help)->capture_default_str();
    };
    const auto one_of = [&](const char* name, const char* first, const char* other,
                            const char* help, std::function<void(bool is_first)> set) {
        command
            .add_option_function<std::string>(
                name,
                [first = std::string(first), set = std::move(set)](const std::string& text) {
                    set(text == first);
                },
                help)
            ->check(CLI::IsMember({first, other}))
            ->default_str(first);
    };
    command
        .add_option("--draft", draft, "EAGLE3 draft: directory or ORG/NAME in the local hub cache")
        ->check(not_empty());
    runtime::SizeOptions& sizes = engine.sizes;
    number("--rows", sizes.rows, fmt::format("Requests in a step at most; {}", defaults.rows));
    number("--pages", sizes.pages,
           fmt::format("Cache size in pages of 64 tokens; {}", defaults.pages));
    number("--step-tokens", sizes.step_tokens,
           "Tokens in a step at most; at least one per row and a prompt quantum of 512");
    number("--max-waiting", sizes.max_waiting, "Requests that may wait; more are refused");
    number("--max-model-len", sizes.max_model_len,
           "Tokens of prompt and output together; 0: the model's context");
    command
        .add_option("--gpu-memory-utilization", sizes.gpu_memory_utilization,
                    "Share of a GPU's memory that may be in use; the cache gets what is left of it")
        ->capture_default_str();
    one_of(
        "--grant", "measured", "everything",
        "Drafts that are verified: measured (as many as pay) or everything", [this](bool measured) {
            engine.grant = measured ? engine::NodeGrant::measured : engine::NodeGrant::everything;
        });
    one_of("--prefix-cache", "on", "off", "Reuse of pages by prompts that begin alike: on or off",
           [this](bool on) { engine.prefix_cache = on; });
    one_of("--prefill-segment", "64", "0",
           "64: prompts of more than 256 tokens compute whole segments of 64 decompressed (of 256 "
           "beyond 4,096); 0: everything absorbed. Decides the last bits of a text",
           [this](bool segments) { engine.prefill_segment = segments ? cache::kPageTokens : 0; });
    command.add_flag(
        "--reuse-generated", engine.reuse_generated,
        "Reuse of pages of generated text too; the bits of a prompt then depend on a hit");
    command
        .add_option("--trace", engine.trace,
                    "File that gets every step, for replay (docs/trace.md); it holds the prompts")
        ->check(not_empty());
    add_weights_flag(command, load.rounding);
    add_head_flag(command, load.head_rounding);
    add_activations_flag(command, load.activations);
    add_mmap_experts_flag(command, load.mmap_experts);
    add_enforce_eager_flag(command, engine.enforce_eager);
    add_kv_format_flag(command, load.kv_format);
    add_device_flag(command, load.device);
    add_threads_flag(command, load.threads);
    ranks.add_to(command);
}

Expected<runtime::LoadedModel> load_model(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                          const EngineSizes& sizes, runtime::LoadOptions options) {
    ProgressBar bar("loading");
    options.progress = [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); };
    options.say = [](const std::string& what) { fmt::print(stderr, "espalier: {}\n", what); };
    return runtime::LoadedModel::load(std::move(checkpoint), sizes, options);
}

Expected<void> stop_engine(runtime::RunningEngine& running) {
    ESPALIER_ASSIGN_OR_RETURN(const auto end, running.stop());
    if (end && end->reason == trace::Close::overflow)
        fmt::print(stderr, "the trace ends after {} steps: the disk was too slow for more\n",
                   end->steps);
    return {};
}

}  // namespace espalier::cli
