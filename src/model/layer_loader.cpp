// SPDX-License-Identifier: Apache-2.0
// Which tensors make a decoder layer, by the names DeepSeek publishes. One function per block.
#include "model/layer_loader.hpp"

#include <optional>
#include <string>
#include <utility>

namespace espalier::model {

using checkpoint::ModelConfig;
using linalg::WeightSource;

namespace {

// kv_b holds, head after head, rows that make k_nope and rows that make v.
Expected<void> load_kv_b(WeightReader& reader, const std::string& attention,
                         const ModelConfig& config, const Shard& shard, AttentionWeights& to) {
    const std::string name = attention + "kv_b_proj";
    const auto [nope, value_rows] = config.head_dims();
    const std::int64_t head_rows = nope + value_rows;
    const std::int64_t heads = heads_of(config, shard);
    const std::int64_t latent = config.key_dims().latent;
    ESPALIER_ASSIGN_OR_RETURN(const WeightFormat format, reader.kv_b_format(attention));
    std::optional<StoredMatrix> stored;  // read when a part of it is to be packed
    const auto kv_b = [&]() -> Expected<const StoredMatrix*> {
        if (!stored) {
            ESPALIER_ASSIGN_OR_RETURN(
                stored,
                reader.kv_b(attention, {shard.rank * heads * head_rows, heads * head_rows}));
        }
        return &*stored;
    };
    // Rows [first, first + rows) of every head, as they lie or transposed.
    const auto part = [&](const char* suffix, std::int64_t first, std::int64_t rows,
                          bool transposed) {
        linalg::WeightView shape{
            .format = format, .count = config.num_attention_heads, .n = rows, .k = latent};
        if (transposed) std::swap(shape.n, shape.k);
        const auto make = [&]() -> Expected<Weight> {
            ESPALIER_ASSIGN_OR_RETURN(const StoredMatrix* matrix, kv_b());
            std::vector<std::vector<WeightSource>> stack;
            for (std::int64_t head = 0; head < heads; ++head)
                stack.push_back({matrix->rows(head * head_rows + first, rows, transposed)});
            return reader.pack(stack);
        };
        if (shard.whole()) return reader.shelved(name + suffix, shape, make);
        linalg::StackPart here{.matrices = {}, .rows = {{0, shape.n}}, .inputs = {0, shape.k}};
        for (std::int64_t head = 0; head < heads; ++head)
            here.matrices.push_back(shard.rank * heads + head);
        return reader.shelved_part(name + suffix, shape, here, make);
    };
    ESPALIER_ASSIGN_OR_RETURN(to.absorb_key, part(":absorb_key", 0, nope, true));
    ESPALIER_ASSIGN_OR_RETURN(to.up_value, part(":up_value", nope, value_rows, false));
    if (reader.joins_up_projections()) {
        ESPALIER_ASSIGN_OR_RETURN(const StoredMatrix* matrix, kv_b());
        ESPALIER_ASSIGN_OR_RETURN(to.up_rows, reader.up_projection(*matrix, heads));
    } else {
        ESPALIER_ASSIGN_OR_RETURN(to.up_key, part(":up_key", 0, nope, false));
    }
    if (stored) reader.release(*stored);
    return {};
}

Expected<IndexerWeights> load_indexer(WeightReader& reader, const ModelConfig& config,
                                      const std::string& name) {
    const checkpoint::IndexerConfig& rule = *config.indexer;
    IndexerWeights to;
    ESPALIER_ASSIGN_OR_RETURN(
        to.q, reader.matrix(name + "wq_b", rule.heads * rule.head_dim, config.q_lora_rank));
    ESPALIER_ASSIGN_OR_RETURN(to.k, reader.matrix(name + "wk", rule.head_dim, config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(to.k_norm, reader.vector(name + "k_norm.weight", rule.head_dim));
    ESPALIER_ASSIGN_OR_RETURN(to.k_bias, reader.vector(name + "k_norm.bias", rule.head_dim));
    ESPALIER_ASSIGN_OR_RETURN(
        to.weights, reader.widened(name + "weights_proj.weight", rule.heads, config.hidden_size));
    return to;
}

}  // namespace

Expected<AttentionWeights> load_attention(WeightReader& reader, const ModelConfig& config,
                                          const std::string& name, std::int64_t input_width,
                                          const Shard& shard) {
    const std::int64_t heads = config.num_attention_heads;
    const std::int64_t q_lora = config.q_lora_rank;
    const std::int64_t query = heads * config.query_head_dim();
    const std::int64_t query_here = query / shard.count;
    const linalg::Part queries{shard.rank * query_here, query_here};
    const KeyDims keys = config.key_dims();
    AttentionWeights to;
    if (q_lora > 0) {
        ESPALIER_ASSIGN_OR_RETURN(to.q_a, reader.matrix(name + "q_a_proj", q_lora, input_width));
        ESPALIER_ASSIGN_OR_RETURN(to.q_a_norm,
                                  reader.vector(name + "q_a_layernorm.weight", q_lora));
        ESPALIER_ASSIGN_OR_RETURN(to.q, reader.rows_of(name + "q_b_proj", query, q_lora, queries));
    } else {
        ESPALIER_ASSIGN_OR_RETURN(to.q,
                                  reader.rows_of(name + "q_proj", query, input_width, queries));
    }
    ESPALIER_ASSIGN_OR_RETURN(to.kv_a,
                              reader.matrix(name + "kv_a_proj_with_mqa", keys.key(), input_width));
    ESPALIER_ASSIGN_OR_RETURN(to.kv_a_norm,
                              reader.vector(name + "kv_a_layernorm.weight", keys.latent));
    ESPALIER_RETURN_IF_ERROR(load_kv_b(reader, name, config, shard, to));
    ESPALIER_ASSIGN_OR_RETURN(
        to.o, reader.segments_of(name + "o_proj", config.hidden_size, heads * config.v_head_dim,
                                 o_segments(config, shard)));
    ESPALIER_ASSIGN_OR_RETURN(const std::optional<float> scale, reader.kv_scale(name));
    to.kv_scale = scale.value_or(1.0f);
    return to;
}

Expected<FeedForwardWeights> load_feed_forward(WeightReader& reader, const ModelConfig& config,
                                               const std::string& name, std::int64_t width,
                                               const Shard& shard) {
    const std::int64_t hidden = config.hidden_size;
    const linalg::Part rows = network_rows(config, width, shard);
    FeedForwardWeights to;
    WeightReader::Selection selection;
    if (rows.count != width) selection.rows = rows;
    ESPALIER_ASSIGN_OR_RETURN(
        to.gate_up, reader.stack({{{name + "gate_proj", width}, {name + "up_proj", width}}}, hidden,
                                 WeightReader::Join::gated, selection));
    ESPALIER_ASSIGN_OR_RETURN(to.down, reader.segments_of(name + "down_proj", hidden, width,
                                                          down_segments(config, width, shard)));
    return to;
}

namespace {

Expected<MoeWeights> load_moe(WeightReader& reader, const ModelConfig& config,
                              const std::string& name, const Shard& shard) {
    const std::int64_t width = config.moe_intermediate_size;
    const std::int64_t hidden = config.hidden_size;
    MoeWeights to;
    ESPALIER_ASSIGN_OR_RETURN(
        to.router,
        reader.widened(name + "gate.weight", config.n_routed_experts, config.hidden_size));
    if (config.topk_method == checkpoint::TopkMethod::noaux_tc) {
        ESPALIER_ASSIGN_OR_RETURN(
            to.bias, reader.vector(name + "gate.e_score_correction_bias", config.n_routed_experts));
    }
    std::vector<std::vector<WeightReader::Part>> gate_up, down;
    for (std::int64_t expert = 0; expert < config.n_routed_experts; ++expert) {
        const std::string expert_name = name + "experts." + std::to_string(expert) + ".";
        gate_up.push_back({{expert_name + "gate_proj", width}, {expert_name + "up_proj", width}});
        down.push_back({{expert_name + "down_proj", hidden}});
    }
    WeightReader::Selection here;
    if (!shard.whole()) here.matrices = experts_of(config, shard);
    ESPALIER_ASSIGN_OR_RETURN(to.gate_up,
                              reader.stack(gate_up, hidden, WeightReader::Join::gated, here));
    ESPALIER_ASSIGN_OR_RETURN(to.down, reader.stack(down, width, WeightReader::Join::rows, here));
    to.deal = deal_experts(config, shard);
    if (ExpertReads* reads = reader.expert_reads())
        to.mapped.emplace(to.gate_up.view(), to.down.view(), *reads);
    if (config.n_shared_experts > 0) {
        ESPALIER_ASSIGN_OR_RETURN(to.shared,
                                  load_feed_forward(reader, config, name + "shared_experts.",
                                                    width * config.n_shared_experts, shard));
    }
    return to;
}

}  // namespace

Expected<LayerWeights> load_layer(WeightReader& reader, const ModelConfig& config,
                                  std::int64_t layer, const Shard& shard) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    LayerWeights to;
    ESPALIER_ASSIGN_OR_RETURN(to.input_norm,
                              reader.vector(name + "input_layernorm.weight", config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(to.attention, load_attention(reader, config, name + "self_attn.",
                                                           config.hidden_size, shard));
    if (config.layer_has_indexer(layer)) {
        ESPALIER_ASSIGN_OR_RETURN(to.attention.indexer,
                                  load_indexer(reader, config, name + "self_attn.indexer."));
    }
    ESPALIER_ASSIGN_OR_RETURN(
        to.post_attention_norm,
        reader.vector(name + "post_attention_layernorm.weight", config.hidden_size));
    if (config.layer_is_moe(layer)) {
        ESPALIER_ASSIGN_OR_RETURN(to.moe, load_moe(reader, config, name + "mlp.", shard));
    } else {
        ESPALIER_ASSIGN_OR_RETURN(to.dense, load_feed_forward(reader, config, name + "mlp.",
                                                              config.intermediate_size, shard));
    }
    return to;
}

}  // namespace espalier::model
