// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_list.hpp"

#include <fmt/format.h>

#include <utility>

namespace espalier::checkpoint {
namespace {

constexpr std::int64_t kFp8Block = 128;

StoredType stored(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return StoredType::f32;
        case DType::f16:
            return StoredType::f16;
        case DType::bf16:
            return StoredType::bf16;
        case DType::e4m3:
            return StoredType::e4m3;
    }
    return StoredType::other;
}

class Lister {
  public:
    Lister(const ModelConfig& config, DType dtype, bool repeat_mtp_embeddings)
        : config_(config),
          repeat_mtp_embeddings_(repeat_mtp_embeddings),
          projection_type_(stored(dtype)),
          plain_type_(dtype == DType::e4m3 ? StoredType::bf16 : projection_type_) {}

    std::vector<TensorSpec> all() {
        const std::int64_t hidden = config_.hidden_size;
        matrix("model.embed_tokens.weight", TensorRole::embedding, config_.vocab_size, hidden);
        for (std::int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
            decoder_layer(fmt::format("model.layers.{}.", layer), layer);
        norm("model.norm.weight", hidden);
        if (!config_.tie_word_embeddings)
            matrix("lm_head.weight", TensorRole::head, config_.vocab_size, hidden);
        for (std::int64_t extra = 0; extra < config_.num_nextn_predict_layers; ++extra)
            mtp_layer(config_.num_hidden_layers + extra);
        return std::move(specs_);
    }

    std::vector<TensorSpec> eagle3(const Eagle3Config& draft, const Eagle3ListOptions& options) {
        const std::int64_t hidden = config_.hidden_size;
        const std::int64_t taps = draft.taps() * draft.target_hidden_size;
        if (draft.norm_before_fc) norm("input_norm.weight", taps);
        for (std::int64_t tap = 0; draft.fc_norm && tap < draft.taps(); ++tap)
            norm(fmt::format("fc_norm.{}.weight", tap), draft.target_hidden_size);
        projection("fc", hidden, taps);
        norm(options.layer + "input_layernorm.weight", hidden);
        norm(options.layer + "hidden_norm.weight", hidden);
        attention(options.layer + "self_attn.", 2 * hidden);
        norm(options.layer + "post_attention_layernorm.weight", hidden);
        feed_forward(options.layer + "mlp.", config_.intermediate_size);
        norm("norm.weight", hidden);
        matrix("lm_head.weight", TensorRole::head, draft.draft_vocab_size, hidden);
        if (options.embedding)
            matrix("embed_tokens.weight", TensorRole::embedding, config_.vocab_size, hidden);
        if (draft.draft_vocab_size == config_.vocab_size) return std::move(specs_);
        add("d2t", TensorRole::draft_offset, StoredType::i64, {draft.draft_vocab_size},
            config_.vocab_size);
        add("t2d", TensorRole::draft_member, StoredType::boolean, {config_.vocab_size},
            draft.draft_vocab_size);
        return std::move(specs_);
    }

  private:
    void add(std::string name, TensorRole role, StoredType type, std::vector<std::int64_t> shape,
             std::int64_t inputs) {
        specs_.push_back({fmt::format("{}{}", config_.tensor_prefix(), name), role, type,
                          std::move(shape), inputs, expert_});
    }

    // A matrix [rows, cols] as config.quantization stores it.
    void quantized(const std::string& name, std::int64_t rows, std::int64_t cols) {
        const Quantization& how = config_.quantization;
        const std::int64_t groups = how.group > 0 ? (cols + how.group - 1) / how.group : 1;
        const auto scale = [&](const char* suffix, StoredType type, std::vector<std::int64_t> shape,
                               std::int64_t largest) {
            add(name + suffix, TensorRole::scale, type, std::move(shape), cols);
            specs_.back().largest_code = largest;
        };
        switch (how.layout) {
            case QuantizedLayout::packed_integers: {
                const std::int64_t per_word = 32 / how.bits;
                add(name + ".weight_packed", TensorRole::projection, StoredType::i32,
                    {rows, (cols + per_word - 1) / per_word}, cols);
                scale(".weight_scale", StoredType::bf16, {rows, groups}, 1 << (how.bits - 1));
                if (how.zero_points)
                    add(name + ".weight_zero_point", TensorRole::projection, StoredType::i32,
                        {(rows + per_word - 1) / per_word, groups}, cols);
                add(name + ".weight_shape", TensorRole::stored_shape, StoredType::i32, {2}, cols);
                specs_.back().outputs = rows;
                return;
            }
            case QuantizedLayout::int8:
                add(name + ".weight", TensorRole::projection, StoredType::i8, {rows, cols}, cols);
                if (how.zero_points)
                    add(name + ".weight_zero_point", TensorRole::projection, StoredType::i8,
                        {rows, groups}, cols);
                return scale(".weight_scale", StoredType::bf16, {rows, groups}, 128);
            case QuantizedLayout::awq:
                add(name + ".qweight", TensorRole::projection, StoredType::i32, {cols, rows / 8},
                    cols);
                add(name + ".qzeros", TensorRole::projection, StoredType::i32, {groups, rows / 8},
                    cols);
                return scale(".scales", StoredType::f16, {groups, rows}, 8);
            case QuantizedLayout::nvfp4:
            case QuantizedLayout::packed_nvfp4: {
                const bool packed = how.layout == QuantizedLayout::packed_nvfp4;
                add(name + (packed ? ".weight_packed" : ".weight"), TensorRole::projection,
                    StoredType::u8, {rows, cols / 2}, cols);
                add(name + ".weight_scale", TensorRole::block_scale, StoredType::e4m3,
                    {rows, groups}, cols);
                scale(packed ? ".weight_global_scale" : ".weight_scale_2", StoredType::f32, {}, 6);
                return scale(packed ? ".input_global_scale" : ".input_scale", StoredType::f32, {},
                             6);
            }
            case QuantizedLayout::none:
                break;
        }
    }

    void norm(const std::string& name, std::int64_t size) {
        add(name, TensorRole::norm, plain_type_, {size}, 0);
    }

    void matrix(const std::string& name, TensorRole role, std::int64_t rows, std::int64_t cols) {
        add(name, role, plain_type_, {rows, cols}, cols);
    }

    // name without ".weight"
    void projection(const std::string& name, std::int64_t rows, std::int64_t cols) {
        if (config_.quantization.layout != QuantizedLayout::none && !name.ends_with("kv_b_proj"))
            return quantized(name, rows, cols);
        add(name + ".weight", TensorRole::projection, projection_type_, {rows, cols}, cols);
        if (projection_type_ != StoredType::e4m3) return;
        add(name + ".weight_scale_inv", TensorRole::scale, StoredType::f32,
            {(rows + kFp8Block - 1) / kFp8Block, (cols + kFp8Block - 1) / kFp8Block}, cols);
    }

    void decoder_layer(const std::string& prefix, std::int64_t layer) {
        norm(prefix + "input_layernorm.weight", config_.hidden_size);
        attention(prefix + "self_attn.", config_.hidden_size);
        if (config_.layer_has_indexer(layer)) indexer(prefix + "self_attn.indexer.");
        norm(prefix + "post_attention_layernorm.weight", config_.hidden_size);
        if (config_.layer_is_moe(layer))
            experts(prefix + "mlp.");
        else
            feed_forward(prefix + "mlp.", config_.intermediate_size);
    }

    // input: the width that queries and keys are projected from
    void attention(const std::string& prefix, std::int64_t input) {
        const std::int64_t heads = config_.num_attention_heads;
        const std::int64_t query = heads * (config_.qk_nope_head_dim + config_.qk_rope_head_dim);
        if (config_.q_lora_rank > 0) {
            projection(prefix + "q_a_proj", config_.q_lora_rank, input);
            norm(prefix + "q_a_layernorm.weight", config_.q_lora_rank);
            projection(prefix + "q_b_proj", query, config_.q_lora_rank);
        } else {
            projection(prefix + "q_proj", query, input);
        }
        projection(prefix + "kv_a_proj_with_mqa", config_.kv_lora_rank + config_.qk_rope_head_dim,
                   input);
        norm(prefix + "kv_a_layernorm.weight", config_.kv_lora_rank);
        projection(prefix + "kv_b_proj", heads * (config_.qk_nope_head_dim + config_.v_head_dim),
                   config_.kv_lora_rank);
        projection(prefix + "o_proj", config_.hidden_size, heads * config_.v_head_dim);
    }

    void indexer(const std::string& prefix) {
        const IndexerConfig& rule = *config_.indexer;
        projection(prefix + "wq_b", rule.heads * rule.head_dim, config_.q_lora_rank);
        projection(prefix + "wk", rule.head_dim, config_.hidden_size);
        norm(prefix + "k_norm.weight", rule.head_dim);
        add(prefix + "k_norm.bias", TensorRole::norm_bias, plain_type_, {rule.head_dim}, 0);
        matrix(prefix + "weights_proj.weight", TensorRole::router, rule.heads, config_.hidden_size);
    }

    void feed_forward(const std::string& prefix, std::int64_t width) {
        projection(prefix + "gate_proj", width, config_.hidden_size);
        projection(prefix + "up_proj", width, config_.hidden_size);
        projection(prefix + "down_proj", config_.hidden_size, width);
    }

    void experts(const std::string& prefix) {
        matrix(prefix + "gate.weight", TensorRole::router, config_.n_routed_experts,
               config_.hidden_size);
        if (config_.topk_method == TopkMethod::noaux_tc)
            add(prefix + "gate.e_score_correction_bias", TensorRole::router_bias, StoredType::f32,
                {config_.n_routed_experts}, 0);
        for (expert_ = 0; expert_ < config_.n_routed_experts; ++expert_)
            feed_forward(fmt::format("{}experts.{}.", prefix, expert_),
                         config_.moe_intermediate_size);
        expert_ = -1;
        if (config_.n_shared_experts > 0)
            feed_forward(prefix + "shared_experts.",
                         config_.n_shared_experts * config_.moe_intermediate_size);
    }

    void mtp_layer(std::int64_t layer) {
        const std::int64_t hidden = config_.hidden_size;
        const std::string prefix = fmt::format("model.layers.{}.", layer);
        if (repeat_mtp_embeddings_)
            matrix(prefix + "embed_tokens.weight", TensorRole::embedding, config_.vocab_size,
                   hidden);
        norm(prefix + "enorm.weight", hidden);
        norm(prefix + "hnorm.weight", hidden);
        projection(prefix + "eh_proj", hidden, 2 * hidden);
        decoder_layer(prefix, layer);
        norm(prefix + "shared_head.norm.weight", hidden);
        if (repeat_mtp_embeddings_)
            matrix(prefix + "shared_head.head.weight", TensorRole::head, config_.vocab_size,
                   hidden);
    }

    const ModelConfig& config_;
    bool repeat_mtp_embeddings_;
    StoredType projection_type_;
    StoredType plain_type_;
    std::int64_t expert_ = -1;
    std::vector<TensorSpec> specs_;
};

}  // namespace

std::uint64_t TensorSpec::elements() const {
    std::uint64_t product = 1;
    for (const std::int64_t dimension : shape) product *= static_cast<std::uint64_t>(dimension);
    return product;
}

std::vector<TensorSpec> list_tensors(const ModelConfig& config, const TensorListOptions& options) {
    return Lister(config, options.dtype, options.repeat_mtp_embeddings).all();
}

std::vector<TensorSpec> list_eagle3_tensors(const Eagle3Config& config,
                                            const Eagle3ListOptions& options) {
    return Lister(config.layer, options.dtype, false).eagle3(config, options);
}

}  // namespace espalier::checkpoint
