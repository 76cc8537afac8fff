// SPDX-License-Identifier: Apache-2.0
// espalier bench mla: absorbed attention (--prompts: decompressed) per shape against the floor, the
// time that bytes or operations alone would take. CUDA: replays of graphs, the cache rotated
// through 3.2 GB so that L2 is cold. CPU: against this machine's own bandwidth and peak, measured
// in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/mla_prompts.hpp"
#include "cli/mla_timing.hpp"
#include "cli/terminal.hpp"
#include "conformance/batch.hpp"
#include "conformance/suite.hpp"
#include "linalg/machine_peaks.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::cli {
namespace {

constexpr std::int64_t kCudaPool = 3'200'000'000;
constexpr std::int64_t kCpuPool = std::int64_t{512} << 20;  // well above any cache

struct BenchMlaOptions {
    std::string device = "cpu";
    std::string format = "bf16";
    std::string shapes;
    std::string csv;
    std::string mask = "causal";
    bool prompts = false;
    bool invariant = false;
    std::int64_t partial_megabytes = 0;
    bool warm = false;
    std::vector<int> threads;
    int repetitions = 7;
};

struct Peaks {
    double bytes_per_second = 0;
    double flops_per_second = 0;
};

// Peaks that one H200 gives to a kernel that does nothing else.
Peaks hopper_peaks(mla::KvFormat format) {
    const bool fp8 = format == mla::KvFormat::fp8_tensor || format == mla::KvFormat::fp8_token;
    return {4.45e12, fp8 ? 1500e12 : 790e12};
}

Expected<Peaks> cpu_peaks(CpuVariant variant, int threads, bool narrow) {
    CpuDevice device(threads);
    ESPALIER_ASSIGN_OR_RETURN(Buffer probe, device.allocate(static_cast<std::size_t>(kCpuPool)));
    std::fill_n(probe.data(), probe.bytes(), std::byte{1});  // untouched memory is one shared page
    return Peaks{
        linalg::measured_read_bandwidth(device.pool(), variant, {probe.data(), probe.bytes()}),
        narrow ? linalg::measured_bf16_peak(device.pool(), variant)
               : linalg::measured_f32_peak(device.pool(), variant)};
}

Expected<mla::KvFormat> parse_format(const std::string& name) {
    for (const mla::KvFormat format : conformance::kFormats)
        if (name_of(format) == name) return format;
    return fail(ErrorKind::invalid, "--format {}: no such cache format", name);
}

// A CPU's figures are in thousandths of a GPU's. threads: 0 for CUDA.
std::vector<std::string> result_row(const MlaTiming& timing, const MlaCost& cost,
                                    const Peaks& peaks, int threads, bool peers) {
    const double unit = threads > 0 ? 1e9 : 1e12;
    const MlaShape& shape = timing.shape;
    std::vector<std::string> row = {std::to_string(shape.batch), std::to_string(shape.kv_len),
                                    std::to_string(shape.heads), std::to_string(shape.q_len),
                                    std::to_string(shape.packed_rows())};
    if (threads > 0) row.insert(row.begin(), std::to_string(threads));
    row.push_back(fmt::format("{:.1f}", timing.seconds * 1e6));
    row.push_back(fmt::format("{:.1f}", cost.flops / timing.seconds / unit));
    row.push_back(
        fmt::format("{:.0f}", 100 * cost.flops / timing.seconds / peaks.flops_per_second));
    row.push_back(fmt::format("{:.2f}", cost.bytes / timing.seconds / unit));
    row.push_back(fmt::format("{:.1f}", timing.floor_seconds * 1e6));
    row.push_back(fmt::format("{:.2f}", timing.seconds / timing.floor_seconds));
    if (!peers) return row;
    row.push_back(shape.peer_seconds ? fmt::format("{:.1f}", *shape.peer_seconds * 1e6) : "");
    row.push_back(shape.peer_seconds ? fmt::format("{:.2f}", *shape.peer_seconds / timing.seconds)
                                     : "");
    return row;
}

Table empty_table(bool cpu, bool peers) {
    Table table;
    table.columns = {"batch", "kv_len", "heads", "q_len", "R", "us"};
    if (cpu) table.columns.insert(table.columns.begin(), "threads");
    table.columns.emplace_back(cpu ? "GFLOP/s" : "TFLOP/s");
    table.columns.emplace_back("% of peak");
    table.columns.emplace_back(cpu ? "GB/s" : "TB/s");
    table.columns.emplace_back("floor us");
    table.columns.emplace_back("x floor");
    if (peers) {
        table.columns.emplace_back("peer us");
        table.columns.emplace_back("peer/ours");
    }
    return table;
}

// All shapes on one device; rows go to the table and the timings to the means.
Expected<std::vector<MlaTiming>> measure(conformance::Device& device, const PagePool& pool,
                                         const std::vector<MlaShape>& shapes,
                                         const MlaTimingOptions& options, const Peaks& peaks,
                                         bool peers, Table& table) {
    std::vector<MlaTiming> timings;
    for (const MlaShape& shape : shapes) {
        ESPALIER_ASSIGN_OR_RETURN(const CallTimes times,
                                  time_absorbed(device, pool, shape, options));
        const MlaCost cost = cost_of(shape, options.format, options.query, options.out);
        timings.push_back(
            {shape, times.seconds,
             std::max(cost.bytes / peaks.bytes_per_second, cost.flops / peaks.flops_per_second),
             times.plan_seconds});
        table.rows.push_back(
            result_row(timings.back(), cost, peaks, device.is_host() ? options.workers : 0, peers));
    }
    return timings;
}

Expected<void> write_csv(const std::string& path, const Table& table) {
    std::ofstream out(path);
    out << table.text(TableFormat::csv);
    if (!out.flush()) return fail(ErrorKind::io, "{}: cannot be written", path);
    return {};
}

std::string plan_line(const std::vector<MlaTiming>& timings) {
    const auto [least, most] = std::minmax_element(
        timings.begin(), timings.end(),
        [](const MlaTiming& a, const MlaTiming& b) { return a.plan_seconds < b.plan_seconds; });
    if (least == timings.end()) return "";
    return fmt::format(
        "Plan: made once per shape, as once for the layers of a step, and not part of the times: "
        "{:.1f} to {:.1f} us\n",
        least->plan_seconds * 1e6, most->plan_seconds * 1e6);
}

Expected<std::string> measure_cuda(const MlaTimingOptions& timing, bool peers,
                                   const std::vector<MlaShape>& shapes, Table& table) {
    ESPALIER_ASSIGN_OR_RETURN(const auto device,
                              conformance::make_cuda_device(conformance::Allocation::exact));
    ESPALIER_ASSIGN_OR_RETURN(
        const PagePool pool,
        PagePool::create(*device, timing.format, pool_bytes(shapes, timing.format, kCudaPool)));
    ESPALIER_ASSIGN_OR_RETURN(
        const auto timings,
        measure(*device, pool, shapes, timing, hopper_peaks(timing.format), peers, table));
    return group_means(timings) + plan_line(timings);
}

Expected<std::string> measure_cpu(MlaTimingOptions timing, const std::vector<int>& threads,
                                  bool peers, const std::vector<MlaShape>& shapes, Table& table) {
    ESPALIER_ASSIGN_OR_RETURN(const CpuVariant variant, chosen_cpu_variant());
    const auto device = conformance::make_cpu_device(variant, conformance::Allocation::exact);
    ESPALIER_ASSIGN_OR_RETURN(
        const PagePool pool,
        PagePool::create(*device, timing.format, pool_bytes(shapes, timing.format, kCpuPool)));
    std::string means;
    for (const int workers : threads) {
        timing.workers = workers;
        // fp16 and f32 caches are multiplied in f32.
        const bool narrow =
            timing.format != mla::KvFormat::f32 && timing.format != mla::KvFormat::fp16;
        ESPALIER_ASSIGN_OR_RETURN(const Peaks peaks, cpu_peaks(variant, workers, narrow));
        fmt::print(stderr, "{}, {} threads: {:.1f} GB/s read, {:.0f} GFLOP/s peak\n",
                   device->name(), workers, peaks.bytes_per_second / 1e9,
                   peaks.flops_per_second / 1e9);
        ESPALIER_ASSIGN_OR_RETURN(const auto timings,
                                  measure(*device, pool, shapes, timing, peaks, peers, table));
        means += fmt::format("{} threads\n{}", workers, group_means(timings));
    }
    return means;
}

// Decompressed attention: how fast it is, with the up-projection's operations counted and without.
Expected<std::string> measure_prompts(const MlaTimingOptions& timing,
                                      const std::vector<MlaShape>& shapes, Table& table) {
    ESPALIER_ASSIGN_OR_RETURN(const auto device,
                              conformance::make_cuda_device(conformance::Allocation::exact));
    ESPALIER_ASSIGN_OR_RETURN(
        const PagePool pool,
        PagePool::create(*device, timing.format, pool_bytes(shapes, timing.format, 1)));
    table.columns = {"batch", "cached", "tokens", "heads", "us", "TFLOP/s", "with up-projection"};
    for (const MlaShape& shape : shapes) {
        ESPALIER_ASSIGN_OR_RETURN(const double seconds,
                                  time_decompressed(*device, pool, shape, timing));
        const PromptCost cost = prompt_cost(shape);
        table.rows.push_back(
            {std::to_string(shape.batch), std::to_string(shape.kv_len - shape.q_len),
             std::to_string(shape.q_len), std::to_string(shape.heads),
             fmt::format("{:.1f}", seconds * 1e6),
             fmt::format("{:.0f}", cost.attention_flops / seconds / 1e12),
             fmt::format("{:.0f}", (cost.attention_flops + cost.project_flops) / seconds / 1e12)});
    }
    return std::string();
}

Expected<void> run(const BenchMlaOptions& options) {
    MlaTimingOptions timing;
    ESPALIER_ASSIGN_OR_RETURN(timing.format, parse_format(options.format));
    timing.query = timing.out = conformance::usual_query(timing.format);
    timing.tree = options.mask == "tree";
    timing.invariant = options.invariant;
    timing.partial_bytes = options.partial_megabytes * 1'000'000;
    timing.warm = options.warm;
    timing.repetitions = options.repetitions;
    const bool cuda = options.device == "cuda";
    if (options.prompts && !cuda)
        return fail(ErrorKind::unsupported, "--prompts is for --device cuda");
    std::vector<MlaShape> shapes = options.prompts ? prompt_shapes() : usual_shapes(cuda);
    if (!options.shapes.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(shapes, read_shapes(options.shapes, timing.format));
    }
    const bool peers = std::any_of(shapes.begin(), shapes.end(), [](const MlaShape& shape) {
        return shape.peer_seconds.has_value();
    });
    std::vector<int> threads = options.threads;
    if (threads.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(const int all, runtime::thread_count(0));
        for (int count = 1; count < all; count *= 2) threads.push_back(count);
        threads.push_back(all);
    }
    Table table = empty_table(!cuda, peers);
    ESPALIER_ASSIGN_OR_RETURN(const std::string means,
                              options.prompts ? measure_prompts(timing, shapes, table)
                              : cuda          ? measure_cuda(timing, peers, shapes, table)
                                              : measure_cpu(timing, threads, peers, shapes, table));
    fmt::print("{}\n", table.text(TableFormat::markdown));
    if (!means.empty()) fmt::print("Geometric means\n{}", means);
    if (options.csv.empty()) return {};
    return write_csv(options.csv, table);
}

}  // namespace

