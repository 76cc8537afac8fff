// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_layer.hpp"

#include "model/rope_scaling.hpp"

namespace espalier::model {
namespace {

// The norms of q_a and kv_a do not follow config.rms_norm_eps in the published models.
constexpr float kLowRankEpsilon = 1e-6f;

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

}  // namespace

DecoderRule::DecoderRule(const checkpoint::ModelConfig& config)
    : heads(static_cast<std::int32_t>(config.num_attention_heads)),
      head_dims(config.head_dims()),
      epsilon(static_cast<float>(config.rms_norm_eps)),
      softmax_scale(model::softmax_scale(config)),
      rope{inverse_frequencies(config), rope_magnitude(config)},
      router(router_rule(config)) {}

void DecoderLayer::norm_input(std::int64_t tokens, Input given) const {
    if (given == Input::residual && !weights_.input_norm.empty())
        backend_.rms_norm(context_, a_.residual.slice(0, tokens), weights_.input_norm.data(),
                          rule_.epsilon, a_.attention_input.slice(0, tokens), {});
}

Expected<void> DecoderLayer::write_kv(const batch::BatchView& batch, const mla::KvPages& kv,
                                      Input given) const {
    const std::int64_t tokens = batch.cap_tokens;
    norm_input(tokens, given);
    backend_.product(context_, a_.attention_input.slice(0, tokens), weights_.attention.kv_a.view(),
                     a_.kv_a.slice(0, tokens), ops::Store::assign);
    return append_kv(batch, kv, true, {});
}

// a_.kv_a → the batch's slots of the cache, and the norm of other rows beside it. holds_next: on a
// GPU later operations start only when all in front has ended.
Expected<void> DecoderLayer::append_kv(const batch::BatchView& batch, const mla::KvPages& kv,
                                       bool holds_next, const mla::BesideNorm& beside) const {
    const std::int64_t tokens = batch.cap_tokens;
    const Matrix kv_a = a_.kv_a.slice(0, tokens), cos_sin = a_.cos_sin.slice(0, tokens);
    const float* norm = weights_.attention.kv_a_norm.data();
    mla::AppendCall append;
    append.tokens = tokens;
    append.slot = batch.slot;
    append.kv = kv;
    append.nonfinite = a_.nonfinite;
    if (const auto* appender = dynamic_cast<const mla::RawAppender*>(&kernels_))
        return appender->append_raw(context_, append,
                                    {kv_a.row<float>(0), kv_a.stride, norm, kLowRankEpsilon,
                                     cos_sin.row<float>(0), cos_sin.stride, holds_next, beside});
    if (beside.x.data != nullptr)
        backend_.rms_norm(context_, beside.x, beside.weight, beside.epsilon, beside.out, {});
    const Matrix latent = a_.latent.slice(0, tokens);
    const Matrix key_rope = a_.key_rope.slice(0, tokens);
    backend_.split_latent(context_, kv_a, {norm, kLowRankEpsilon, latent, {}}, cos_sin, key_rope);
    append.latent = latent.row<float>(0);
    append.latent_stride = latent.stride;
    append.rope = key_rope.row<float>(0);
    append.rope_stride = key_rope.stride;
    return kernels_.append(context_, append);
}

// Of q_a, where queries have a product of lower rank in front.
mla::BesideNorm DecoderLayer::low_rank_norm(std::int64_t tokens) const {
    return {a_.q_a.slice(0, tokens), weights_.attention.q_a_norm.data(), kLowRankEpsilon,
            a_.q_low.slice(0, tokens)};
}

// input, the layer's or that norm → q_nope as products and attention read it, q_rope rotated to
// where that form of attention reads it; `beside` is a product of the same input that runs with
// them. True: what comes behind starts only when all in front of the product has ended.
bool DecoderLayer::project_queries(const batch::BatchView& batch, const Matrix& input,
                                   const ops::BesideProduct& beside) const {
    const std::int64_t tokens = batch.cap_tokens, absorbed = batch.cap_absorbed;
    const Matrix query = a_.q_absorbed.slice(0, absorbed);
    return backend_.query_product(
        context_, input, weights_.attention.q.view(),
        {.q = a_.q.slice(0, tokens),
         .heads = rule_.heads,
         .width = rule_.head_dims.nope,
         .cos_sin = a_.cos_sin.slice(0, tokens),
         .q_act = a_.q_act.slice(0, tokens),
         .rope_to = query.columns(mla::kLatent, query.cols - mla::kLatent),
         .rope_step = mla::kKey},
        beside);
}

mla::AbsorbedCall DecoderLayer::absorbed_call(const batch::BatchView& batch,
                                              const mla::KvPages& kv) const {
    mla::AbsorbedCall call;
    call.rows = batch.absorbed;
    call.heads = rule_.heads;
    call.q = a_.q_absorbed.data;
    call.q_dtype = a_.q_absorbed.dtype;
    call.kv = kv;
    call.scale = rule_.softmax_scale;
    call.out = a_.out_latent.data;
    call.out_dtype = a_.out_latent.dtype;
    call.plan = a_.attention_plan;
    return call;
}

Expected<void> DecoderLayer::plan_attention(const batch::BatchView& batch,
                                            const mla::KvPages& kv) const {
    if (a_.attention_plan == nullptr || batch.cap_absorbed == 0) return {};
    return kernels_.plan(context_, absorbed_call(batch, kv));
}

// q_nope goes through kv_b's key half into the latent space, attends there, and comes back through
// the value half.
Expected<void> DecoderLayer::attend_absorbed(const batch::BatchView& batch, const mla::KvPages& kv,
                                             ops::Overlap overlap, bool settled) const {
    const std::int64_t count = batch.cap_absorbed;
    backend_.overlapping_stacked_product(context_, a_.q_act.slice(0, count), rule_.query_columns(),
                                         weights_.attention.absorb_key.view(),
                                         a_.q_absorbed.slice(0, count), mla::kKey, overlap);
    mla::AbsorbedCall call = absorbed_call(batch, kv);
    // Nothing that this step appends is another absorbed row's history, unless a prompt's own
    // beginning is decompressed beside it.
    call.history_settled = settled && count == batch.cap_tokens;
    ESPALIER_RETURN_IF_ERROR(kernels_.absorbed(context_, call));
    backend_.stacked_product(context_, a_.out_latent.slice(0, count), mla::kLatent,
                             weights_.attention.up_value.view(), a_.out.slice(0, count),
                             rule_.head_dims.value);
    return {};
}

Expected<void> DecoderLayer::attend_decompressed(const batch::BatchView& batch,
                                                 const mla::KvPages& kv) const {
    mla::DecompressedCall call;
    call.rows = batch.decompressed;
    call.heads = rule_.heads;
    call.q = a_.q_act.data;
    call.q_dtype = a_.q_act.dtype;
    call.kv = kv;
    const auto [up_key, up_value] = weights_.attention.up();
    call.up_key = up_key;
    call.up_value = up_value;
    call.scale = rule_.softmax_scale;
    call.out = a_.out.data;
    call.out_dtype = a_.out.dtype;
    return kernels_.decompressed(context_, call);
}

Expected<void> DecoderLayer::attention(const batch::BatchView& batch,
                                       const mla::KvPages& kv) const {
    const std::int64_t tokens = batch.cap_tokens;
    Matrix input = a_.attention_input.slice(0, tokens);
    if (!weights_.attention.q_a_norm.empty()) {
        const mla::BesideNorm norm = low_rank_norm(tokens);
        backend_.product(context_, input, weights_.attention.q_a.view(), norm.x,
                         ops::Store::assign);
        backend_.rms_norm(context_, norm.x, norm.weight, norm.epsilon, norm.out, {});
        input = norm.out;
    }
    const bool held = project_queries(batch, input, {});
    return attend(batch, kv, {}, held);
}

Expected<void> DecoderLayer::write_kv_and_attend(const batch::BatchView& batch,
                                                 const mla::KvPages& kv, Input given) const {
    const std::int64_t tokens = batch.cap_tokens;
    norm_input(tokens, given);
    const Matrix input = a_.attention_input.slice(0, tokens);
    const ops::BesideProduct kv_a{weights_.attention.kv_a.view(), a_.kv_a.slice(0, tokens)};
    // Attention reads its plan and its history before the step's own keys are there, if an
    // operation since these lets nothing start before all older has ended.
    if (!weights_.attention.q_a_norm.empty()) {
        const mla::BesideNorm norm = low_rank_norm(tokens);
        backend_.product_pair(context_, input, weights_.attention.q_a.view(), norm.x, kv_a);
        ESPALIER_RETURN_IF_ERROR(append_kv(batch, kv, false, norm));
        const bool held = project_queries(batch, norm.out, {});
        return attend(batch, kv, {}, held);
    }
    // If the queries' product does, the weights that absorb queries are on their way meanwhile; if
    // appending does, both run side by side.
    const bool held = project_queries(batch, input, kv_a);
    ESPALIER_RETURN_IF_ERROR(append_kv(batch, kv, !held, {}));
    return attend(batch, kv, {.inputs_settled = !held}, true);
}

// Expects queries and keys where attention reads them. overlap: of the first operation, which reads
// the queries. settled: of all that is older than these.
Expected<void> DecoderLayer::attend(const batch::BatchView& batch, const mla::KvPages& kv,
                                    ops::Overlap overlap, bool settled) const {
    const std::int64_t tokens = batch.cap_tokens;
    if (batch.cap_absorbed > 0)
        ESPALIER_RETURN_IF_ERROR(attend_absorbed(batch, kv, overlap, settled));
    if (batch.cap_absorbed < tokens) ESPALIER_RETURN_IF_ERROR(attend_decompressed(batch, kv));
    backend_.product(context_, a_.out.slice(0, tokens), weights_.attention.o.view(),
                     a_.partial.slice(0, tokens), ops::Store::assign);
    return {};
}

void DecoderLayer::mlp(const batch::BatchView& batch, const LayerWeights* next) const {
    const std::int64_t tokens = batch.cap_tokens;
    const Matrix residual = a_.residual.slice(0, tokens);
    const Matrix partial = a_.partial.slice(0, tokens);
    ops::RowNorm norm;
    if (next != nullptr)
        norm = {next->input_norm.data(), rule_.epsilon, a_.attention_input.slice(0, tokens), {}};
    if (weights_.moe) return mixture_of_experts(batch, norm);
    backend_.reduce_add_norm(context_, partial, residual, post_attention_norm(tokens));
    backend_.feed_forward(context_, a_.normed.slice(0, tokens), network(*weights_.dense, partial),
                          {}, {});
    if (next != nullptr)
        backend_.reduce_add_norm(context_, partial, residual, norm);
    else
        backend_.reduce_add(context_, partial, residual);
}

// Of the residual with attention in it.
ops::RowNorm DecoderLayer::post_attention_norm(std::int64_t tokens) const {
    return {weights_.post_attention_norm.data(), rule_.epsilon, a_.normed.slice(0, tokens),
            weights_.moe ? a_.normed_exact.slice(0, tokens) : Matrix{}};
}

// A dense layer or a shared expert in the activations that both have in common.
ops::FeedForward DecoderLayer::network(const FeedForwardWeights& weights, const Matrix& out) const {
    const std::int64_t width = weights.down.view().k;
    return {weights.gate_up.view(),
            weights.down.view(),
            {a_.gate_up.data, a_.gate_up.dtype, out.rows, 2 * width, 2 * width},
            {a_.gated.data, a_.gated.dtype, out.rows, width, width},
            out};
}

// residual += attention, then the experts' sum; then norm, where there is one.
void DecoderLayer::mixture_of_experts(const batch::BatchView& batch,
                                      const ops::RowNorm& norm) const {
    const MoeWeights& moe = *weights_.moe;
    const std::int64_t tokens = batch.cap_tokens;
    const std::int64_t pairs = tokens * rule_.router.top_k;
    const Matrix partial = a_.partial.slice(0, tokens);
    const Matrix residual = a_.residual.slice(0, tokens);
    const Matrix out = a_.pair_out.slice(0, pairs);
    const Matrix shared = moe.shared ? a_.shared_out.slice(0, tokens) : Matrix{};
    const ops::Overlap beside_router =
        backend_.reduce_add_norm_route(context_, partial, residual, post_attention_norm(tokens),
                                       {.w = moe.router.view(),
                                        .logits = a_.router_logits.slice(0, tokens),
                                        .bias = moe.bias.empty() ? nullptr : moe.bias.data(),
                                        .rule = rule_.router,
                                        .row_of = batch.row_of,
                                        .plan = a_.plan});
    if (moe.mapped) moe.mapped->read_ahead(a_.plan.indptr);
    backend_.expert_layer(context_, a_.normed.slice(0, tokens), a_.plan,
                          {moe.gate_up.view(), moe.down.view(), a_.pair_gate_up.slice(0, pairs),
                           a_.pair_gated.slice(0, pairs), out},
                          moe.shared ? network(*moe.shared, shared) : ops::FeedForward{},
                          beside_router);
    if (norm.weight != nullptr) {
        backend_.combine_add_norm(context_, out, rule_.router, a_.plan, shared, partial, residual,
                                  norm);
    } else {
        backend_.combine_experts(context_, out, rule_.router, a_.plan, shared, partial);
        backend_.reduce_add(context_, partial, residual);
    }
}

}  // namespace espalier::model
