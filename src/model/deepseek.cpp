// SPDX-License-Identifier: Apache-2.0
#include "model/deepseek.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "model/activations.hpp"
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

// What the operations can hold, refused here with both numbers rather than found out in a step.
Expected<void> check_operations_hold(const checkpoint::ModelConfig& config) {
    const auto at_most = [](std::string_view what, std::int64_t value,
                            std::int64_t limit) -> Expected<void> {
        if (value <= limit) return {};
        return fail(ErrorKind::unsupported, "{} is {}, more than the {} this build can run", what,
                    value, limit);
    };
    ESPALIER_RETURN_IF_ERROR(
        at_most("n_routed_experts", config.n_routed_experts, ops::kMaxExperts));
    ESPALIER_RETURN_IF_ERROR(
        at_most("num_experts_per_tok", config.num_experts_per_tok, ops::kMaxTopK));
    return at_most("vocab_size", config.vocab_size, ops::kMaxVocabulary);
}

}  // namespace

struct DeepseekModel::State {
    checkpoint::ModelConfig config;
    Weights weights;
    const ops::Backend& backend;
    const mla::Kernels& kernels;
    ModelLimits limits;
    DType act;
    ops::RouterRule router;
    std::array<float, 32> frequencies;
    float magnitude;
    float scale;  // softmax
    float epsilon;
    Arena activations_arena;
    Arena scratch;
    Activations a;
    OpContext context;
    std::int64_t tokens = 0;  // T of the last forward
    std::int64_t gather = 0;  // G of the last forward

    State(const checkpoint::ModelConfig& config_in, Weights weights_in,
          const ops::Backend& backend_in, const mla::Kernels& kernels_in, Device& device,
          const ModelLimits& limits_in, Buffer activations, Buffer scratch_memory)
        : config(config_in),
          weights(std::move(weights_in)),
          backend(backend_in),
          kernels(kernels_in),
          limits(limits_in),
          act(weights.format.input()),
          router(router_rule(config)),
          frequencies(inverse_frequencies(config)),
          magnitude(rope_magnitude(config)),
          scale(softmax_scale(config)),
          epsilon(static_cast<float>(config.rms_norm_eps)),
          activations_arena(std::move(activations)),
          scratch(std::move(scratch_memory)),
          a(Activations::take(activations_arena, config, act, limits.max_tokens,
                              limits.max_gather)),
          context{device, scratch} {}

    Matrix live(const Matrix& matrix) const { return matrix.slice(0, tokens); }
    Matrix live_pairs(const Matrix& matrix) const { return matrix.slice(0, tokens * router.top_k); }

    void project_queries_and_latents(const LayerWeights& layer);
    Expected<void> absorbed_attention(const LayerWeights& layer, const batch::BatchView& batch,
                                      const mla::KvPages& kv);
    Expected<void> decompressed_attention(const LayerWeights& layer, const batch::BatchView& batch,
                                          const mla::KvPages& kv);
    Expected<void> attention(const LayerWeights& layer, const batch::BatchView& batch,
                             const mla::KvPages& kv);
    void feed_forward(const FeedForwardWeights& weights_of, const Matrix& out, ops::Store store);
    void mixture_of_experts(const MoeWeights& moe, const batch::BatchView& batch);
    Expected<void> check_batch(const batch::BatchView& batch, const cache::KvStorage& kv) const;
};

// x → q (f32, rope part not yet rotated) and the token's latent and rotated key.
void DeepseekModel::State::project_queries_and_latents(const LayerWeights& layer) {
    const AttentionWeights& w = layer.attention;
    backend.rms_norm(context, live(a.residual), layer.input_norm.data(), epsilon, live(a.normed),
                     {});
    if (config.q_lora_rank > 0) {
        backend.product(context, live(a.normed), w.q_a.view(), live(a.q_a), ops::Store::assign);
        backend.rms_norm(context, live(a.q_a), w.q_a_norm.data(), kLowRankEpsilon, live(a.q_low),
                         {});
    }
    const Matrix q_input = live(config.q_lora_rank > 0 ? a.q_low : a.normed);
    backend.product(context, q_input, w.q.view(), live(a.q), ops::Store::assign);
    const Matrix kv_a = live(a.kv_a);
    backend.product(context, live(a.normed), w.kv_a.view(), kv_a, ops::Store::assign);
    backend.rms_norm(context, kv_a.columns(0, mla::kLatent), w.kv_a_norm.data(), kLowRankEpsilon,
                     live(a.latent), {});
    backend.rope(context, kv_a.columns(mla::kLatent, mla::kRope), 0, 1, live(a.cos_sin),
                 live(a.key_rope), 0);
}

