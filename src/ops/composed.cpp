// SPDX-License-Identifier: Apache-2.0
// Operations in a row as what they are made of.
#include "ops/ops.hpp"

namespace espalier::ops {

Expected<linalg::Weight> Backend::pack_gated(Device& device, linalg::WeightStack stack) const {
    return pack(device, stack);
}

void Backend::gated_product(OpContext& context, const Matrix& x, const WeightView& w,
                            const Matrix& gate_up, const Matrix& out, Overlap) const {
    product(context, x, w, gate_up, Store::assign);
    swiglu(context, gate_up, out);
}

void Backend::gated_expert_product(OpContext& context, const Matrix& x,
                                   const std::int32_t* source_token, const std::int32_t* indptr,
                                   const WeightView& w, const Matrix& gate_up, const Matrix& out,
                                   Overlap) const {
    expert_product(context, x, source_token, indptr, w, gate_up);
    swiglu(context, gate_up, out);
}

void Backend::overlapping_product(OpContext& context, const Matrix& x, const WeightView& w,
                                  const Matrix& y, Overlap) const {
    product(context, x, w, y, Store::assign);
}

void Backend::overlapping_stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                                          const WeightView& w, const Matrix& y, std::int64_t y_step,
                                          Overlap) const {
    stacked_product(context, x, x_step, w, y, y_step);
}

void Backend::product_pair(OpContext& context, const Matrix& x, const WeightView& w,
                           const Matrix& y, const BesideProduct& beside) const {
    product(context, x, w, y, Store::assign);
    if (beside.y.data != nullptr) product(context, x, beside.w, beside.y, Store::assign);
}

bool Backend::query_product(OpContext& context, const Matrix& x, const WeightView& w,
                            const QueryPlaces& to, const BesideProduct& beside) const {
    product_pair(context, x, w, to.q, beside);
    const std::int64_t apart = to.rope_to.rows, rest = to.q.rows - apart;
    if (apart > 0)
        split_queries(context, to.q.slice(0, apart), to.heads, to.width, to.cos_sin.slice(0, apart),
                      to.q_act.slice(0, apart), to.rope_to, to.rope_step);
    const Matrix act = to.q_act.slice(apart, rest);
    if (rest > 0)
        split_queries(context, to.q.slice(apart, rest), to.heads, to.width,
                      to.cos_sin.slice(apart, rest), act,
                      act.columns(to.width, act.cols - to.width), to.q.cols / to.heads);
    return false;
}

void Backend::feed_forward(OpContext& context, const Matrix& x, const FeedForward& network,
                           Overlap overlap, Overlap down_overlap) const {
    gated_product(context, x, network.gate_up, network.gate_up_room, network.gated, overlap);
    overlapping_product(context, network.gated, network.down, network.out, down_overlap);
}

void Backend::expert_feed_forward(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                                  const FeedForward& experts, Overlap overlap) const {
    gated_expert_product(context, x, plan.source_token, plan.indptr, experts.gate_up,
                         experts.gate_up_room, experts.gated, overlap);
    expert_product(context, experts.gated, nullptr, plan.indptr, experts.down, experts.out);
}

// The shared expert's first product runs beside the routing where x allows it, and the experts
// begin beside its second: no kernel behind that one starts before the routing has ended.
void Backend::expert_layer(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                           const FeedForward& experts, const FeedForward& shared,
                           Overlap beside_router) const {
    const bool has_shared = shared.out.data != nullptr;
    if (has_shared) feed_forward(context, x, shared, beside_router, {.holds_next = true});
    expert_feed_forward(context, x, plan, experts, {.inputs_settled = has_shared});
}

void Backend::reduce_add_norm(OpContext& context, const Matrix& partial, const Matrix& residual,
                              const RowNorm& norm) const {
    reduce_add(context, partial, residual);
    rms_norm(context, residual, norm.weight, norm.epsilon, norm.out, norm.exact);
}

Overlap Backend::reduce_add_norm_route(OpContext& context, const Matrix& partial,
                                       const Matrix& residual, const RowNorm& norm,
                                       const RouterCall& router) const {
    reduce_add_norm(context, partial, residual, norm);
    // What comes behind the product starts only when the norm has been written.
    overlapping_product(context, norm.exact, router.w, router.logits, {.holds_next = true});
    route(context, router.logits, router.bias, router.rule, router.row_of, router.plan);
    return {.inputs_settled = true};
}

void Backend::combine_add_norm(OpContext& context, const Matrix& expert_out, const RouterRule& rule,
                               const ExpertPlan& plan, const Matrix& shared, const Matrix& partial,
                               const Matrix& residual, const RowNorm& norm) const {
    combine_experts(context, expert_out, rule, plan, shared, partial);
    reduce_add_norm(context, partial, residual, norm);
}

void Backend::split_latent(OpContext& context, const Matrix& kv_a, const RowNorm& norm,
                           const Matrix& cos_sin, const Matrix& key_rope) const {
    const std::int64_t width = norm.out.cols;
    rms_norm(context, kv_a.columns(0, width), norm.weight, norm.epsilon, norm.out, norm.exact);
    rope(context, kv_a.columns(width, kv_a.cols - width), 0, 1, cos_sin, key_rope, 0);
}

void Backend::split_queries(OpContext& context, const Matrix& q, std::int32_t heads,
                            std::int64_t width, const Matrix& cos_sin, const Matrix& q_act,
                            const Matrix& rope_to, std::int64_t rope_step) const {
    const std::int64_t step = q.cols / heads;
    convert(context, q, step, heads, width, q_act, step);
    rope(context, q.columns(width, q.cols - width), step, heads, cos_sin, rope_to, rope_step);
}

}  // namespace espalier::ops
