// SPDX-License-Identifier: Apache-2.0
// From a tile's tokens to the portable kernel that was compiled for them.
#pragma once

#include <algorithm>

#include "base/check.hpp"
#include "base/cuda/launch.hpp"
#include "linalg/cuda/many_tokens.hpp"
#include "linalg/cuda/portable/many_tokens.cuh"

namespace espalier::linalg::cuda {
namespace portable {

// Stages of a block, where as many share a multiprocessor as registers let.
template <class C>
int stages_of(const DeviceFacts& facts, std::size_t stage_bytes, std::size_t listed) {
    constexpr std::size_t kSystemBytes = 1024;  // of a block, besides its own
    const std::size_t share = facts.processor_shared_bytes / C::kResident - kSystemBytes;
    const std::size_t room = std::min(facts.block_shared_bytes, share);
    const std::size_t stages = room > listed ? (room - listed) / stage_bytes : 0;
    return static_cast<int>(std::clamp<std::size_t>(stages, 2, 4));
}

template <class C>
void launch_tiles(Stream stream, const Problem& p, const LaunchGrant& grant,
                  const DeviceFacts& facts) {
    ManyParams params;
    params.problem = p;
    params.grant = grant;
    params.segments = segments_of(p.n, p.k);
    params.row_tiles = static_cast<int>(tiles_of(p.n) + tiles_of(p.second.n));
    params.row_blocks = static_cast<int>(divide_up(params.row_tiles, C::kBlockTiles));
    params.token_tiles = static_cast<int>(most_token_tiles(p, C::kTokens));
    const std::size_t listed =
        p.indptr == nullptr ? 0 : static_cast<std::size_t>(params.token_tiles) * kTokenTileBytes;
    params.stage_bytes = C::kInputBytes + C::kBlockTiles * p.half_bytes;
    params.stages = stages_of<C>(facts, static_cast<std::size_t>(params.stage_bytes), listed);
    const std::int64_t items = std::int64_t{params.token_tiles} * params.row_blocks;
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    LaunchShape shape{
        .threads = C::kThreads,
        .shared_bytes = static_cast<std::size_t>(params.stages * params.stage_bytes) + listed,
        .limit = SharedLimit::whole};
    const std::int64_t resident = resident_blocks(many_tokens_kernel<C>, shape);
    shape.grid = grid_of(std::min(items, resident * facts.multiprocessors));
    launch("a product", many_tokens_kernel<C>, shape, stream, params);
}

}  // namespace portable

template <GpuFamily kFamily, WeightCode kCode>
void launch_many(Stream stream, const Problem& p, const LaunchGrant& grant, const ManyPlan& plan,
                 const DeviceFacts& facts) {
    static_assert(kFamily == GpuFamily::portable);
    using portable::launch_tiles;
    switch (plan.tokens) {
        case 32:
            return launch_tiles<portable::ManyConfig<kCode, 1>>(stream, p, grant, facts);
        case 64:
            return launch_tiles<portable::ManyConfig<kCode, 2>>(stream, p, grant, facts);
        case 128:
            if constexpr (!in_blocks(kCode))
                return launch_tiles<portable::ManyConfig<kCode, 4>>(stream, p, grant, facts);
            [[fallthrough]];
        default:
            CHECK(false, "no kernel for tiles of {} tokens", plan.tokens);
    }
}

}  // namespace espalier::linalg::cuda
