// SPDX-License-Identifier: Apache-2.0
// What a model can be expected to do on a machine: whether it fits, how fast one request is at most
// when every token reads its weights once, and what bounds that. Pure, but for the disk's speed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace espalier::cli {

struct ModelFacts {
    double weight_bytes = 0;
    double expert_bytes = 0;       // of them, in routed experts
    double step_bytes = 0;         // that a token reads
    double step_expert_bytes = 0;  // of them, in routed experts
    double kv_bytes = 0;           // of the cache, for a token
    double context = 0;            // tokens
};

struct MachineFacts {
    double memory_bytes = 0;
    double memory_rate = 0;  // bytes per second
    double disk_rate = 0;    // likewise; 0: not known
};

struct Expectation {
    // memory: its speed bounds a step. disk: experts that do not fit do. size: it cannot run.
    enum class Bound : std::uint8_t { memory, disk, size };
    Bound bound = Bound::memory;
    double tokens_per_second = 0;    // of one request; 0: not known, or it cannot run
    double experts_in_memory = 1.0;  // share of them that the memory holds beside all else
    double room_tokens = 0;          // of cache
};

// Nine tenths of the memory are the model's. Where all weights do not fit, the experts that do are
// those of --mmap-experts, and tokens are taken to choose among all experts alike.
Expectation expect(const ModelFacts& model, const MachineFacts& machine);

constexpr std::string_view name_of(Expectation::Bound bound) {
    switch (bound) {
        case Expectation::Bound::memory:
            return "memory";
        case Expectation::Bound::disk:
            return "disk";
        case Expectation::Bound::size:
            return "size";
    }
    return "?";
}

// A sentence on the speed, and one on the context.
std::string speed_text(const Expectation& expected, const ModelFacts& model,
                       const MachineFacts& machine);
std::string context_text(const Expectation& expected, const ModelFacts& model);

// Bytes per second of reading pieces of an expert's size from the file past the system's cache; 0
// where the file system does not allow that.
double measured_disk_rate(const std::filesystem::path& file);

}  // namespace espalier::cli
