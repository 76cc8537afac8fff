// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_layer.hpp"

#include <cmath>

#include "model/rope_scaling.hpp"
#include "ops/rank_terms.hpp"

namespace espalier::model {
namespace {

// The norms of q_a and kv_a do not follow config.rms_norm_eps in the published models.
constexpr float kLowRankEpsilon = 1e-6f;
constexpr float kIndexEpsilon = 1e-6f;  // likewise that of the index keys' layer norm

ops::RouterRule router_rule(const checkpoint::ModelConfig& config) {
    using checkpoint::ScoringFunction;
    using checkpoint::TopkMethod;
    ops::RouterRule rule;
    rule.score = config.scoring == ScoringFunction::sigmoid ? ops::RouterScore::sigmoid
                                                            : ops::RouterScore::softmax;
    switch (config.topk_method) {
        case TopkMethod::greedy:
            rule.group_score = ops::GroupScore::none;
            break;
        case TopkMethod::group_limited_greedy:
            rule.group_score = ops::GroupScore::maximum;
            break;
        case TopkMethod::noaux_tc:
            rule.group_score = ops::GroupScore::top_two_sum;
            break;
    }
    rule.experts = static_cast<std::int32_t>(config.n_routed_experts);
    rule.top_k = static_cast<std::int32_t>(config.num_experts_per_tok);
    rule.groups = static_cast<std::int32_t>(config.n_group);
    rule.top_groups = static_cast<std::int32_t>(config.topk_group);
    rule.normalise = config.norm_topk_prob;
    rule.scaling = static_cast<float>(config.routed_scaling_factor);
    return rule;
}

ops::QueryScaling query_scaling(const checkpoint::ModelConfig& config) {
    if (config.query_scaling_beta == 0.0) return {};
    return {config.query_scaling_beta,
            static_cast<std::int32_t>(config.yarn->original_max_position_embeddings)};
}

std::optional<IndexRule> index_rule(const checkpoint::ModelConfig& config) {
    if (!config.indexer) return std::nullopt;
    const checkpoint::IndexerConfig& indexer = *config.indexer;
    const auto inverse_root = [](std::int64_t n) {
        return static_cast<float>(1.0 / std::sqrt(static_cast<double>(n)));
    };
    return IndexRule{.heads = static_cast<std::int32_t>(indexer.heads),
                     .top_k = indexer.top_k,
                     .scale = inverse_root(indexer.head_dim),
                     .weight_scale = inverse_root(indexer.heads),
                     .interleaved = indexer.interleaved};
}

}  // namespace

DecoderRule::DecoderRule(const checkpoint::ModelConfig& config, const Shard& shard)
    : heads(static_cast<std::int32_t>(heads_of(config, shard))),
      head_dims(config.head_dims()),
      epsilon(static_cast<float>(config.rms_norm_eps)),
      softmax_scale(model::softmax_scale(config)),
      rope{inverse_frequencies(config), rope_magnitude(config)},
      scaling(query_scaling(config)),
      router(router_rule(config)),
      index(index_rule(config)) {}

Matrix DecoderLayer::normed_input(std::int64_t tokens, Input given) const {
    const Matrix input = a_.attention_input.slice(0, tokens);
    if (given == Input::residual && !weights_.input_norm.empty())
        backend_.rms_norm(context_, a_.residual.slice(0, tokens), weights_.input_norm.data(),
                          rule_.epsilon, input, exact_input(weights_, tokens));
    return input;
}

Matrix DecoderLayer::exact_input(const LayerWeights& weights, std::int64_t tokens) const {
    return weights.attention.indexer ? a_.normed_exact.slice(0, tokens) : Matrix{};
}

bool DecoderLayer::chooses(const batch::BatchView& batch) const {
    return rule_.index && batch.absorbed.max_kv_len - rule_.first_slot > rule_.index->top_k;
}

ops::IndexKeysCall DecoderLayer::index_keys_call(const batch::BatchView& batch,
                                                 const cache::LayerPages& kv) const {
    const auto& weights = weights_.attention.indexer;
    if (!weights) return {};
    const std::int64_t tokens = batch.cap_tokens;
    ops::IndexKeysCall call{.w = weights->k.view(),
                            .keys = a_.index_k.slice(0, tokens),
                            .norm_weight = weights->k_norm.data(),
                            .norm_bias = weights->k_bias.data(),
                            .epsilon = kIndexEpsilon,
                            .interleaved = rule_.index->interleaved};
    call.append.tokens = tokens;
    call.append.slot = batch.slot;
    call.append.kv = kv.index_keys;
    call.append.nonfinite = a_.nonfinite;
    return call;
}

ops::IndexCall DecoderLayer::index_call(const batch::BatchView& batch,
                                        const cache::LayerPages& kv) const {
    const auto& weights = weights_.attention.indexer;
    if (!weights || !chooses(batch)) return {};
    const std::int64_t absorbed = batch.cap_absorbed;
    ops::IndexCall call{.q = weights->q.view(),
                        .weights = weights->weights.view(),
                        .input = a_.normed_exact.slice(0, absorbed),
                        .queries = a_.index_q.slice(0, absorbed),
                        .q_act = a_.index_q_act.slice(0, absorbed),
                        .head_weights = a_.index_weights.slice(0, absorbed),
                        .interleaved = rule_.index->interleaved};
    call.select.rows = batch.absorbed;
    call.select.rows.first_slot = rule_.first_slot;
    call.select.heads = rule_.index->heads;
    call.select.weight_scale = rule_.index->weight_scale;
    call.select.keys = kv.index_keys;
    call.select.scale = rule_.index->scale;
    call.select.top_k = rule_.index->top_k;
    call.select.lists = a_.lists;
    call.select.nonfinite = a_.nonfinite;
    return call;
}

ops::KeysCall DecoderLayer::keys_call(const batch::BatchView& batch,
                                      const cache::LayerPages& kv) const {
    const std::int64_t tokens = batch.cap_tokens;
    ops::KeysCall keys{.w = weights_.attention.kv_a.view(),
                       .kv_a = a_.kv_a.slice(0, tokens),
                       .norm = {weights_.attention.kv_a_norm.data(),
                                kLowRankEpsilon,
                                a_.latent.slice(0, tokens),
                                {}},
                       .cos_sin = a_.cos_sin.slice(0, tokens),
                       .key_rope = a_.key_rope.slice(0, tokens),
                       .append = {}};
    keys.append.tokens = tokens;
    keys.append.slot = batch.slot;
    keys.append.kv = kv.latents;
    keys.append.nonfinite = a_.nonfinite;
    keys.index = index_keys_call(batch, kv);
    return keys;
}

mla::AbsorbedCall DecoderLayer::absorbed_call(const batch::BatchView& batch,
                                              const cache::LayerPages& kv) const {
    mla::AbsorbedCall call;
    call.rows = batch.absorbed;
    call.rows.first_slot = rule_.first_slot;
    if (chooses(batch)) call.lists = a_.lists;
    call.heads = rule_.heads;
    call.q = a_.q_absorbed.data;
    call.q_dtype = a_.q_absorbed.dtype;
    call.kv = kv.latents;
    call.scale = rule_.softmax_scale;
    call.out = a_.out_latent.data;
    call.out_dtype = a_.out_latent.dtype;
    call.plan = a_.attention_plan;
    return call;
}

mla::DecompressedCall DecoderLayer::decompressed_call(const batch::BatchView& batch,
                                                      const cache::LayerPages& kv) const {
    mla::DecompressedCall call;
    call.rows = batch.decompressed;
    call.rows.first_slot = rule_.first_slot;
    call.heads = rule_.heads;
    call.q = a_.q_act.data;
    call.q_dtype = a_.q_act.dtype;
    call.kv = kv.latents;
    const auto [up_key, up_value] = weights_.attention.up();
    call.up_key = up_key;
    call.up_value = up_value;
    call.scale = rule_.softmax_scale;
    call.out = a_.out.data;
    call.out_dtype = a_.out.dtype;
    return call;
}

ops::AttentionCall DecoderLayer::attention_call(const batch::BatchView& batch,
                                                const cache::LayerPages& kv) const {
    const AttentionWeights& w = weights_.attention;
    const std::int64_t tokens = batch.cap_tokens, absorbed = batch.cap_absorbed;
    ops::AttentionCall call{.index = index_call(batch, kv),
                            .q = w.q.view(),
                            .queries = a_.q.slice(0, tokens),
                            .scaling = rule_.scaling,
                            .position = batch.position,
                            .cos_sin = a_.cos_sin.slice(0, tokens),
                            .q_act = a_.q_act.slice(0, tokens),
                            .absorb_key = w.absorb_key.view(),
                            .up_value = w.up_value.view(),
                            .q_absorbed = a_.q_absorbed.slice(0, absorbed),
                            .out_latent = a_.out_latent.slice(0, absorbed),
                            .absorbed = absorbed_call(batch, kv),
                            .decompressed = decompressed_call(batch, kv),
                            .out = a_.out.slice(0, tokens),
                            .o = w.o.view(),
                            .sums = sums_of(w.o, tokens, a_.sums)};
    if (a_.all_out.data != nullptr) call.all_out = a_.all_out.slice(0, tokens);
    if (!w.q_a_norm.empty())
        call.low_rank = {w.q_a.view(),
                         a_.q_a.slice(0, tokens),
                         {w.q_a_norm.data(), kLowRankEpsilon, a_.q_low.slice(0, tokens), {}}};
    return call;
}

Expected<void> DecoderLayer::plan_attention(const batch::BatchView& batch,
                                            const cache::LayerPages& kv) const {
    if (a_.attention_plan == nullptr || batch.cap_absorbed == 0) return {};
    return kernels_.plan(context_, absorbed_call(batch, kv));
}

Expected<void> DecoderLayer::write_kv(const batch::BatchView& batch,
                                      const cache::LayerPages& kv) const {
    return program_.write_keys(context_, kernels_, normed_input(batch.cap_tokens, Input::residual),
                               keys_call(batch, kv));
}

Expected<void> DecoderLayer::finish(const batch::BatchView& batch,
                                    const cache::LayerPages& kv) const {
    ESPALIER_ASSIGN_OR_RETURN(
        const ops::Terms attention,
        program_.attend(context_, kernels_, a_.attention_input.slice(0, batch.cap_tokens),
                        attention_call(batch, kv)));
    mlp(batch, attention, nullptr);
    return {};
}

Expected<void> DecoderLayer::run(const batch::BatchView& batch, const cache::LayerPages& kv,
                                 Input given, const LayerWeights* next) const {
    ESPALIER_ASSIGN_OR_RETURN(
        const ops::Terms attention,
        program_.write_keys_and_attend(context_, kernels_, normed_input(batch.cap_tokens, given),
                                       keys_call(batch, kv), attention_call(batch, kv)));
    mlp(batch, attention, next);
    return {};
}

void DecoderLayer::mlp(const batch::BatchView& batch, const ops::Terms& attention,
                       const LayerWeights* next) const {
    const std::int64_t tokens = batch.cap_tokens;
    const Matrix residual = a_.residual.slice(0, tokens);
    ops::Terms terms;
    if (weights_.moe) {
        terms = mixture_of_experts(batch, attention);
    } else {
        program_.add(context_, attention, residual, {.norm = post_attention_norm(tokens)});
        terms = program_.feed_forward(context_, a_.normed.slice(0, tokens),
                                      network(*weights_.dense, tokens, a_.sums));
    }
    ops::AfterTerms after;
    if (next != nullptr)
        after.norm = {next->input_norm.data(), rule_.epsilon, a_.attention_input.slice(0, tokens),
                      exact_input(*next, tokens)};
    program_.add(context_, terms, residual, after);
}

// Norm of the residual with attention in it.
ops::RowNorm DecoderLayer::post_attention_norm(std::int64_t tokens) const {
    return {weights_.post_attention_norm.data(), rule_.epsilon, a_.normed.slice(0, tokens),
            weights_.moe ? a_.normed_exact.slice(0, tokens) : Matrix{}};
}

// A dense layer or a shared expert in the activations that both have in common.
ops::FeedForward DecoderLayer::network(const FeedForwardWeights& weights, std::int64_t tokens,
                                       const Matrix& sums) const {
    const std::int64_t width = weights.down.view().k;
    return {weights.gate_up.view(),
            weights.down.view(),
            {a_.gate_up.data, a_.gate_up.dtype, tokens, 2 * width, 2 * width},
            {a_.gated.data, a_.gated.dtype, tokens, width, width},
            sums_of(weights.down, tokens, sums)};
}

// Rows for the result of a product whose inputs are cut, or on ranks for each segment here.
Matrix DecoderLayer::sums_of(const Weight& w, std::int64_t tokens, const Matrix& room) const {
    const std::int64_t apart = ops::ranks_of(context_) == nullptr ? 1 : w.view().segments.count;
    return room.slice(0, tokens * apart);
}

// residual += attention; the experts' terms from its norm.
ops::Terms DecoderLayer::mixture_of_experts(const batch::BatchView& batch,
                                            const ops::Terms& attention) const {
    const MoeWeights& moe = *weights_.moe;
    const std::int64_t tokens = batch.cap_tokens;
    const std::int64_t pairs = tokens * rule_.router.top_k;
    const ops::RouterCall router{.w = moe.router.view(),
                                 .logits = a_.router_logits.slice(0, tokens),
                                 .bias = moe.bias.empty() ? nullptr : moe.bias.data(),
                                 .rule = rule_.router,
                                 .row_of = batch.row_of,
                                 .plan = a_.plan,
                                 .deal = moe.deal.get()};
    program_.add(context_, attention, a_.residual.slice(0, tokens),
                 {.norm = post_attention_norm(tokens), .router = &router});
    if (moe.mapped) moe.mapped->read_ahead(a_.plan.indptr);
    return program_.experts(
        context_, a_.normed.slice(0, tokens), router,
        {moe.gate_up.view(), moe.down.view(), a_.pair_gate_up.slice(0, pairs),
         a_.pair_gated.slice(0, pairs), a_.pair_out.slice(0, pairs)},
        moe.shared ? network(*moe.shared, tokens, a_.shared_out) : ops::FeedForward{});
}

}  // namespace espalier::model
