// SPDX-License-Identifier: Apache-2.0
#include "linalg/cuda/hopper/arranged_plan.hpp"

namespace espalier::linalg::cuda {
namespace {

// Blocks' rounds of tiles, times what a tile costs: bringing its rows of weights and x. Experts
// read their weights for every tile, so that a tile has as many tokens as it can.
int tile_tokens_of(const Problem& p, const DeviceFacts& facts) {
    const int most = most_arranged_tokens(p.code);
    if (p.indptr != nullptr) return most;
    std::int64_t best = 0;
    int tokens = 0;
    for (int n = most; n >= 64; n -= 16) {
        const std::int64_t tiles = divide_up(p.rows, n) * (divide_up(p.n, kArrangedOutputs) +
                                                           divide_up(p.second.n, kArrangedOutputs));
        // Codes have half as many bytes as bf16, and less.
        const int weights = p.code == WeightCode::bf16 ? 128 : 48;
        const std::int64_t cost = divide_up(tiles, facts.multiprocessors) * (weights + n);
        if (tokens == 0 || cost < best) {
            best = cost;
            tokens = n;
        }
    }
    return tokens;
}

// True if four columns of a query can be stored at once wherever they go, and 16 are all of one
// kind.
bool stores_fours(const QueryStore& to) {
    const auto fours = [](const void* pointer, std::int64_t stride) {
        return reinterpret_cast<std::uintptr_t>(pointer) % 8 == 0 && stride % 4 == 0;
    };
    return to.width % kTileOutputs == 0 && to.rope_step % 4 == 0 && fours(to.act, to.act_stride) &&
           fours(to.rope, to.rope_stride) && fours(to.cos_sin, to.cos_sin_stride);
}

// From measurements on an H200. Two launches cost about 8 µs more than one, and dense products have
// full tiles anyway; experts gain from tiles as small as their last tokens are few (v2 gate_up:
// 1,024 tokens, 96 each). Over codes the kernel without arranged x is slower (v3 gate_up, 8 tokens
// each: 2,339 µs, 2,176 arranged, of INT4 2,268 and 2,242; q_a with kv_a of 256 tokens 51 and 45,
// of 128 36 and 44; INT4 o of 512 387 and 294). INT8's smaller tiles leave less to gain.
bool has_enough_rows(const Problem& p) {
    const bool experts = p.indptr != nullptr;
    if (p.code == WeightCode::bf16) return p.rows >= (experts ? 96 * p.groups : 1536);
    if (p.code == WeightCode::int8) return experts && p.rows >= 16 * p.groups;
    return p.rows >= (experts ? 8 * p.groups : 256);
}

}  // namespace

ArrangedPlan arranged_plan(const Problem& p, const DeviceFacts& facts) {
    ArrangedPlan plan;
    plan.tile_tokens = tile_tokens_of(p, facts);
    plan.stage_bytes = arranged_stage_bytes(p.code, plan.tile_tokens, p.half_bytes);
    // Bytes of the list of experts' tiles; stages are what shared memory has beside it.
    const std::size_t listed =
        p.indptr == nullptr
            ? 0
            : static_cast<std::size_t>(most_token_tiles(p, plan.tile_tokens)) * kTokenTileBytes;
    if (listed + kArrangedMemoryBytes <= facts.block_shared_bytes)
        plan.slots = arranged_slots(p.code, plan.tile_tokens, p.half_bytes,
                                    facts.block_shared_bytes, listed);
    plan.shared_bytes =
        kArrangedMemoryBytes +
        static_cast<std::size_t>(plan.slots) * static_cast<std::size_t>(plan.stage_bytes) + listed;
    return plan;
}

bool arranges(const Problem& p, const Scratch& scratch, const DeviceFacts& facts) {
    if (facts.family() != GpuFamily::hopper) return false;
    if (!in_fragments(p.code) || !p.vector_x) return false;
    if (p.indptr == nullptr && p.groups > 1) return false;
    if (p.query.cos_sin != nullptr && !stores_fours(p.query)) return false;
    if (scratch.bytes < arranged_bytes(p.rows, p.k)) return false;
    const ArrangedPlan plan = arranged_plan(p, facts);
    if (plan.slots < 3 || plan.shared_bytes > facts.block_shared_bytes) return false;
    return has_enough_rows(p);
}

bool arranges_pair(const Problem& gated, const Scratch& scratch, const Problem& down,
                   const Scratch& between, const DeviceFacts& facts) {
    // Experts' tiles are the same in both.
    if (gated.indptr != nullptr && tile_tokens_of(gated, facts) != tile_tokens_of(down, facts))
        return false;
    return gated.gated && down.k % kChunkInputs == 0 && gated.rows == down.rows &&
           arranges(gated, scratch, facts) && arranges(down, between, facts);
}

}  // namespace espalier::linalg::cuda
