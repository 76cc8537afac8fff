// SPDX-License-Identifier: Apache-2.0
// The layer program as the operations that it is made of.
#include "ops/layer_program.hpp"

#include "ops/rank_terms.hpp"

namespace espalier::ops {
namespace {

// Every head's query: the first `nope` columns to q_act, the others rotated; those of rows that
// are decompressed stay behind the head's other columns.
void split_queries(const Operations& operations, OpContext& context, const AttentionCall& call) {
    const std::int64_t absorbed = call.q_absorbed.rows, rest = call.queries.rows - absorbed;
    const std::int64_t nope = call.nope(), step = nope + call.key_dims().rope;
    const std::int32_t heads = call.heads();
    operations.convert(context, call.queries, step, heads, nope, call.q_act, step);
    const auto rotate = [&](std::int64_t first, std::int64_t count, const Matrix& to,
                            std::int64_t to_step) {
        const Matrix from = call.queries.slice(first, count);
        if (count > 0)
            operations.rope(context, from.columns(nope, from.cols - nope), step, heads,
                            call.cos_sin.slice(first, count), to, to_step);
    };
    rotate(0, absorbed, call.rope_to(), call.key_dims().key());
    const Matrix act = call.q_act.slice(absorbed, rest);
    rotate(absorbed, rest, act.columns(nope, act.cols - nope), step);
}

// Rotates the first 64 columns of every head of `from` to `to`, one head's every `step`.
void rotate_index(const Operations& operations, OpContext& context, bool interleaved,
                  const Matrix& from, std::int64_t step, std::int32_t heads, const Matrix& cos_sin,
                  const Matrix& to) {
    if (interleaved)
        operations.rope(context, from, step, heads, cos_sin, to, step);
    else
        operations.rope_halves(context, from, step, heads, cos_sin, to, step);
}

Expected<void> write_index_keys(const Operations& operations, OpContext& context,
                                const mla::Kernels& kernels, const Matrix& input,
                                const Matrix& cos_sin, const IndexKeysCall& index) {
    const Matrix& keys = index.keys;
    operations.product(context, input, index.w, keys, Store::assign);
    operations.layer_norm(context, keys, index.norm_weight, index.norm_bias, index.epsilon, keys);
    rotate_index(operations, context, index.interleaved, keys, keys.cols, 1, cos_sin, keys);
    mla::AppendCall append = index.append;
    append.latent = keys.row<float>(0);
    append.latent_stride = keys.stride;
    return kernels.append(context, append);
}

// low: the normed low-rank queries of the absorbed tokens.
Expected<void> choose_keys(const Operations& operations, OpContext& context,
                           const mla::Kernels& kernels, const Matrix& low, const Matrix& cos_sin,
                           const IndexCall& index) {
    const std::int32_t heads = index.select.heads;
    const std::int64_t width = index.select.keys.dims.latent, rotated = cos_sin.cols;
    const Matrix &q = index.queries, &act = index.q_act;
    operations.product(context, low, index.q, q, Store::assign);
    rotate_index(operations, context, index.interleaved, q, width, heads, cos_sin, act);
    if (width > rotated)
        operations.convert(context, q.columns(rotated, q.cols - rotated), width, heads,
                           width - rotated, act.columns(rotated, act.cols - rotated), width);
    operations.product(context, index.input, index.weights, index.head_weights, Store::assign);
    mla::SelectCall select = index.select;
    select.q = act.data;
    select.q_dtype = act.dtype;
    select.weights = index.head_weights.row<float>(0);
    return kernels.select(context, select);
}

}  // namespace

void Operations::layer_norm(OpContext&, const Matrix&, const float*, const float*, float,
                            const Matrix&) const {
    CHECK(false, "{} has no layer_norm", name());
}
void Operations::rope_halves(OpContext&, const Matrix&, std::int64_t, std::int32_t, const Matrix&,
                             const Matrix&, std::int64_t) const {
    CHECK(false, "{} has no rope of halves", name());
}

Expected<linalg::Weight> LayerProgram::pack_up_projection(Device&, const linalg::WeightSource&,
                                                          std::int64_t) const {
    CHECK(joins_up_projections(), "a backend that packs each up-projection for itself");
    return linalg::Weight();
}

Expected<linalg::Weight> LayerProgram::pack_gated(Device& device, linalg::WeightStack stack) const {
    return operations().pack(device, stack);
}

Expected<void> LayerProgram::write_keys(OpContext& context, const mla::Kernels& kernels,
                                        const Matrix& input, const KeysCall& keys) const {
    const Matrix latent = keys.norm.out, rope = keys.key_rope;
    const std::int64_t width = latent.cols;
    operations().product(context, input, keys.w, keys.kv_a, Store::assign);
    operations().rms_norm(context, keys.kv_a.columns(0, width), keys.norm.weight, keys.norm.epsilon,
                          latent, keys.norm.exact);
    operations().rope(context, keys.kv_a.columns(width, rope.cols), 0, 1, keys.cos_sin, rope, 0);
    mla::AppendCall append = keys.append;
    append.latent = latent.row<float>(0);
    append.latent_stride = latent.stride;
    append.rope = rope.row<float>(0);
    append.rope_stride = rope.stride;
    ESPALIER_RETURN_IF_ERROR(kernels.append(context, append));
    if (keys.index.w.data == nullptr) return {};
    return write_index_keys(operations(), context, kernels, input, keys.cos_sin, keys.index);
}

// Absorbed queries go through kv_b's key half into the latent space, attend there, and come back
// through the value half.
Expected<Terms> LayerProgram::attend(OpContext& context, const mla::Kernels& kernels,
                                     const Matrix& input, const AttentionCall& call) const {
    const std::int64_t absorbed = call.q_absorbed.rows;
    const auto [latent, rope] = call.key_dims();
    const auto& [low, low_product, norm] = call.low_rank;
    if (low.data != nullptr) {
        operations().product(context, input, low, low_product, Store::assign);
        operations().rms_norm(context, low_product, norm.weight, norm.epsilon, norm.out, {});
    }
    operations().product(context, low.data != nullptr ? norm.out : input, call.q, call.queries,
                         Store::assign);
    if (call.scaling.positions > 0)
        operations().scale_queries(context, call.position, call.scaling, call.queries);
    split_queries(operations(), context, call);
    if (absorbed > 0 && call.index.q.data != nullptr)
        ESPALIER_RETURN_IF_ERROR(choose_keys(operations(), context, kernels,
                                             norm.out.slice(0, absorbed),
                                             call.cos_sin.slice(0, absorbed), call.index));
    if (absorbed > 0) {
        operations().stacked_product(context, call.q_act.slice(0, absorbed), call.nope() + rope,
                                     call.absorb_key, call.q_absorbed, latent + rope);
        ESPALIER_RETURN_IF_ERROR(kernels.absorbed(context, call.absorbed));
        operations().stacked_product(context, call.out_latent, latent, call.up_value,
                                     call.out.slice(0, absorbed), call.up_value.n);
    }
    if (absorbed < call.out.rows)
        ESPALIER_RETURN_IF_ERROR(kernels.decompressed(context, call.decompressed));
    Matrix out = call.out;
    if (call.all_out.data != nullptr) {
        gather_columns(context, call.out, call.all_out);
        out = call.all_out.columns(call.o.segments.first * call.o.segments.inputs, call.o.k);
    }
    return Terms{.segments = sums_of(context, out, call.o, call.sums)};
}

// The terms of a product whose inputs are cut into segments.
SegmentSums LayerProgram::sums_of(OpContext& context, const Matrix& x, const WeightView& w,
                                  const Matrix& sums) const {
    if (ranks_of(context) == nullptr) {
        operations().product(context, x, w, sums, Store::assign);
        return {.sums = sums, .count = 1};
    }
    if (w.segments.count > 0) operations().segment_sums(context, x, w, sums);
    return {.sums = sums, .count = w.segments.count, .whole = w.segments.whole};
}

Expected<Terms> LayerProgram::write_keys_and_attend(OpContext& context, const mla::Kernels& kernels,
                                                    const Matrix& input, const KeysCall& keys,
                                                    const AttentionCall& call) const {
    ESPALIER_RETURN_IF_ERROR(write_keys(context, kernels, input, keys));
    return attend(context, kernels, input, call);
}

Terms LayerProgram::feed_forward(OpContext& context, const Matrix& x,
                                 const FeedForward& network) const {
    if (network.gate_up.n > 0) {
        operations().product(context, x, network.gate_up, network.gate_up_room, Store::assign);
        operations().swiglu(context, network.gate_up_room, network.gated);
    }
    return {.segments = sums_of(context, network.gated, network.down, network.out)};
}

Terms LayerProgram::experts(OpContext& context, const Matrix& x, const RouterCall& router,
                            const FeedForward& experts, const FeedForward& shared) const {
    Terms terms{.experts = {experts.out, router.rule.top_k, router.plan}};
    if (shared.out.data != nullptr) terms.segments = feed_forward(context, x, shared).segments;
    const ExpertPlan& plan = router.plan;
    if (router.deal != nullptr) return dealt_experts(context, x, router, experts, terms);
    operations().expert_product(context, x, plan.source_token, plan.indptr, experts.gate_up,
                                experts.gate_up_room);
    operations().swiglu(context, experts.gate_up_room, experts.gated);
    operations().expert_product(context, experts.gated, nullptr, plan.indptr, experts.down,
                                experts.out);
    return terms;
}

// Pairs of this rank's experts, at their places among all.
Terms LayerProgram::dealt_experts(OpContext& context, const Matrix& x, const RouterCall& router,
                                  const FeedForward& experts, Terms terms) const {
    const ExpertPlan& plan = router.plan;
    const auto rank = static_cast<std::size_t>(rank_of(context));
    const std::int32_t* indptr = plan.indptr + router.deal->first[rank];
    const std::int64_t first = indptr[0], pairs = indptr[experts.gate_up.count] - first;
    terms.experts.deal = router.deal;
    if (pairs == 0) return terms;
    operations().expert_product(context, x, plan.source_token, indptr, experts.gate_up,
                                experts.gate_up_room);
    operations().swiglu(context, experts.gate_up_room.slice(first, pairs),
                        experts.gated.slice(first, pairs));
    operations().expert_product(context, experts.gated, nullptr, indptr, experts.down, experts.out);
    return terms;
}

void LayerProgram::add(OpContext& context, const Terms& terms, const Matrix& residual,
                       const AfterTerms& after) const {
    const auto& [norm, router] = after;
    if (ranks_of(context) != nullptr)
        add_rank_terms(operations(), context, terms, residual);
    else
        operations().add_terms(context, terms, residual);
    if (norm.weight == nullptr) return;
    operations().rms_norm(context, residual, norm.weight, norm.epsilon, norm.out, norm.exact);
    if (router == nullptr) return;
    operations().product(context, norm.exact, router->w, router->logits, Store::assign);
    operations().route(context, router->logits, router->bias, router->rule, router->row_of,
                       router->plan);
    if (router->deal != nullptr)
        deal_pairs(*router->deal, router->rule, residual.rows, router->plan);
}

}  // namespace espalier::ops
