// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/node_view.hpp"

#include <array>
#include <limits>

namespace espalier::ops {
NodeScan scan_all(const NodeView& node) {
    std::array<LogitScan, kMaxChunks> scans;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        scans[static_cast<std::size_t>(chunk)] =
            node.kernels.scan(node.logits + first, end - first);
    });
    NodeScan all = {{-std::numeric_limits<float>::infinity(), false}, 0};
    for (std::int64_t chunk = 0; chunk < node.chunks(); ++chunk) {
        const LogitScan& part = scans[static_cast<std::size_t>(chunk)];
        if (part.maximum > all.found.maximum) all = {{part.maximum, all.found.bad}, chunk};
        all.found.bad = all.found.bad || part.bad;
    }
    return all;
}

std::uint64_t sum_weights(const NodeView& node) {
    std::array<std::uint64_t, kMaxChunks> sums;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        sums[static_cast<std::size_t>(chunk)] =
            node.kernels.sum_weights(node.logits + first, node.scaling, end - first);
    });
    std::uint64_t total = 0;
    for (std::int64_t chunk = 0; chunk < node.chunks(); ++chunk)
        total += sums[static_cast<std::size_t>(chunk)];
    return total;
}

std::size_t node_scratch_bytes(std::int64_t vocabulary, int workers) {
    const auto spare = static_cast<std::size_t>(workers * spare_stride(vocabulary)) * sizeof(float);
    const auto histograms =
        static_cast<std::size_t>((vocabulary + kChunk - 1) / kChunk * kHistogram) *
        sizeof(std::uint64_t);
    return spare + (histograms + 63) / 64 * 64;  // the arena hands out whole cache lines
}

}  // namespace espalier::ops
