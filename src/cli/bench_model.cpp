// SPDX-License-Identifier: Apache-2.0
// espalier bench model: how long a forward takes, and which share of this machine's read bandwidth
// and peak that is; both are measured in the same run, so a busy neighbour shows in all figures
// alike. On a GPU, whose peaks are not measured here, each window is also replayed as a graph.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_device.hpp"
#include "cli/command.hpp"
#include "cli/engine_flags.hpp"
#include "cli/synthetic_model.hpp"
#include "cli/terminal.hpp"
#include "cli/window_batch.hpp"
#include "linalg/machine_peaks.hpp"
#include "model/cost.hpp"
#include "model/sequence.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kProbeBytes = std::size_t{512} << 20;  // well above any cache

struct BenchModelOptions {
    BenchedModel model;
    std::vector<std::int64_t> depths = {0, 2048};
    std::vector<std::int64_t> sequences = {1};
    std::vector<std::int64_t> rows = {1, 2, 4, 8, 64};
    std::vector<std::int64_t> prompts = {512, 2048};
    std::int64_t step_tokens = EngineSizes{}.max_step_tokens;
    int repetitions = 7;
    runtime::LoadOptions load;
    std::string output = "md";
};

// 0: not measured.
struct Machine {
    double read_bytes_per_second = 0;
    double flops_per_second = 0;
};

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary) {
    std::mt19937 generator(1);
    std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(vocabulary - 1));
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::int32_t& token : tokens) token = any(generator);
    return tokens;
}

double median(std::vector<double>& seconds) {
    const auto middle = seconds.begin() + std::ssize(seconds) / 2;
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
}

// Median seconds of a recorded pass: the GPU's alone.
Expected<double> time_recorded(WindowBatch& batch, int repetitions) {
    ESPALIER_ASSIGN_OR_RETURN(const auto forward, batch.record());
    ESPALIER_RETURN_IF_ERROR(forward->play());
    std::vector<double> all;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
        ESPALIER_ASSIGN_OR_RETURN(const double seconds, forward->timed_play());
        all.push_back(seconds);
    }
    return median(all);
}

