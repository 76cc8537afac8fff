// SPDX-License-Identifier: Apache-2.0
// What a GPU has, as a value of its Device: plans and launches read it from there, so that one
// process can have several GPUs, and a limit in the value holds for everything planned with it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace espalier {

enum class GpuFamily : std::uint8_t {
    none,      // no kernels for it
    hopper,    // compute capability 9.0
    portable,  // 8.0 and above
};

inline constexpr int kMostClusterBlocks = 8;  // on every device that has clusters

struct DeviceFacts {
    int ordinal = 0;  // in CUDA's count
    int major = 0;    // compute capability
    int minor = 0;
    int multiprocessors = 0;
    std::int64_t l2_bytes = 0;
    std::size_t processor_shared_bytes = 0;  // of a multiprocessor
    std::size_t block_shared_bytes = 0;      // of a block at most
    int processor_registers = 0;
    bool portable_kernels = false;  // on a GPU that has a family of its own
    // Portable kernels wait for the one in front of them themselves (kernel_order.cuh): they are
    // machine code for 9.0 or above, not made from instructions for 8.0.
    bool portable_waits = false;
    // [n]: clusters of n blocks that run at once where a block takes a whole multiprocessor.
    std::array<int, kMostClusterBlocks + 1> clusters{};

    GpuFamily family() const {
        if (major == 9 && minor == 0 && !portable_kernels) return GpuFamily::hopper;
        return major >= 8 ? GpuFamily::portable : GpuFamily::none;
    }
    // A kernel may be set up while the one in front of it still runs.
    bool starts_early() const { return family() == GpuFamily::hopper || portable_waits; }
    bool operator==(const DeviceFacts&) const = default;
};

// Less than a device has: how a smaller one behaves can be tried on a larger one. 0: no limit.
struct DeviceLimits {
    int multiprocessors = 0;
    std::size_t block_shared_bytes = 0;
    bool portable_kernels = false;  // whatever family the device has
};

inline DeviceFacts limited(DeviceFacts facts, const DeviceLimits& limits) {
    constexpr std::size_t kSystemBytes = 1024;  // of a block, besides its own
    if (limits.multiprocessors > 0 && limits.multiprocessors < facts.multiprocessors) {
        facts.multiprocessors = limits.multiprocessors;
        for (std::size_t n = 1; n < facts.clusters.size(); ++n)
            facts.clusters[n] =
                std::min(facts.clusters[n], facts.multiprocessors / static_cast<int>(n));
    }
    if (limits.block_shared_bytes > 0 && limits.block_shared_bytes < facts.block_shared_bytes) {
        facts.block_shared_bytes = limits.block_shared_bytes;
        facts.processor_shared_bytes = limits.block_shared_bytes + kSystemBytes;
    }
    if (limits.portable_kernels) {
        facts.portable_kernels = true;
        facts.clusters = {};
    }
    return facts;
}

}  // namespace espalier
