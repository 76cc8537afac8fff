// SPDX-License-Identifier: Apache-2.0
// From a tile's tokens to the kernel that was compiled for them.
#pragma once

#include "base/cuda/launch.hpp"
#include "linalg/cuda/hopper/many_tokens.cuh"
#include "linalg/cuda/many_tokens.hpp"

namespace espalier::linalg::cuda {

template <class C>
void launch_tiles(Stream stream, const Problem& p, const LaunchGrant& grant,
                  const DeviceFacts& facts, int split = 1) {
    ManyParams params;
    params.problem = p;
    params.grant = grant;
    params.segments = segments_of(p.n, p.k);
    CHECK(C::kSecond || p.second.n == 0, "two products in tiles of {} tokens", C::kTokens);
    params.first_row_blocks = static_cast<int>(divide_up(p.n, C::kOutputs));
    params.row_blocks =
        params.first_row_blocks + static_cast<int>(divide_up(p.second.n, C::kOutputs));
    params.token_tiles = static_cast<int>(most_token_tiles(p, C::kTokens * C::kCluster));
    // v2 gate_up of 128 tokens 169 µs, not 177, head 162, not 172. Split tiles lose (v3 o of 32
    // tokens 45.7, not 44.5).
    params.passing = (p.indptr == nullptr ? p.rows : divide_up(p.rows, p.groups)) <= C::kTokens;
    const std::int64_t items = std::int64_t{params.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    const int together = C::kSplit ? split : C::kCluster;
    if constexpr (C::kSplit) {
        params.split = split;
        params.own = static_cast<int>(divide_up(params.segments.count, split));
        CHECK(params.own <= kMostSplitSegments, "{} segments by {} blocks", params.segments.count,
              split);
    }
    const std::int64_t clusters =
        C::kSplit ? items : std::min<std::int64_t>(items, facts.multiprocessors / together);
    launch("a product", many_tokens_kernel<C>,
           {.grid = grid_of(clusters * together),
            .threads = C::kThreads,
            .shared_bytes = C::shared_bytes(p.indptr != nullptr ? params.token_tiles : 0),
            .limit = SharedLimit::whole,
            .cluster = together},
           stream, params);
}

template <GpuFamily kFamily, WeightCode kCode>
void launch_many(Stream stream, const Problem& p, const LaunchGrant& grant, const ManyPlan& plan,
                 const DeviceFacts& facts) {
    static_assert(kFamily == GpuFamily::hopper);
    if (plan.split > 1 && plan.tokens == 32)
        return launch_tiles<ManyConfig<kCode, 32, 1, true>>(stream, p, grant, facts, plan.split);
    if (plan.split > 1 && plan.tokens == 64)
        return launch_tiles<ManyConfig<kCode, 64, 1, true>>(stream, p, grant, facts, plan.split);
    switch (plan.tokens) {
        case 32:
            return launch_tiles<ManyConfig<kCode, 32, 1>>(stream, p, grant, facts);
        case 64:
            return launch_tiles<ManyConfig<kCode, 64, 1>>(stream, p, grant, facts);
        case 128:
            return launch_tiles<ManyConfig<kCode, 128, 1>>(stream, p, grant, facts);
        case 256:
            return launch_tiles<ManyConfig<kCode, 128, 2>>(stream, p, grant, facts);
        default:
            CHECK(false, "no kernel for tiles of {} tokens", plan.tokens);
    }
}

}  // namespace espalier::linalg::cuda