// q_nope goes through kv_b's key half into the latent space, attends there, and comes back through
// the value half.
Expected<void> DeepseekModel::State::absorbed_attention(const LayerWeights& layer,
                                                        const batch::BatchView& batch,
                                                        const mla::KvPages& kv) {
    const std::int64_t count = batch.cap_absorbed;
    const auto heads = static_cast<std::int32_t>(config.num_attention_heads);
    const Matrix query = a.q_absorbed.slice(0, count);
    backend.stacked_product(context, a.q_act.slice(0, count), mla::kQuery,
                            layer.attention.absorb_key.view(), query, mla::kKey);
    backend.rope(context, a.q.slice(0, count).columns(mla::kNope, a.q.cols - mla::kNope),
                 mla::kQuery, heads, a.cos_sin.slice(0, count),
                 query.columns(mla::kLatent, query.cols - mla::kLatent), mla::kKey);
    mla::AbsorbedCall call;
    call.rows = batch.absorbed;
    call.heads = heads;
    call.q = query.data;
    call.q_dtype = query.dtype;
    call.kv = kv;
    call.scale = scale;
    call.out = a.out_latent.data;
    call.out_dtype = a.out_latent.dtype;
    ESPALIER_RETURN_IF_ERROR(kernels.absorbed(context, call));
    backend.stacked_product(context, a.out_latent.slice(0, count), mla::kLatent,
                            layer.attention.up_value.view(), a.out.slice(0, count), mla::kValue);
    return {};
}

Expected<void> DeepseekModel::State::decompressed_attention(const LayerWeights& layer,
                                                            const batch::BatchView& batch,
                                                            const mla::KvPages& kv) {
    const std::int64_t first = batch.cap_absorbed;
    const std::int64_t count = tokens - first;
    const auto heads = static_cast<std::int32_t>(config.num_attention_heads);
    backend.rope(context, a.q.slice(first, count).columns(mla::kNope, a.q.cols - mla::kNope),
                 mla::kQuery, heads, a.cos_sin.slice(first, count),
                 a.q_act.slice(first, count).columns(mla::kNope, a.q_act.cols - mla::kNope),
                 mla::kQuery);
    mla::DecompressedCall call;
    call.rows = batch.decompressed;
    call.heads = heads;
    call.q = a.q_act.data;
    call.q_dtype = a.q_act.dtype;
    call.kv = kv;
    call.up_key = layer.attention.up_key.view();
    call.up_value = layer.attention.up_value.view();
    call.scale = scale;
    call.out = a.out.data;
    call.out_dtype = a.out.dtype;
    return kernels.decompressed(context, call);
}

Expected<void> DeepseekModel::State::attention(const LayerWeights& layer,
                                               const batch::BatchView& batch,
                                               const mla::KvPages& kv) {
    project_queries_and_latents(layer);
    mla::AppendCall append;
    append.tokens = tokens;
    append.latent = a.latent.row<float>(0);
    append.latent_stride = a.latent.stride;
    append.rope = a.key_rope.row<float>(0);
    append.rope_stride = a.key_rope.stride;
    append.slot = batch.slot;
    append.kv = kv;
    append.nonfinite = a.layer_nonfinite;
    ESPALIER_RETURN_IF_ERROR(kernels.append(context, append));
    for (std::int64_t token = 0; token < tokens; ++token)
        a.nonfinite[token] |= a.layer_nonfinite[token];

    backend.convert(context, live(a.q), mla::kQuery,
                    static_cast<std::int32_t>(config.num_attention_heads), mla::kNope,
                    live(a.q_act), mla::kQuery);
    if (batch.cap_absorbed > 0) ESPALIER_RETURN_IF_ERROR(absorbed_attention(layer, batch, kv));
    if (batch.cap_absorbed < tokens)
        ESPALIER_RETURN_IF_ERROR(decompressed_attention(layer, batch, kv));
    backend.product(context, live(a.out), layer.attention.o.view(), live(a.residual),
                    ops::Store::accumulate);
    return {};
}