Run add_bench_mla(CLI::App& bench) {
    const auto options = std::make_shared<BenchMlaOptions>();
    CLI::App* command = bench.add_subcommand(
        "mla", "Time absorbed attention per shape against the floor, with a cold cache");
    std::vector<std::string> formats;
    for (const mla::KvFormat format : conformance::kFormats) formats.emplace_back(name_of(format));
    command->add_option("--device", options->device, "Where the kernels run")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    command->add_option("--format", options->format, "Cache format")
        ->check(CLI::IsMember(formats))
        ->capture_default_str();
    command->add_option("--shapes", options->shapes,
                        "CSV with columns batch, kv_len, heads, q_len and peers' times, as "
                        "data/peers/mla_decode_h200.csv");
    command->add_option("--csv", options->csv, "CSV file that gets the table too");
    command->add_option("--mask", options->mask, "Mask of every row; a tree has random parents")
        ->check(CLI::IsMember({"causal", "tree"}))
        ->capture_default_str();
    command->add_flag("--prompts", options->prompts,
                      "CUDA: decompressed attention of prompts and their chunks, up-projection "
                      "included, instead");
    command->add_flag("--invariant", options->invariant,
                      "CUDA: invariant form (the CPU's only one)");
    command
        ->add_option("--partial-megabytes", options->partial_megabytes,
                     "CUDA, --invariant: workspace of partial results; 0: the usual 250")
        ->check(CLI::Range(0, 1'000'000))
        ->capture_default_str();
    command->add_flag("--warm", options->warm,
                      "Same pages for all calls, so that caches may keep them");
    command->add_option("--threads", options->threads, "CPU: one table part each; 1 to all cores")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::Range(1, 1024));
    command
        ->add_option("-r,--repetitions", options->repetitions,
                     "Timed replays per shape; the median is reported")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
