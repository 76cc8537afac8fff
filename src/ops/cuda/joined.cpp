// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/joined.hpp"

#include "linalg/cuda/product.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/scratch.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops::cuda {
namespace {

using linalg::WeightLayout;

constexpr std::int64_t kRopeWidth = 64;

// Room for gate and up, which a fused product uses otherwise.
linalg::cuda::Scratch memory_of(const Matrix& gate_up) {
    return {gate_up.data, static_cast<std::size_t>(gate_up.rows * gate_up.stride) * sizeof(float)};
}

void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
             Overlap overlap = {}) {
    linalg::cuda::product(context.stream, x, w, y, Store::assign, overlap, scratch_of(context));
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
            cuda::split_queries(context.stream, to.q.slice(first, count), to.heads, to.width,
                                to.cos_sin.slice(first, count), to.q_act.slice(first, count),
                                rope_to, step);
    };
    split(0, apart, to.rope_to, to.rope_step);
    const Matrix act = to.q_act.slice(apart, rest);
    split(apart, rest, act.columns(to.width, act.cols - to.width), to.q.cols / to.heads);
}

// For many tokens the gated product writes its result in the layout that the down product reads.
void expert_feed_forward(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                         const FeedForward& experts, Overlap overlap) {
    if (linalg::cuda::expert_feed_forward(context.stream, x, plan.source_token, plan.indptr,
                                          experts.gate_up, experts.down, experts.gated, experts.out,
                                          {memory_of(experts.gate_up_room), scratch_of(context)}))
        return;
    gated_expert_product(context, x, plan.source_token, plan.indptr, experts.gate_up,
                         experts.gate_up_room, experts.gated, overlap);
    linalg::cuda::expert_product(context.stream, experts.gated, nullptr, plan.indptr, experts.down,
                                 experts.out, {}, scratch_of(context));
}

// Each product of the shared expert in front of the experts' in one launch, for few tokens. False:
// nothing was queued.
bool joint_expert_layer(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                        const FeedForward& experts, const FeedForward& shared) {
    if (experts.gate_up.layout != WeightLayout::gated_fragments || shared.out.data == nullptr ||
        !linalg::cuda::joint_expert_product(context.stream, {x, shared.gate_up, shared.gated}, x,
                                            plan.source_token, plan.indptr, experts.gate_up,
                                            experts.gated))
        return false;
    if (linalg::cuda::joint_expert_product(context.stream, {shared.gated, shared.down, shared.out},
                                           experts.gated, nullptr, plan.indptr, experts.down,
                                           experts.out))
        return true;
    product(context, shared.gated, shared.down, shared.out);
    linalg::cuda::expert_product(context.stream, experts.gated, nullptr, plan.indptr, experts.down,
                                 experts.out, {}, scratch_of(context));
    return true;
}

}  // namespace

void gated_product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& gate_up,
                   const Matrix& out, Overlap overlap) {
    if (w.layout == WeightLayout::gated_fragments)
        return linalg::cuda::gated_product(context.stream, x, w, out, overlap, memory_of(gate_up));
    product(context, x, w, gate_up, overlap);
    swiglu(context.stream, gate_up, out);
}

void gated_expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                          const std::int32_t* indptr, const WeightView& w, const Matrix& gate_up,
                          const Matrix& out, Overlap overlap) {
    if (w.layout == WeightLayout::gated_fragments)
        return linalg::cuda::gated_expert_product(context.stream, x, source_token, indptr, w, out,
                                                  overlap, memory_of(gate_up));
    linalg::cuda::expert_product(context.stream, x, source_token, indptr, w, gate_up, overlap);
    swiglu(context.stream, gate_up, out);
}

void product_pair(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                  const BesideProduct& beside) {
    if (linalg::cuda::joint_product(context.stream, x, w, y, {beside.w, beside.y}, nullptr,
                                    scratch_of(context)))
        return;
    product(context, x, w, y);
    if (beside.y.data != nullptr) product(context, x, beside.w, beside.y);
}

bool query_product(OpContext& context, const Matrix& x, const WeightView& w, const QueryPlaces& to,
                   const BesideProduct& beside) {
    check_queries(to);
    const linalg::cuda::Queries queries{to.width, to.cos_sin, to.q_act, to.rope_to, to.rope_step};
    if (linalg::cuda::joint_product(context.stream, x, w, to.q, {beside.w, beside.y}, &queries,
                                    scratch_of(context)))
        return true;
    product_pair(context, x, w, to.q, beside);
    split_queries(context, to);
    return false;
}

void feed_forward(OpContext& context, const Matrix& x, const FeedForward& network, Overlap overlap,
                  Overlap down) {
    if (linalg::cuda::feed_forward(context.stream, x, network.gate_up, network.down, network.gated,
                                   network.out,
                                   {memory_of(network.gate_up_room), scratch_of(context)}))
        return;
    gated_product(context, x, network.gate_up, network.gate_up_room, network.gated, overlap);
    product(context, network.gated, network.down, network.out, down);
}

// The shared expert's first product runs beside the routing where x allows it, and the experts
// begin beside its second: no kernel behind that one starts before the routing has ended.
void expert_layer(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                  const FeedForward& experts, const FeedForward& shared, Overlap beside_router) {
    if (joint_expert_layer(context, x, plan, experts, shared)) return;
    const bool has_shared = shared.out.data != nullptr;
    if (has_shared) feed_forward(context, x, shared, beside_router, {.holds_next = true});
    expert_feed_forward(context, x, plan, experts, {.inputs_settled = has_shared});
}

Overlap sum_norm_route(OpContext& context, const Matrix& partial, const Matrix& residual,
                       const RowNorm& norm, const RouterCall& router, std::uint32_t* arrived) {
    check_rule(router.rule, router.logits);
    check_size(router.logits.rows, residual.rows, "rows of router logits");
    const WeightView& w = router.w;
    const bool plain = w.layout == WeightLayout::fragments && w.count == 1 &&
                       w.format.code == WeightCode::f32 && w.n == router.rule.experts &&
                       w.k == residual.cols;
    if (plain && norm_route(context.stream, partial, residual, norm, router, arrived))
        return {};  // the norm is written by the kernel in front itself
    reduce_add_norm(context.stream, partial, residual, norm);
    if (!plain || !router_route(context.stream, norm.exact, router, arrived)) {
        // The kernel behind the product starts only when the norm has been written.
        product(context, norm.exact, w, router.logits, {.holds_next = true});
        route(context.stream, router.logits, router.bias, router.rule, router.row_of, router.plan,
              arrived);
    }
    return {.inputs_settled = true};
}

}  // namespace espalier::ops::cuda
