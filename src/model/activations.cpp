// SPDX-License-Identifier: Apache-2.0
#include "model/activations.hpp"

#include <algorithm>

namespace espalier::model {
namespace {

// Lays out every activation through `take(bytes)`, so that planning and taking cannot disagree.
template <typename Take>
Activations lay_out(Take&& take, const checkpoint::ModelConfig& config, DType act,
                    const Activations::Sizes& most) {
    const auto& [tokens, gather, input_width, shard] = most;
    const auto matrix = [&](std::int64_t rows, std::int64_t cols, DType dtype) {
        return Matrix{take(rows * cols * static_cast<std::int64_t>(bytes_of(dtype))), dtype, rows,
                      cols, cols};
    };
    const auto ints = [&](std::int64_t count) {
        return reinterpret_cast<std::int32_t*>(take(count * 4));
    };
    const std::int64_t hidden = config.hidden_size;
    const std::int64_t heads = heads_of(config, shard);
    const std::int64_t q_lora = config.q_lora_rank;
    const auto [latent, rope] = config.key_dims();
    const std::int64_t shared = config.n_shared_experts * config.moe_intermediate_size;
    const std::int64_t width = std::max(network_rows(config, config.intermediate_size, shard).count,
                                        network_rows(config, shared, shard).count);
    // Rows of sums per token.
    const auto segments = [&](std::int32_t here) {
        return shard.whole() ? 1 : std::max<std::int64_t>(here, 1);
    };
    const std::int64_t sums =
        segments(std::max(o_segments(config, shard).count,
                          down_segments(config, config.intermediate_size, shard).count));
    const std::int64_t shared_sums = segments(down_segments(config, shared, shard).count);
    const std::int64_t pairs = tokens * config.num_experts_per_tok;

    Activations a;
    a.residual = matrix(tokens, hidden, DType::f32);
    a.sums = matrix(tokens * sums, hidden, DType::f32);
    a.normed = matrix(tokens, hidden, act);
    const bool wider = input_width != 0 && input_width != hidden;
    a.attention_input = wider ? matrix(tokens, input_width, act) : a.normed;
    a.normed_exact = matrix(tokens, hidden, DType::f32);
    a.cos_sin = matrix(tokens, rope, DType::f32);
    a.q_a = matrix(tokens, q_lora, DType::f32);
    a.kv_a = matrix(tokens, latent + rope, DType::f32);
    a.q_low = matrix(tokens, q_lora, act);
    a.q = matrix(tokens, heads * config.query_head_dim(), DType::f32);
    a.q_act = matrix(tokens, heads * config.query_head_dim(), act);
    a.q_absorbed = matrix(tokens, heads * (latent + rope), act);
    if (config.indexer) {
        const checkpoint::IndexerConfig& indexer = *config.indexer;
        const std::int64_t queries = indexer.heads * indexer.head_dim;
        a.index_k = matrix(tokens, indexer.head_dim, DType::f32);
        a.index_q = matrix(tokens, queries, DType::f32);
        a.index_q_act = matrix(tokens, queries, act);
        a.index_weights = matrix(tokens, indexer.heads, DType::f32);
        a.lists = {ints(tokens * indexer.top_k), ints(tokens), indexer.top_k};
    }
    a.latent = matrix(tokens, latent, DType::f32);
    a.key_rope = matrix(tokens, rope, DType::f32);
    a.out_latent = matrix(tokens, heads * latent, act);
    a.out = matrix(tokens, heads * config.v_head_dim, act);
    if (!o_reads_own_heads(config, shard))
        a.all_out = matrix(tokens, config.num_attention_heads * config.v_head_dim, act);
    a.gate_up = matrix(tokens, 2 * width, DType::f32);
    a.gated = matrix(tokens, width, act);
    a.shared_out = matrix(tokens * shared_sums, hidden, DType::f32);
    a.router_logits = matrix(tokens, config.n_routed_experts, DType::f32);
    a.plan.expert = ints(pairs);
    a.plan.weight = reinterpret_cast<float*>(take(pairs * 4));
    a.plan.indptr = ints(config.n_routed_experts + 1);
    a.plan.source_token = ints(pairs);
    a.plan.pair_of = ints(pairs);
    a.pair_gate_up = matrix(pairs, 2 * config.moe_intermediate_size, DType::f32);
    a.pair_gated = matrix(pairs, config.moe_intermediate_size, act);
    a.pair_out = matrix(pairs, hidden, DType::f32);
    a.gathered = matrix(gather, hidden, DType::f32);
    a.gathered_act = matrix(gather, hidden, act);
    a.logits = matrix(gather, config.vocab_size, DType::f32);
    if (!shard.whole())
        a.logits_here = matrix(gather, head_rows(config.vocab_size, shard).count, DType::f32);
    a.nonfinite = reinterpret_cast<std::uint8_t*>(take(tokens));
    a.move_source = reinterpret_cast<std::int64_t*>(take(tokens * 8));
    a.move_destination = reinterpret_cast<std::int64_t*>(take(tokens * 8));
    return a;
}

}  // namespace

Activations Activations::take(Arena& arena, const checkpoint::ModelConfig& config, DType act,
                              const Sizes& most) {
    return lay_out([&](std::int64_t bytes) { return arena.take<std::byte>(bytes); }, config, act,
                   most);
}

std::size_t Activations::plan_bytes(const checkpoint::ModelConfig& config, DType act,
                                    const Sizes& most) {
    std::size_t total = 0;
    lay_out(
        [&](std::int64_t bytes) -> std::byte* {
            total += (static_cast<std::size_t>(bytes) + 63) / 64 * 64;
            return nullptr;
        },
        config, act, most);
    return total;
}

}  // namespace espalier::model