void DeepseekModel::State::feed_forward(const FeedForwardWeights& weights_of, const Matrix& out,
                                        ops::Store store) {
    const std::int64_t width = weights_of.down.view().k;
    const Matrix gate_up{a.gate_up.data, a.gate_up.dtype, tokens, 2 * width, 2 * width};
    const Matrix gated{a.gated.data, a.gated.dtype, tokens, width, width};
    backend.product(context, live(a.normed), weights_of.gate_up.view(), gate_up,
                    ops::Store::assign);
    backend.swiglu(context, gate_up, gated);
    backend.product(context, gated, weights_of.down.view(), out, store);
}

void DeepseekModel::State::mixture_of_experts(const MoeWeights& moe,
                                              const batch::BatchView& batch) {
    backend.product(context, live(a.normed_exact), moe.router.view(), live(a.router_logits),
                    ops::Store::assign);
    backend.route(context, live(a.router_logits), moe.bias.empty() ? nullptr : moe.bias.data(),
                  router, batch.row_of, a.plan);
    backend.expert_product(context, live(a.normed), a.plan.source_token, a.plan.indptr,
                           moe.gate_up.view(), live_pairs(a.pair_gate_up));
    backend.swiglu(context, live_pairs(a.pair_gate_up), live_pairs(a.pair_gated));
    backend.expert_product(context, live_pairs(a.pair_gated), nullptr, a.plan.indptr,
                           moe.down.view(), live_pairs(a.pair_out));
    if (moe.shared) feed_forward(*moe.shared, live(a.shared_out), ops::Store::assign);
    backend.combine_experts(context, live_pairs(a.pair_out), router, a.plan,
                            moe.shared ? live(a.shared_out) : Matrix{}, live(a.residual));
}

Expected<void> DeepseekModel::State::check_batch(const batch::BatchView& batch,
                                                 const cache::KvStorage& kv) const {
    if (batch.cap_tokens > limits.max_tokens)
        return fail(ErrorKind::exhausted, "a batch of {} tokens: this model was set up for {}",
                    batch.cap_tokens, limits.max_tokens);
    if (batch.cap_gather > limits.max_gather)
        return fail(ErrorKind::exhausted, "a batch wants {} logits: this model was set up for {}",
                    batch.cap_gather, limits.max_gather);
    const std::int64_t longest = std::max(batch.absorbed.max_kv_len, batch.decompressed.max_kv_len);
    if (longest > limits.max_kv_len)
        return fail(ErrorKind::exhausted, "a sequence of {} tokens: this model was set up for {}",
                    longest, limits.max_kv_len);
    if (static_cast<std::int64_t>(kv.layout().target.size()) != config.num_hidden_layers)
        return fail(ErrorKind::invalid, "a cache of {} layers for a model of {}",
                    kv.layout().target.size(), config.num_hidden_layers);
    for (std::int64_t token = 0; token < batch.cap_tokens; ++token)
        if (batch.tokens[token] < 0 || batch.tokens[token] >= config.vocab_size)
            return fail(ErrorKind::invalid, "token id {} is outside the vocabulary of {}",
                        batch.tokens[token], config.vocab_size);
    return {};
}

Expected<DeepseekModel> DeepseekModel::create(const checkpoint::ModelConfig& config,
                                              Weights weights, const ops::Backend& backend,
                                              const mla::Kernels& kernels, Device& device,
                                              const ModelLimits& limits) {
    ESPALIER_RETURN_IF_ERROR(check_operations_hold(config));
    ModelLimits bounded = limits;
    if (bounded.max_kv_len == 0) bounded.max_kv_len = config.max_position_embeddings;
    const DType act = weights.format.input();
    const std::size_t activation_bytes =
        Activations::plan_bytes(config, act, bounded.max_tokens, bounded.max_gather);
    const std::size_t scratch_bytes = std::max(
        backend.scratch_bytes(bounded.max_tokens, bounded.max_gather, config.vocab_size,
                              device.workers()),
        kernels.scratch_bytes({.heads = static_cast<std::int32_t>(config.num_attention_heads),
                               .rows = static_cast<std::int32_t>(bounded.max_tokens),
                               .tokens = bounded.max_tokens,
                               .max_q_len = static_cast<std::int32_t>(bounded.max_tokens),
                               .max_kv_len = static_cast<std::int32_t>(bounded.max_kv_len),
                               .workers = device.workers()}));
    ESPALIER_ASSIGN_OR_RETURN(Buffer activations, device.allocate(activation_bytes));
    ESPALIER_ASSIGN_OR_RETURN(Buffer scratch, device.allocate(scratch_bytes));
    return DeepseekModel(std::make_unique<State>(config, std::move(weights), backend, kernels,
                                                 device, bounded, std::move(activations),
                                                 std::move(scratch)));
}

