// SPDX-License-Identifier: Apache-2.0
#include "model/cost.hpp"

#include <algorithm>
#include <cmath>

#include "checkpoint/tensor_list.hpp"
#include "linalg/round_weights.hpp"
#include "model/kv_layout.hpp"

namespace espalier::model {
namespace {

using checkpoint::ModelConfig;

std::int64_t kv_b_parameters(const ModelConfig& c) {
    return c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim) * c.kv_lora_rank;
}

std::int64_t attention_parameters(const ModelConfig& c) {
    const std::int64_t heads = c.num_attention_heads;
    const std::int64_t query = c.q_lora_rank > 0
                                   ? c.q_lora_rank * (c.hidden_size + heads * c.query_head_dim())
                                   : c.hidden_size * heads * c.query_head_dim();
    return query + c.hidden_size * c.key_dims().key() + kv_b_parameters(c) +
           heads * c.v_head_dim * c.hidden_size;
}

// Matrices of an indexer that are stored as attention's are.
std::int64_t indexer_parameters(const ModelConfig& c) {
    const checkpoint::IndexerConfig& indexer = *c.indexer;
    return indexer.heads * indexer.head_dim * c.q_lora_rank + indexer.head_dim * c.hidden_size;
}

// Multiplications of one index query with one key in all layers.
double index_columns(const ModelConfig& c) {
    std::int64_t columns = 0;
    for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer)
        if (c.layer_has_indexer(layer)) columns += c.indexer->heads * c.indexer->head_dim;
    return static_cast<double>(columns);
}

// Multiplications of one absorbed query with one key: scores, then values.
double absorbed_columns(const ModelConfig& c) {
    return static_cast<double>(c.key_dims().key() + c.key_dims().latent);
}

std::int64_t expert_parameters(const ModelConfig& c) {
    return 3 * c.hidden_size * c.moe_intermediate_size;
}

struct LayerParameters {
    std::int64_t fixed = 0;    // read whatever the router says
    std::int64_t routed = 0;   // all routed experts
    std::int64_t router = 0;   // of the fixed ones, f32, and an indexer's weights
    std::int64_t indexer = 0;  // of the fixed ones, its other matrices
    std::int64_t vectors = 0;  // norms and the router's bias; not among the fixed ones
};

LayerParameters layer_parameters(const ModelConfig& c, std::int64_t layer) {
    LayerParameters p;
    p.fixed = attention_parameters(c);
    p.vectors = 2 * c.hidden_size + c.q_lora_rank + c.kv_lora_rank;
    if (c.layer_has_indexer(layer)) {
        p.indexer = indexer_parameters(c);
        p.router = c.indexer->heads * c.hidden_size;
        p.fixed += p.indexer + p.router;
        p.vectors += 2 * c.indexer->head_dim;
    }
    if (!c.layer_is_moe(layer)) {
        p.fixed += 3 * c.hidden_size * c.intermediate_size;
        return p;
    }
    p.router += c.hidden_size * c.n_routed_experts;
    p.fixed += c.hidden_size * c.n_routed_experts + c.n_shared_experts * expert_parameters(c);
    p.routed = c.n_routed_experts * expert_parameters(c);
    if (c.topk_method == checkpoint::TopkMethod::noaux_tc) p.vectors += c.n_routed_experts;
    return p;
}

}  // namespace

ParameterCount count_parameters(const ModelConfig& c) {
    ParameterCount count;
    const std::int64_t table = c.vocab_size * c.hidden_size;
    count.total = c.tie_word_embeddings ? table : 2 * table;
    count.active = table;          // the head; of the embedding one row
    count.total += c.hidden_size;  // the last norm
    count.active += c.hidden_size;
    for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
        const LayerParameters p = layer_parameters(c, layer);
        count.total += p.fixed + p.vectors + p.routed;
        count.experts += p.routed;
        count.active +=
            p.fixed + p.vectors + (p.routed > 0 ? c.num_experts_per_tok * expert_parameters(c) : 0);
    }
    for (std::int64_t mtp = 0; mtp < c.num_nextn_predict_layers; ++mtp) {
        const LayerParameters p = layer_parameters(c, c.num_hidden_layers + mtp);
        count.mtp +=
            p.fixed + p.vectors + p.routed + 2 * c.hidden_size * c.hidden_size + 3 * c.hidden_size;
    }
    return count;
}

namespace {

// Bytes that a layer reads whatever the router says; the router itself is f32.
double fixed_bytes(const ModelConfig& c, const LayerParameters& p, const StepFormats& formats) {
    const std::int64_t attention = attention_parameters(c) - kv_b_parameters(c) + p.indexer;
    const std::int64_t feed_forward = p.fixed - p.router - p.indexer - attention_parameters(c);
    return (static_cast<double>(attention) * formats.attention.bits_per_weight() +
            static_cast<double>(kv_b_parameters(c)) * formats.kv_b.bits_per_weight() +
            static_cast<double>(feed_forward) * formats.feed_forward.bits_per_weight()) /
               8 +
           static_cast<double>(p.router) * sizeof(float);
}

}  // namespace

