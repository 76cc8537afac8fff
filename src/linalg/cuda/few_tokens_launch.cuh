// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel that was compiled for it.
#pragma once

#include <bit>
#include <utility>

#include "base/check.hpp"
#include "base/cuda/launch.hpp"
#include "linalg/cuda/few_tokens.cuh"
#include "linalg/cuda/few_tokens.hpp"

namespace espalier::linalg::cuda {

template <class C>
void launch_kernel(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                   const DeviceFacts& facts) {
    FewParams params;
    params.problem = p;
    params.grant = grant;
    params.segments = segments_of(p.n, p.k);
    params.row_warps_log = std::countr_zero(static_cast<unsigned>(plan.row_warps));
    params.row_tiles = static_cast<int>(tiles_of(p.n) + tiles_of(p.second.n));
    params.row_blocks =
        Divisor(divide_up(params.row_tiles, std::int64_t{plan.row_warps} * C::kRowTiles));
    params.ring = plan.ring;
    params.token_tiles = static_cast<int>(most_token_tiles(p, C::kTokens));
    const int warps = params.segments.count * plan.row_warps;
    std::int64_t items = std::int64_t{params.token_tiles} * params.row_blocks.value;
    if constexpr (C::kLeading) {
        params.lead_row_tiles = static_cast<int>(tiles_of(p.lead.n));
        params.lead_row_blocks =
            Divisor(divide_up(params.lead_row_tiles, std::int64_t{plan.row_warps} * C::kRowTiles));
        params.lead_items =
            static_cast<int>(divide_up(p.lead.rows, C::kTokens)) * params.lead_row_blocks.value;
        params.lead_segment = segments_of(p.lead.n, p.lead.k).chunks;
        items += params.lead_items;
    }
    CHECK(items < std::int64_t{1} << 30, "{} tokens of {} × {} outputs", p.rows, p.groups, p.n);
    LaunchShape shape{
        .threads = warps * 32, .shared_bytes = shared_bytes(p, plan), .limit = SharedLimit::whole};
    // The number of blocks that run at once, with equal shares of items: their rings never run dry
    // between two.
    const std::int64_t blocks = std::min(
        items, std::int64_t{resident_blocks(few_tokens_kernel<C>, shape)} * facts.multiprocessors);
    params.blocks = Divisor(blocks);
    shape.grid = grid_of(blocks);
    launch("a product", few_tokens_kernel<C>, shape, stream, params);
}

// The table's kernel that the plan has chosen.
template <GpuFamily kFamily, WeightCode kCode, std::size_t... kIndex>
void launch_listed(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                   const DeviceFacts& facts, std::index_sequence<kIndex...>) {
    static constexpr FewKernels kKernels = few_kernels(kCode);
    const auto launch_if = [&]<std::size_t kOne>() {
        constexpr FewKernel kKernel = kKernels.list[kOne];
        if (plan.kernel != kKernel) return false;
        launch_kernel<FewConfig<kFamily, kCode, kKernel.token_tiles, kKernel.row_tiles,
                                kKernel.segment, kKernel.input>>(stream, p, grant, plan, facts);
        return true;
    };
    const bool launched = (launch_if.template operator()<kIndex>() || ...);
    CHECK(launched, "no kernel for {} × 8 tokens, {} × 16 outputs, segments of {} chunks",
          plan.kernel.token_tiles, plan.kernel.row_tiles, plan.kernel.segment);
}

template <GpuFamily kFamily, WeightCode kCode>
void launch_few(Stream stream, const Problem& p, const LaunchGrant& grant, const FewPlan& plan,
                const DeviceFacts& facts) {
    launch_listed<kFamily, kCode>(stream, p, grant, plan, facts,
                                  std::make_index_sequence<few_kernels(kCode).count>{});
}

}  // namespace espalier::linalg::cuda
