// SPDX-License-Identifier: Apache-2.0
#include "cli/expectation.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

constexpr double kUsable = 0.9;  // as runtime::derive_sizes has it

}  // namespace

Expectation expect(const ModelFacts& model, const MachineFacts& machine) {
    Expectation expected;
    const double budget = kUsable * machine.memory_bytes;
    const double fixed = model.weight_bytes - model.expert_bytes;
    if (fixed > budget || (model.weight_bytes > budget && model.expert_bytes == 0)) {
        expected.bound = Expectation::Bound::size;
        expected.experts_in_memory = 0;
        return expected;
    }
    double seconds = machine.memory_rate > 0 ? model.step_bytes / machine.memory_rate : 0;
    if (model.weight_bytes > budget) {
        // The same deal as runtime::size_facts makes of what is left.
        const double left = budget - fixed;
        expected.bound = Expectation::Bound::disk;
        expected.experts_in_memory = std::min(1.0, 0.75 * left / model.expert_bytes);
        expected.room_tokens = 0.25 * left / model.kv_bytes;
        const double from_disk = (1 - expected.experts_in_memory) * model.step_expert_bytes;
        seconds = machine.disk_rate > 0 ? seconds + from_disk / machine.disk_rate : 0;
    } else {
        expected.room_tokens = (budget - model.weight_bytes) / model.kv_bytes;
    }
    expected.tokens_per_second = seconds > 0 ? 1 / seconds : 0;
    return expected;
}

std::string speed_text(const Expectation& expected, const ModelFacts& model,
                       const MachineFacts& machine) {
    using Bound = Expectation::Bound;
    if (expected.bound == Bound::size) return "none: the weights do not fit the memory";
    std::string text =
        expected.tokens_per_second > 0
            ? fmt::format("at most {:.1f} tokens/s for one request without drafts, bound by {}: ",
                          expected.tokens_per_second,
                          expected.bound == Bound::disk ? "the disk" : "memory")
            : std::string("bound by the disk, whose speed could not be measured: ");
    text += fmt::format("a token reads {} at {}/s", bytes_text(model.step_bytes),
                        bytes_text(machine.memory_rate));
    if (expected.bound == Bound::disk)
        text += fmt::format(
            ", {} of it in experts, of which {:.0f} % stay in memory with --mmap-experts (after "
            "espalier pack){}",
            bytes_text(model.step_expert_bytes), 100 * expected.experts_in_memory,
            machine.disk_rate > 0
                ? fmt::format(" and the others come at {}/s", bytes_text(machine.disk_rate))
                : "");
    return text;
}

std::string context_text(const Expectation& expected, const ModelFacts& model) {
    if (expected.bound == Expectation::Bound::size) return "none";
    if (expected.room_tokens >= model.context)
        return fmt::format("{:.0f} tokens, the model's limit; memory has room for the cache of {}",
                           model.context, count_text(expected.room_tokens));
    return fmt::format(
        "bound by memory: it has room for the cache of {} tokens, the model's limit is {:.0f}",
        count_text(expected.room_tokens), model.context);
}

double measured_disk_rate(const std::filesystem::path& file) {
    using Clock = std::chrono::steady_clock;
    constexpr std::size_t kPiece = std::size_t{2} << 20;
    constexpr int kPieces = 32;
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (descriptor < 0) return 0;
    const off_t size = lseek(descriptor, 0, SEEK_END);
    const std::unique_ptr<void, decltype(&std::free)> block(std::aligned_alloc(4096, kPiece),
                                                            &std::free);
    double bytes = 0;
    const auto begin = Clock::now();
    for (int i = 0; i < kPieces && block != nullptr; ++i) {
        // Spread over the file, each at a multiple of its size.
        const off_t places = size / static_cast<off_t>(kPiece);
        const off_t at = places * i / kPieces * static_cast<off_t>(kPiece);
        const ssize_t got = pread(descriptor, block.get(), kPiece, at);
        if (got <= 0) break;
        bytes += static_cast<double>(got);
    }
    ::close(descriptor);
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    return bytes >= static_cast<double>(kPiece) && seconds > 0 ? bytes / seconds : 0;
}

}  // namespace espalier::cli
