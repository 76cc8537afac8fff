// SPDX-License-Identifier: Apache-2.0
#include "cli/loaded_model.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>
#include <utility>

#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

constexpr int kMaxThreads = 1024;

}  // namespace

Expected<int> thread_count(int wanted) {
    if (wanted < 0 || wanted > kMaxThreads)
        return fail(ErrorKind::invalid, "--threads {}: between 1 and {}, or 0 for all cores",
                    wanted, kMaxThreads);
    if (wanted > 0) return wanted;
    if (const char* text = std::getenv("OMP_NUM_THREADS"); text != nullptr && *text != '\0') {
        int value = 0;
        const std::string_view view(text);
        const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
        if (error != std::errc() || end != view.data() + view.size() || value < 1 ||
            value > kMaxThreads)
            return fail(ErrorKind::invalid, "OMP_NUM_THREADS={}: not a number between 1 and {}",
                        view, kMaxThreads);
        return value;
    }
    return static_cast<int>(
        std::clamp(std::thread::hardware_concurrency(), 1u, static_cast<unsigned>(kMaxThreads)));
}

Expected<LoadedModel> load_model(const std::string& name, int threads,
                                 const model::ModelLimits& limits) {
    LoadedModel loaded;
    ESPALIER_ASSIGN_OR_RETURN(loaded.variant, chosen_cpu_variant());
    ESPALIER_ASSIGN_OR_RETURN(const int workers, thread_count(threads));
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(name));
    loaded.checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
    loaded.device = std::make_unique<CpuDevice>(workers);
    loaded.backend = ops::make_cpu_backend(loaded.variant);
    loaded.kernels = mla::make_cpu_kernels(loaded.variant);

    const auto start = std::chrono::steady_clock::now();
    ProgressBar bar("loading");
    ESPALIER_ASSIGN_OR_RETURN(
        model::Weights weights,
        model::Weights::load(loaded.checkpoint, *loaded.device, *loaded.backend,
                             {.progress = [&](std::uint64_t done, std::uint64_t total) {
                                 bar.update(done, total);
                             }}));
    loaded.load_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ESPALIER_ASSIGN_OR_RETURN(model::DeepseekModel model,
                              model::DeepseekModel::create(
                                  loaded.checkpoint->config(), std::move(weights), *loaded.backend,
                                  *loaded.kernels, *loaded.device, {.limits = limits}));
    loaded.model = std::make_unique<model::DeepseekModel>(std::move(model));
    return loaded;
}

}  // namespace espalier::cli
