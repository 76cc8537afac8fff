// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/joined.hpp"

#include "linalg/cuda/product.hpp"
#include "ops/cuda/queued.hpp"
#include "ops/cuda/scratch.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops::cuda {
namespace {

using linalg::WeightLayout;
using linalg::cuda::Wishes;

constexpr std::int64_t kRopeWidth = 64;
const Wishes kEarly{.early = true};

// Room for gate and up, which a fused product uses otherwise.
linalg::cuda::Scratch memory_of(const Matrix& gate_up) {
    return {gate_up.data, static_cast<std::size_t>(gate_up.rows * gate_up.stride) * sizeof(float)};
}

void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
             const Wishes& wishes = {}) {
    linalg::cuda::product(context, x, w, y, Store::assign, wishes, scratch_of(context));
}

void check_queries(const QueryPlaces& to) {
    check_f32(to.q, "queries");
    check_activation(to.q_act, "convert to");
    check_activation(to.rope_to, "rope to");
    check_size(to.q.cols, to.heads * (to.width + kRopeWidth), "queries");
    check_heads(to.q_act, to.width + kRopeWidth, to.heads, to.width, "convert to");
    check_heads(to.rope_to, to.rope_step, to.heads, kRopeWidth, "rope to");
    check_f32(to.cos_sin, "rope angles");
    check_size(to.cos_sin.cols, kRopeWidth, "rope angles");
}

void split_queries(OpContext& context, const QueryPlaces& to) {
    const std::int64_t apart = to.rope_to.rows, rest = to.q.rows - apart;
    const auto split = [&](std::int64_t first, std::int64_t count, const Matrix& rope_to,
                           std::int64_t step) {
        if (count > 0)
            queue_split_queries(context, to.q.slice(first, count), to.heads, to.width,
                                to.cos_sin.slice(first, count), to.q_act.slice(first, count),
                                rope_to, step);
    };
    split(0, apart, to.rope_to, to.rope_step);
    const Matrix act = to.q_act.slice(apart, rest);
    split(apart, rest, act.columns(to.width, act.cols - to.width), to.q.cols / to.heads);
}

// For many tokens the gated product writes its result in the layout that the down product reads.
void expert_feed_forward(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                         const FeedForward& experts) {
    if (linalg::cuda::expert_feed_forward(context, x, plan.source_token, plan.indptr,
                                          experts.gate_up, experts.down, experts.gated, experts.out,
                                          {memory_of(experts.gate_up_room), scratch_of(context)}))
        return;
    gated_expert_product(context, x, plan.source_token, plan.indptr, experts.gate_up,
                         experts.gate_up_room, experts.gated);
    linalg::cuda::expert_product(context, experts.gated, nullptr, plan.indptr, experts.down,
                                 experts.out, {}, scratch_of(context));
}

// Each product of the shared expert in front of the experts' in one launch, for few tokens. False:
// nothing was queued.
bool joint_expert_layer(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                        const FeedForward& experts, const FeedForward& shared) {
    if (experts.gate_up.layout != WeightLayout::gated_fragments || shared.out.data == nullptr ||
        !linalg::cuda::joint_expert_product(context, {x, shared.gate_up, shared.gated}, x,
                                            plan.source_token, plan.indptr, experts.gate_up,
                                            experts.gated))
        return false;
    if (linalg::cuda::joint_expert_product(context, {shared.gated, shared.down, shared.out},
                                           experts.gated, nullptr, plan.indptr, experts.down,
                                           experts.out))
        return true;
    product(context, shared.gated, shared.down, shared.out);
    linalg::cuda::expert_product(context, experts.gated, nullptr, plan.indptr, experts.down,
                                 experts.out, {}, scratch_of(context));
    return true;
}

}  // namespace

void gated_product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& gate_up,
                   const Matrix& out) {
    if (w.layout == WeightLayout::gated_fragments)
        return linalg::cuda::gated_product(context, x, w, out, kEarly, memory_of(gate_up));
    product(context, x, w, gate_up, kEarly);
    queue_swiglu(context, gate_up, out);
}

void gated_expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                          const std::int32_t* indptr, const WeightView& w, const Matrix& gate_up,
                          const Matrix& out) {
    if (w.layout == WeightLayout::gated_fragments)
        return linalg::cuda::gated_expert_product(context, x, source_token, indptr, w, out, kEarly,
                                                  memory_of(gate_up));
    linalg::cuda::expert_product(context, x, source_token, indptr, w, gate_up, kEarly);
    queue_swiglu(context, gate_up, out);
}

void product_pair(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                  const BesideProduct& beside) {
    if (linalg::cuda::joint_product(context, x, w, y, {beside.w, beside.y}, nullptr,
                                    scratch_of(context)))
        return;
    product(context, x, w, y);
    if (beside.y.data != nullptr) product(context, x, beside.w, beside.y);
}

Ranges query_product(OpContext& context, const Matrix& x, const WeightView& w,
                     const QueryPlaces& to, const BesideProduct& beside, const Ranges& holds_back) {
    check_queries(to);
    const linalg::cuda::Queries queries{to.width, to.cos_sin, to.q_act, to.rope_to, to.rope_step};
    if (linalg::cuda::joint_product(context, x, w, to.q, {beside.w, beside.y}, &queries,
                                    scratch_of(context), holds_back))
        return {};
    product_pair(context, x, w, to.q, beside);
    split_queries(context, to);
    return {range_of(to.q_act), range_of(to.rope_to)};
}

void feed_forward(OpContext& context, const Matrix& x, const FeedForward& network,
                  const Ranges& holds_back) {
    if (linalg::cuda::feed_forward(context, x, network.gate_up, network.down, network.gated,
                                   network.out,
                                   {memory_of(network.gate_up_room), scratch_of(context)}))
        return;
    gated_product(context, x, network.gate_up, network.gate_up_room, network.gated);
    product(context, network.gated, network.down, network.out, {.holds_back = holds_back});
}

// The shared expert's first product runs beside the routing where x allows it, and the experts
// begin beside its second, which holds back what they read.
void expert_layer(OpContext& context, const Matrix& x, const RouterCall& router,
                  const FeedForward& experts, const FeedForward& shared) {
    const ExpertPlan& plan = router.plan;
    if (joint_expert_layer(context, x, plan, experts, shared)) return;
    if (shared.out.data != nullptr)
        feed_forward(context, x, shared,
                     {range_of(x), range_of(plan.indptr, std::int64_t{router.rule.experts} + 1),
                      range_of(plan.source_token, x.rows * router.rule.top_k)});
    expert_feed_forward(context, x, plan, experts);
}

void sum_norm_route(OpContext& context, const Matrix& partial, const Matrix& residual,
                    const RowNorm& norm, const RouterCall& router, std::uint32_t* arrived) {
    check_rule(router.rule, router.logits);
    check_size(router.logits.rows, residual.rows, "rows of router logits");
    const WeightView& w = router.w;
    const bool plain = w.layout == WeightLayout::fragments && w.count == 1 &&
                       w.format.code == WeightCode::f32 && w.n == router.rule.experts &&
                       w.k == residual.cols;
    if (plain && queue_norm_route(context, partial, residual, norm, router, arrived)) return;
    queue_reduce_add_norm(context, partial, residual, norm);
    if (plain && queue_router_route(context, norm.exact, router, arrived)) return;
    // A shared expert behind the route reads the norm early.
    product(context, norm.exact, w, router.logits, {.holds_back = {range_of(norm.out)}});
    queue_route(context, router, arrived);
}

}  // namespace espalier::ops::cuda