StepCost step_cost(const ModelConfig& c, const StepFormats& formats, const StepShape& shape) {
    StepCost cost;
    const auto tokens = static_cast<double>(shape.tokens);
    const auto table = static_cast<double>(c.vocab_size * c.hidden_size);
    cost.weight_bytes = table * formats.head.bits_per_weight() / 8;
    cost.flops = 2 * table * static_cast<double>(shape.gathered);

    // Pairs of (query, visible key): causal over `depth` cached keys and the window itself.
    const auto pairs_of = [&](double first, double count) {
        return count * (static_cast<double>(shape.depth) + first) + count * (count + 1) / 2;
    };
    const auto decompressed = static_cast<double>(shape.decompressed);
    const auto sequences = static_cast<double>(shape.sequences);
    // Queries of sparse attention score all keys that they see, and attend to top_k at most.
    const double own = (tokens - decompressed) / sequences;
    const double scored_pairs = sequences * pairs_of(decompressed, own);
    double absorbed_pairs = scored_pairs;
    if (c.indexer) {
        const auto most = static_cast<double>(c.indexer->top_k);
        const double seen = static_cast<double>(shape.depth) + decompressed;
        const double all = std::clamp(most - seen, 0.0, own);  // tokens that see no more
        absorbed_pairs = sequences * (pairs_of(decompressed, all) + (own - all) * most);
        cost.flops += 2 * scored_pairs * index_columns(c);
    }
    const double decompressed_pairs = pairs_of(0, decompressed);
    const auto heads = static_cast<double>(c.num_attention_heads);
    const double attention_flops =
        2 * heads *
        (absorbed_pairs * absorbed_columns(c) +
         decompressed_pairs * static_cast<double>(c.query_head_dim() + c.v_head_dim));
    // Each decompressed segment up-projects every key below its end once.
    const double up_keys = decompressed > 0 ? static_cast<double>(shape.depth) + decompressed : 0.0;
    const auto kv_b = static_cast<double>(kv_b_parameters(c));

    const bool wide = formats.attention.input() == DType::f32;
    const cache::KvLayout layout = kv_layout(c, wide ? mla::KvFormat::f32 : mla::KvFormat::bf16);
    cost.cache_bytes = (sequences * static_cast<double>(shape.depth) + tokens) *
                       static_cast<double>(layout.bytes_per_token());
    for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
        const LayerParameters p = layer_parameters(c, layer);
        cost.weight_bytes += fixed_bytes(c, p, formats);
        cost.flops += 2 * tokens * (static_cast<double>(p.fixed) - kv_b);
        cost.flops += 2 * kv_b * (tokens - decompressed + up_keys) + attention_flops;
        if (p.routed == 0) continue;
        const double share =
            static_cast<double>(c.num_experts_per_tok) / static_cast<double>(c.n_routed_experts);
        cost.weight_bytes += static_cast<double>(p.routed) *
                             formats.feed_forward.bits_per_weight() / 8 *
                             (1 - std::pow(1 - share, tokens));
        cost.flops +=
            2 * tokens * static_cast<double>(c.num_experts_per_tok * expert_parameters(c));
    }
    return cost;
}

std::uint64_t rounded_bytes(const ModelConfig& config, WeightCode code, bool head_int8) {
    ModelConfig plain = config;
    plain.quantization = {};
    const auto bits_in = [](WeightCode of) {
        return grouped(of, linalg::kRoundedGroup, ScaleType::bf16).bits_per_weight();
    };
    const double bits = bits_in(code), head_bits = head_int8 ? bits_in(WeightCode::int8) : 16;
    double bytes = 0;
    for (const checkpoint::TensorSpec& spec : checkpoint::list_tensors(plain, {})) {
        const bool kept = spec.role != checkpoint::TensorRole::projection ||
                          spec.name.ends_with("kv_b_proj.weight");
        const double of_one = spec.role == checkpoint::TensorRole::head ? head_bits
                              : kept                                    ? 16
                                                                        : bits;
        bytes += static_cast<double>(spec.elements()) * of_one / 8;
    }
    return static_cast<std::uint64_t>(bytes);
}

PairCost pair_cost(const ModelConfig& c) {
    const auto layers = static_cast<double>(c.num_hidden_layers * c.num_attention_heads);
    // One more key beyond those that an indexer chooses costs its score alone.
    if (c.indexer) {
        const double scores = 2 * index_columns(c);
        const double token = step_cost(c, StepFormats{}, StepShape{}).flops;
        return {.absorbed = scores / token, .decompressed = scores / token};
    }
    const double absorbed = 2 * layers * absorbed_columns(c);
    // The weights' type counts bytes only. A token alone sees itself: that pair is taken off.
    const double token = step_cost(c, StepFormats{}, StepShape{}).flops - absorbed;
    return {.absorbed = absorbed / token,
            .decompressed =
                2 * layers * static_cast<double>(c.query_head_dim() + c.v_head_dim) / token};
}

}  // namespace espalier::model
