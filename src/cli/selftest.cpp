// SPDX-License-Identifier: Apache-2.0
// espalier selftest: the attention library's conformance suite on this machine. Every guarantee of
// docs/mla_contract.md with new random problems until the time is over, ending in a table.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "conformance/suite.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;
namespace suite = conformance;

constexpr CpuVariant kVariants[] = {CpuVariant::portable, CpuVariant::avx2, CpuVariant::avx512,
                                    CpuVariant::avx512_bf16};

struct SelftestOptions {
    std::string device = "cpu";
    std::string variant;
    std::string format;
    std::string check;
    std::int64_t latent = 0;  // 0: every width
    double seconds = 10;
    std::uint64_t seed = 1;
    bool exact = false;
};

// One device with one format and width of keys, and what its checks have shown so far.
struct Subject {
    suite::Device* device = nullptr;
    std::string flags;  // that choose the device
    suite::Support support;
    std::vector<suite::Outcome> outcomes;  // by check
};

Expected<std::vector<CpuVariant>> chosen_variants(const std::string& name) {
    std::vector<CpuVariant> chosen;
    for (const CpuVariant variant : kVariants) {
        if (!name.empty() && name_of(variant) != name) continue;
        if (variant <= best_cpu_variant()) chosen.push_back(variant);
    }
    if (chosen.empty())
        return fail(ErrorKind::unsupported, "--variant {}: this machine has {} and below", name,
                    name_of(best_cpu_variant()));
    return chosen;
}

Expected<std::vector<std::unique_ptr<suite::Device>>> open_devices(const SelftestOptions& options) {
    const auto allocation = options.exact ? suite::Allocation::exact : suite::Allocation::guarded;
    std::vector<std::unique_ptr<suite::Device>> devices;
    if (options.device == "cuda") {
        if (!options.variant.empty())
            return fail(ErrorKind::invalid,
                        "--variant {} chooses among CPU kernels, --device is {}", options.variant,
                        options.device);
        ESPALIER_ASSIGN_OR_RETURN(auto device, suite::make_cuda_device(allocation));
        devices.push_back(std::move(device));
        return devices;
    }
    ESPALIER_ASSIGN_OR_RETURN(const auto variants, chosen_variants(options.variant));
    for (const CpuVariant variant : variants)
        devices.push_back(suite::make_cpu_device(variant, allocation));
    return devices;
}

// Asks every device about every format and width, and says what is refused.
std::vector<Subject> find_subjects(const SelftestOptions& options,
                                   const std::vector<std::unique_ptr<suite::Device>>& devices) {
    std::vector<Subject> subjects;
    std::map<std::string, std::set<std::string>> refusals;  // sentence → devices
    const auto ask = [&](suite::Device& device, mla::KvFormat format, const KeyDims& dims) {
        Subject subject;
        subject.device = &device;
        subject.flags =
            options.device == "cuda" ? "--device cuda" : "--device cpu --variant " + device.name();
        subject.support = suite::ask(device, format, dims);
        for (const std::string& refusal : subject.support.refusals)
            refusals[refusal].insert(device.name());
        subject.outcomes.resize(suite::all_checks().size());
        if (!subject.support.queries.empty() || subject.support.storage)
            subjects.push_back(std::move(subject));
    };
    for (const auto& device : devices)
        for (const KeyDims& dims : kKeyDims)
            for (const mla::KvFormat format : suite::kFormats)
                if ((options.latent == 0 || dims.latent == options.latent) &&
                    (options.format.empty() || name_of(format) == options.format))
                    ask(*device, format, dims);
    for (const auto& [refusal, names] : refusals)
        fmt::print("refused by {}: {}\n", fmt::join(names, ", "), refusal);
    return subjects;
}

struct Progress {
    std::int64_t slices = 0;
    std::int64_t cases = 0;
    std::int64_t failures = 0;
    bool device_lost = false;
    double seconds = 0;
};

// Slices with rising seeds; the time is looked at between checks, but the first slice is whole.
Progress run_slices(const SelftestOptions& options, std::vector<Subject>& subjects,
                    CpuDevice& oracle) {
    StatusLine status;
    Progress progress;
    const auto start = Clock::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    do {
        const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(progress.slices);
        for (Subject& subject : subjects) {
            for (std::size_t i = 0; i < subject.outcomes.size(); ++i) {
                const suite::Check& check = suite::all_checks()[i];
                if (!options.check.empty() && check.name != options.check) continue;
                if (!suite::applies(check, subject.support)) continue;
                if (progress.slices > 0 && elapsed() > options.seconds) break;
                status.update("{:.0f} s, seed {}, {} {} {}: {} · {} cases, {} failures", elapsed(),
                              seed, subject.device->name(), name_of(subject.support.format),
                              subject.support.dims.latent, check.title, progress.cases,
                              progress.failures);
                const suite::Outcome outcome =
                    suite::run_check(check, *subject.device, subject.support, oracle, seed);
                progress.cases += outcome.cases;
                progress.failures += outcome.failures;
                progress.device_lost = outcome.device_lost;
                subject.outcomes[i].add(outcome);
                if (outcome.device_lost) break;
            }
            if (progress.device_lost) break;
        }
        ++progress.slices;
    } while (elapsed() < options.seconds && !progress.device_lost);
    progress.seconds = elapsed();
    return progress;
}

