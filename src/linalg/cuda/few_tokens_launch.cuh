// SPDX-License-Identifier: Apache-2.0
// From a plan to the kernel that was compiled for it.
#pragma once

#include <bit>

#include "base/cuda/occupancy.hpp"
#include "linalg/cuda/few_tokens.cuh"
#include "linalg/cuda/few_tokens.hpp"

namespace espalier::linalg::cuda {

template <class C>
void launch_few(cudaStream_t stream, const Problem& p, const FewPlan& plan) {
    FewParams params;
    params.problem = p;
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
    const int listed = p.indptr != nullptr ? params.token_tiles : 0;
    LaunchShape shape{.threads = warps * 32,
                      .shared_bytes = C::shared_bytes(warps, plan.ring, 2 * p.half_bytes, listed),
                      .limit = SharedLimit::whole};
    // As many blocks as run at once, with equal shares of the items: their rings never run dry
    // between two.
    const std::int64_t blocks = std::min(
        items, std::int64_t{resident_blocks(few_tokens_kernel<C>, shape)} * multiprocessors());
    params.blocks = Divisor(blocks);
    shape.grid = grid_of(blocks);
    launch("a product", few_tokens_kernel<C>, shape, stream, params);
}

// An expert product behind a dense one: the plans that few_plan makes for them.
template <WeightCode kCode>
void launch_leading(cudaStream_t stream, const Problem& p, const FewPlan& plan) {
    constexpr FewInput kInput = FewInput::leading;
    if constexpr (facts_of(kCode).bits == 4) {
        return launch_few<FewConfig<kCode, 1, 4, 0, kInput>>(stream, p, plan);
    } else if constexpr (kCode != WeightCode::bf16) {
        return plan.segment == 2 ? launch_few<FewConfig<kCode, 1, 2, 2, kInput>>(stream, p, plan)
                                 : launch_few<FewConfig<kCode, 1, 2, 0, kInput>>(stream, p, plan);
    } else if (plan.row_tiles == 2) {
        return launch_few<FewConfig<kCode, 1, 2, 0, kInput>>(stream, p, plan);
    } else {
        return plan.segment == 2 ? launch_few<FewConfig<kCode, 1, 1, 2, kInput>>(stream, p, plan)
                                 : launch_few<FewConfig<kCode, 1, 1, 0, kInput>>(stream, p, plan);
    }
}

template <WeightCode kCode>
void launch_few(cudaStream_t stream, const Problem& p, const FewPlan& plan) {
    if (p.lead.weights != nullptr) return launch_leading<kCode>(stream, p, plan);
    if (!p.vector_x)
        return launch_few<FewConfig<kCode, 1, 1, 0, FewInput::single>>(stream, p, plan);
    switch (plan.token_tiles * 100 + plan.row_tiles * 10 + plan.segment) {
        case 110:
            return launch_few<FewConfig<kCode, 1, 1, 0>>(stream, p, plan);
        case 111:
            return launch_few<FewConfig<kCode, 1, 1, 1>>(stream, p, plan);
        case 112:
            return launch_few<FewConfig<kCode, 1, 1, 2>>(stream, p, plan);
        case 120:
            return launch_few<FewConfig<kCode, 1, 2, 0>>(stream, p, plan);
        case 121:
            return launch_few<FewConfig<kCode, 1, 2, 1>>(stream, p, plan);
        case 122:
            return launch_few<FewConfig<kCode, 1, 2, 2>>(stream, p, plan);
        case 210:
            return launch_few<FewConfig<kCode, 2, 1, 0>>(stream, p, plan);
        case 211:
            return launch_few<FewConfig<kCode, 2, 1, 1>>(stream, p, plan);
        case 220:
            return launch_few<FewConfig<kCode, 2, 2, 0>>(stream, p, plan);
        case 221:
            return launch_few<FewConfig<kCode, 2, 2, 1>>(stream, p, plan);
        case 410:
            return launch_few<FewConfig<kCode, 4, 1, 0>>(stream, p, plan);
        case 420:
            return launch_few<FewConfig<kCode, 4, 2, 0>>(stream, p, plan);
        case 810:
            return launch_few<FewConfig<kCode, 8, 1, 0>>(stream, p, plan);
        default:
            break;
    }
    if constexpr (kCode == WeightCode::bf16) {  // over codes two chunks of two tiles are more than
                                                // registers hold
        if (plan.token_tiles == 2 && plan.segment == 2)
            return plan.row_tiles == 2 ? launch_few<FewConfig<kCode, 2, 2, 2>>(stream, p, plan)
                                       : launch_few<FewConfig<kCode, 2, 1, 2>>(stream, p, plan);
    }
    if constexpr (facts_of(kCode).bits == 4) {
        if (plan.token_tiles == 1 && plan.row_tiles == 4) {
            if (plan.segment == 1) return launch_few<FewConfig<kCode, 1, 4, 1>>(stream, p, plan);
            if (plan.segment == 2) return launch_few<FewConfig<kCode, 1, 4, 2>>(stream, p, plan);
            return launch_few<FewConfig<kCode, 1, 4, 0>>(stream, p, plan);
        }
    }
    CHECK(false, "no kernel for {} × 8 tokens, {} × 16 outputs, segments of {} chunks",
          plan.token_tiles, plan.row_tiles, plan.segment);
}

}  // namespace espalier::linalg::cuda