DeepseekModel::DeepseekModel(std::unique_ptr<State> state) : state_(std::move(state)) {}
DeepseekModel::DeepseekModel(DeepseekModel&&) noexcept = default;
DeepseekModel& DeepseekModel::operator=(DeepseekModel&&) noexcept = default;
DeepseekModel::~DeepseekModel() = default;

const checkpoint::ModelConfig& DeepseekModel::config() const { return state_->config; }
const Weights& DeepseekModel::weights() const { return state_->weights; }
const ModelLimits& DeepseekModel::limits() const { return state_->limits; }
Device& DeepseekModel::device() const { return state_->context.device; }

mla::KvFormat DeepseekModel::kv_format() const {
    return state_->act == DType::bf16 ? mla::KvFormat::bf16 : mla::KvFormat::f32;
}

Expected<Matrix> DeepseekModel::forward(const batch::BatchView& batch, cache::KvStorage& kv) {
    State& s = *state_;
    ESPALIER_RETURN_IF_ERROR(s.check_batch(batch, kv));
    s.tokens = batch.cap_tokens;
    s.gather = batch.cap_gather;
    std::fill_n(s.a.nonfinite, s.tokens, std::uint8_t{0});
    s.backend.embed(s.context, batch.tokens, s.weights.embedding.table, s.live(s.a.residual));
    s.backend.rope_angles(s.context, batch.position, s.tokens, {s.frequencies, s.magnitude},
                          s.live(s.a.cos_sin));
    for (std::size_t index = 0; index < s.weights.layers.size(); ++index) {
        const LayerWeights& layer = s.weights.layers[index];
        ESPALIER_RETURN_IF_ERROR(
            s.attention(layer, batch, kv.target(static_cast<std::int64_t>(index))));
        const bool moe = layer.moe.has_value();
        s.backend.rms_norm(s.context, s.live(s.a.residual), layer.post_attention_norm.data(),
                           s.epsilon, s.live(s.a.normed),
                           moe ? s.live(s.a.normed_exact) : Matrix{});
        if (moe) {
            s.mixture_of_experts(*layer.moe, batch);
        } else {
            s.feed_forward(*layer.dense, s.live(s.a.residual), ops::Store::accumulate);
        }
    }
    const Matrix gathered = s.a.gathered.slice(0, s.gather);
    const Matrix gathered_act = s.a.gathered_act.slice(0, s.gather);
    s.backend.gather_rows(s.context, s.live(s.a.residual), batch.gather, gathered);
    s.backend.rms_norm(s.context, gathered, s.weights.final_norm.data(), s.epsilon, gathered_act,
                       {});
    const Matrix logits = last_logits();
    s.backend.product(s.context, gathered_act, s.weights.head.view(), logits, ops::Store::assign);
    return logits;
}

Matrix DeepseekModel::last_logits() const { return state_->a.logits.slice(0, state_->gather); }

std::span<const std::uint8_t> DeepseekModel::nonfinite() const {
    return {state_->a.nonfinite, static_cast<std::size_t>(state_->tokens)};
}

void DeepseekModel::sample(const ops::SamplingBatch& batch) {
    state_->backend.sample_nodes(state_->context, last_logits(), batch);
}

Expected<void> DeepseekModel::compact(std::span<const std::int64_t> source,
                                      std::span<const std::int64_t> destination,
                                      cache::KvStorage& kv) {
    CHECK(source.size() == destination.size(), "{} slots move to {}", source.size(),
          destination.size());
    mla::CompactCall call;
    call.moves = static_cast<std::int64_t>(source.size());
    call.source = source.data();
    call.destination = destination.data();
    for (std::size_t layer = 0; layer < kv.layout().target.size(); ++layer) {
        call.kv = kv.target(static_cast<std::int64_t>(layer));
        ESPALIER_RETURN_IF_ERROR(state_->kernels.compact(state_->context, call));
    }
    return {};
}

}  // namespace espalier::model