std::string cell(const suite::Outcome& outcome) {
    if (outcome.cases == 0) return "-";
    std::string text = std::to_string(outcome.cases);
    if (outcome.worst > 0) text += fmt::format(" ({:.0f} %)", 100 * outcome.worst);
    if (outcome.failures > 0) text += fmt::format(" {} FAILED", outcome.failures);
    return text;
}

// Guarantees down, formats across; empty if the device has no such keys.
Table device_table(const suite::Device& device, const KeyDims& dims,
                   const std::vector<Subject>& subjects) {
    const auto belongs = [&](const Subject& subject) {
        return subject.device == &device && subject.support.dims == dims;
    };
    Table table;
    table.columns = {fmt::format("{}, keys of {} + {}", device.name(), dims.latent, dims.rope)};
    for (const Subject& subject : subjects)
        if (belongs(subject)) table.columns.emplace_back(name_of(subject.support.format));
    for (std::size_t i = 0; i < suite::all_checks().size(); ++i) {
        std::vector<std::string> row = {std::string(suite::all_checks()[i].title)};
        bool ran = false;
        for (const Subject& subject : subjects) {
            if (!belongs(subject)) continue;
            row.push_back(cell(subject.outcomes[i]));
            ran = ran || subject.outcomes[i].cases > 0;
        }
        if (ran) table.rows.push_back(std::move(row));
    }
    return table;
}

void print_failures(const SelftestOptions& options, const std::vector<Subject>& subjects) {
    for (const Subject& subject : subjects)
        for (std::size_t i = 0; i < subject.outcomes.size(); ++i) {
            const suite::Outcome& outcome = subject.outcomes[i];
            if (outcome.failures == 0) continue;
            const suite::Check& check = suite::all_checks()[i];
            fmt::print(
                "FAILED {} {} {}: {}\n  {}\n  espalier selftest {} --format {} --latent {} --check "
                "{} --seed {} --seconds 0{}\n",
                subject.device->name(), name_of(subject.support.format),
                subject.support.dims.latent, check.title, outcome.first_failure, subject.flags,
                name_of(subject.support.format), subject.support.dims.latent, check.name,
                outcome.failing_seed, options.exact ? " --exact-allocations" : "");
        }
}

Expected<void> run(const SelftestOptions& options) {
    if (!options.check.empty() && suite::find_check(options.check) == nullptr)
        return fail(ErrorKind::not_found, "--check {}: there is no such check", options.check);
    ESPALIER_ASSIGN_OR_RETURN(const auto devices, open_devices(options));
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(0));
    std::vector<Subject> subjects = find_subjects(options, devices);
    CpuDevice oracle(threads);
    const Progress progress = run_slices(options, subjects, oracle);
    for (const auto& device : devices)
        for (const KeyDims& dims : kKeyDims)
            if (const Table table = device_table(*device, dims, subjects); !table.rows.empty())
                fmt::print("\n{}", table.text(TableFormat::markdown));
    fmt::print(
        "\nCases per guarantee and cache format; in brackets the largest error as a share of its "
        "limit.\n{} cases in {:.0f} s, seeds {} to {}.\n",
        progress.cases, progress.seconds, options.seed,
        options.seed + static_cast<std::uint64_t>(progress.slices - 1));
    print_failures(options, subjects);
    if (progress.device_lost)
        return fail(ErrorKind::io, "selftest: the device failed and cannot go on");
    if (progress.failures > 0)
        return fail(ErrorKind::invalid, "selftest: {} of {} cases failed", progress.failures,
                    progress.cases);
    if (progress.cases == 0)
        return fail(ErrorKind::unsupported, "selftest: nothing that was asked for is taken");
    return {};
}

}  // namespace

Run add_selftest(CLI::App& app) {
    const auto options = std::make_shared<SelftestOptions>();
    CLI::App* command = app.add_subcommand(
        "selftest", "Hold this machine's attention kernels to every guarantee of the contract");
    std::vector<std::string> formats;
    for (const mla::KvFormat format : suite::kFormats) formats.emplace_back(name_of(format));
    std::vector<std::string> variants;
    for (const CpuVariant variant : kVariants) variants.emplace_back(name_of(variant));
    std::vector<std::string> checks;
    for (const suite::Check& check : suite::all_checks()) checks.emplace_back(check.name);
    command->add_option("--device", options->device, "Where the kernels run")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    std::vector<std::int64_t> latents;
    for (const KeyDims& dims : kKeyDims) latents.push_back(dims.latent);
    command
        ->add_option("--seconds", options->seconds,
                     "Time for new problems; the first slice of all checks always ends")
        ->check(CLI::Range(0.0, 1e6))
        ->capture_default_str();
    command->add_option("--seed", options->seed, "Seed of the first slice; the next ones count up")
        ->capture_default_str();
    command->add_option("--format", options->format, "One cache format only")
        ->check(CLI::IsMember(formats));
    command->add_option("--latent", options->latent, "One width of latents only")
        ->check(CLI::IsMember(latents));
    command->add_option("--variant", options->variant, "One CPU variant only")
        ->check(CLI::IsMember(variants));
    command->add_option("--check", options->check, "One check only")->check(CLI::IsMember(checks));
    command->add_flag("--exact-allocations", options->exact,
                      "No guard bytes around arrays, for memory checkers");
    const Run lossless = add_selftest_lossless(*command);
    const Run model = add_selftest_model(*command);
    return [options, command, lossless, model] {
        if (command->got_subcommand("lossless")) return lossless();
        return command->got_subcommand("model") ? model() : run(*options);
    };
}

}  // namespace espalier::cli