// Median seconds of what `forward` does, after one that is not timed.
template <typename Forward>
Expected<double> time_forward(int repetitions, const Forward& forward) {
    std::vector<double> seconds;
    for (int repetition = -1; repetition < repetitions; ++repetition) {
        const auto start = Clock::now();
        ESPALIER_RETURN_IF_ERROR(forward());
        if (repetition >= 0)
            seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return median(seconds);
}

std::string share(double rate, double peak) {
    return peak > 0 ? fmt::format("{:.0f}", 100 * rate / peak) : "-";
}

class StepBench {
  public:
    StepBench(const BenchModelOptions& options, runtime::LoadedModel& loaded,
              const Machine& machine)
        : options_(options), loaded_(loaded), machine_(machine) {
        table_.columns = {"test",     "depth", "sequences",           "tokens",  "ms",
                          "tokens/s", "GB/s",  "% of read bandwidth", "GFLOP/s", "% of peak"};
    }

    Expected<Table> run() {
        for (const std::int64_t depth : options_.depths)
            for (const std::int64_t sequences : options_.sequences)
                for (const std::int64_t rows : options_.rows)
                    ESPALIER_RETURN_IF_ERROR(window({sequences, depth, rows}));
        for (const std::int64_t length : options_.prompts) ESPALIER_RETURN_IF_ERROR(prompt(length));
        return std::move(table_);
    }

  private:
    Expected<void> window(const WindowBatch::Shape& of) {
        const std::int64_t tokens = of.sequences * of.window;
        ESPALIER_ASSIGN_OR_RETURN(
            auto batch,
            WindowBatch::create(loaded_, of,
                                random_tokens(tokens, loaded_.model->config().vocab_size)));
        const model::StepShape shape{tokens, of.depth, 0, of.sequences, of.sequences};
        ESPALIER_ASSIGN_OR_RETURN(const double seconds, time_forward(options_.repetitions, [&] {
                                      return batch.forward();
                                  }));
        add_row("window", shape, seconds);
        if (options_.load.device == DeviceKind::cpu) return {};
        ESPALIER_ASSIGN_OR_RETURN(const double recorded,
                                  time_recorded(batch, options_.repetitions));
        add_row("graph", shape, recorded);
        return {};
    }

    Expected<void> prompt(std::int64_t length) {
        ESPALIER_ASSIGN_OR_RETURN(auto sequence,
                                  model::Sequence::create(*loaded_.model, length, length));
        const auto tokens = random_tokens(length, loaded_.model->config().vocab_size);
        const auto feed = [&]() -> Expected<void> {
            sequence.set_length(0);
            ESPALIER_RETURN_IF_ERROR(sequence.feed(*loaded_.model, tokens, 1));
            return {};
        };
        ESPALIER_ASSIGN_OR_RETURN(const double seconds,
                                  time_forward(std::max(1, options_.repetitions / 2), feed));
        add_row("prompt", {length, 0, sequence.decompressed_below(), 1}, seconds);
        return {};
    }

    void add_row(const std::string& test, const model::StepShape& shape, double seconds) {
        const model::StepCost cost =
            model::step_cost(loaded_.model->config(), loaded_.model->weights().formats(), shape);
        const double bytes_rate = (cost.weight_bytes + cost.cache_bytes) / seconds;
        const double flops_rate = cost.flops / seconds;
        table_.rows.push_back({test, std::to_string(shape.depth), std::to_string(shape.sequences),
                               std::to_string(shape.tokens), fmt::format("{:.2f}", seconds * 1e3),
                               fmt::format("{:.1f}", static_cast<double>(shape.tokens) / seconds),
                               fmt::format("{:.1f}", bytes_rate / 1e9),
                               share(bytes_rate, machine_.read_bytes_per_second),
                               fmt::format("{:.0f}", flops_rate / 1e9),
                               share(flops_rate, machine_.flops_per_second)});
    }

    const BenchModelOptions& options_;
    runtime::LoadedModel& loaded_;
    const Machine machine_;
    Table table_;
};

Expected<Machine> measured_cpu(runtime::LoadedModel& loaded) {
    ThreadPool& pool = static_cast<CpuDevice&>(*loaded.device).pool();
    ESPALIER_ASSIGN_OR_RETURN(const CpuVariant variant, chosen_cpu_variant());
    ESPALIER_ASSIGN_OR_RETURN(Buffer probe, loaded.device->allocate(kProbeBytes));
    std::fill_n(probe.data(), kProbeBytes,
                std::byte{1});  // untouched memory is one shared page of zeros
    const bool narrow = loaded.model->weights().format.input() == DType::bf16;
    return Machine{.read_bytes_per_second = linalg::measured_read_bandwidth(
                       pool, variant, {probe.data(), probe.bytes()}),
                   .flops_per_second = narrow ? linalg::measured_bf16_peak(pool, variant)
                                              : linalg::measured_f32_peak(pool, variant)};
}

Expected<void> run(const BenchModelOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const TableFormat format, parse_table_format(options.output));
    ESPALIER_ASSIGN_OR_RETURN(const runtime::ModelFiles files,
                              options.model.open(options.load.device));
    EngineSizes sizes;
    sizes.max_step_gather = *std::max_element(options.sequences.begin(), options.sequences.end());
    sizes.max_rows = std::max(sizes.max_rows, static_cast<std::int32_t>(sizes.max_step_gather));
    sizes.max_step_tokens = options.step_tokens;
    for (const std::int64_t rows : options.rows) {
        sizes.max_step_tokens = std::max(sizes.max_step_tokens, rows * sizes.max_step_gather);
        for (const std::int64_t depth : options.depths)
            sizes.max_model_len = std::max(sizes.max_model_len, depth + rows);
    }
    for (const std::int64_t prompt : options.prompts)
        sizes.max_model_len = std::max(sizes.max_model_len, prompt);
    sizes.max_model_len =
        std::min(sizes.max_model_len, files.checkpoint->config().max_position_embeddings);
    ESPALIER_ASSIGN_OR_RETURN(runtime::LoadedModel loaded,
                              load_model(files.checkpoint, sizes, options.load));
    const std::string loading = fmt::format(
        "weights {}, loaded at {:.2f} GB/s",
        name_of(loaded.model->weights().formats().feed_forward.code),
        static_cast<double>(loaded.checkpoint->total_bytes()) / loaded.load_seconds / 1e9);
    Machine machine;
    if (options.load.device == DeviceKind::cpu) {
        ESPALIER_ASSIGN_OR_RETURN(machine, measured_cpu(loaded));
        fmt::print(stderr, "{}, {} threads: {:.1f} GB/s read, {:.0f} GFLOP/s peak; {}\n",
                   loaded.backend->name(), loaded.device->workers(),
                   machine.read_bytes_per_second / 1e9, machine.flops_per_second / 1e9, loading);
    } else {
        fmt::print(stderr, "{}: {}\n", loaded.backend->name(), loading);
    }
    ESPALIER_ASSIGN_OR_RETURN(const Table table, StepBench(options, loaded, machine).run());
    fmt::print("{}", table.text(format));
    return {};
}

}  // namespace

Run add_bench_model(CLI::App& bench) {
    const auto options = std::make_shared<BenchModelOptions>();
    CLI::App* command =
        bench.add_subcommand("model", "Time forwards against this machine's bandwidth and peak");
    options->model.add_to(*command);
    const CLI::Range tokens(std::int64_t{1}, std::int64_t{1} << 20);
    command
        ->add_option("--sequences", options->sequences,
                     "Sequences of a step, each with a cache and a window of its own")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{4096}))
        ->capture_default_str();
    command->add_option("--depth", options->depths, "Cached tokens before the window")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20))
        ->capture_default_str();
    command
        ->add_option("--rows", options->rows,
                     "Tokens of a window: 1 is plain decode, more is a verify step")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(tokens)
        ->capture_default_str();
    command->add_option("--prompt", options->prompts, "Lengths of prompts, from an empty cache")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(tokens)
        ->capture_default_str();
    command
        ->add_option("--step-tokens", options->step_tokens,
                     "Tokens of a prompt that are computed at once")
        ->check(tokens)
        ->capture_default_str();
    command
        ->add_option("-r,--repetitions", options->repetitions,
                     "Timed forwards per line; the median is reported")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    add_weights_flag(*command, options->load.rounding);
    add_head_flag(*command, options->load.head_rounding);
    add_activations_flag(*command, options->load.activations);
    add_mmap_experts_flag(*command, options->load.mmap_experts);
    add_device_flag(*command, options->load.device);
    add_threads_flag(*command, options->load.threads);
    command->add_option("-o,--output", options->output, "md, csv or json")->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
