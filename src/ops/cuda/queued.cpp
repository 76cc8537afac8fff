// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/queued.hpp"

namespace espalier::ops::cuda {
namespace {

Ranges outputs_of(const RowNorm& norm) { return {range_of(norm.out), range_of(norm.exact)}; }

// Norms add to the residual and let the next kernel be set up at once.
LaunchNeeds adding(const char* name, const Ranges& terms, const Matrix& residual,
                   const RowNorm& norm) {
    LaunchNeeds needs{.name = name, .reads = terms, .writes = outputs_of(norm)};
    needs.writes.add(range_of(residual));
    return needs;
}

// Memory that route touches, whichever kernel it is a part of. Logits are there or made by the same
// kernel.
void add_route(LaunchNeeds& needs, const RouterCall& router, std::uint32_t* arrived) {
    const std::int64_t tokens = router.logits.rows;
    needs.reads.add(range_of(router.row_of, tokens));
    needs.writes.add(range_of(arrived, 1));
    needs.writes.add(ranges_of(router.plan, tokens * router.rule.top_k, router.rule.experts));
}

}  // namespace

Ranges ranges_of(const ExpertPlan& plan, std::int64_t choices, std::int32_t experts) {
    return {range_of(plan.expert, choices), range_of(plan.weight, choices),
            range_of(plan.indptr, std::int64_t{experts} + 1), range_of(plan.source_token, choices),
            range_of(plan.pair_of, choices)};
}

void queue_rms_norm(OpContext& context, const Matrix& x, const RowNorm& norm) {
    if (x.rows == 0) return;
    context.order.launch({.name = "rms_norm", .reads = {range_of(x)}, .writes = outputs_of(norm)});
    rms_norm(context.stream, x, norm);
}

void queue_reduce_add_norm(OpContext& context, const Matrix& partial, const Matrix& residual,
                           const RowNorm& norm) {
    if (residual.rows == 0) return;
    context.order.launch(adding("reduce_add_norm", {range_of(partial)}, residual, norm));
    reduce_add_norm(context.stream, partial, residual, norm);
}

// The plan of few tokens is read ahead: an expert product in front lets no kernel start before the
// routing has ended.
void queue_combine_add_norm(OpContext& context, const ExpertRows& experts, const Matrix& shared,
                            const Matrix& residual, const RowNorm& norm) {
    if (residual.rows == 0) return;
    constexpr std::int64_t kFewTokens = 8;
    const std::int64_t choices = residual.rows * experts.top_k;
    const Ranges plan{range_of(experts.plan.weight, choices),
                      range_of(experts.plan.pair_of, choices)};
    LaunchNeeds needs =
        adding("combine_add_norm", {range_of(experts.rows), range_of(shared)}, residual, norm);
    (residual.rows <= kFewTokens ? needs.ahead : needs.reads).add(plan);
    const LaunchGrant grant = context.order.launch(needs);
    combine_add_norm(context.stream, experts.rows, experts.top_k, experts.plan, shared, residual,
                     norm, grant);
}

void queue_split_queries(OpContext& context, const Matrix& q, std::int32_t heads,
                         std::int64_t width, const Matrix& cos_sin, const Matrix& q_act,
                         const Matrix& rope_to, std::int64_t rope_step) {
    if (q.rows == 0) return;
    context.order.launch({.name = "split_queries",
                          .reads = {range_of(q), range_of(cos_sin)},
                          .writes = {range_of(q_act), range_of(rope_to)}});
    split_queries(context.stream, q, heads, width, cos_sin, q_act, rope_to, rope_step);
}

void queue_swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out) {
    if (out.rows == 0) return;
    context.order.launch(
        {.name = "swiglu", .reads = {range_of(gate_up)}, .writes = {range_of(out)}});
    swiglu(context.stream, gate_up, out);
}

void queue_route(OpContext& context, const RouterCall& router, std::uint32_t* arrived) {
    if (router.logits.rows == 0) return;
    LaunchNeeds needs{.name = "route", .reads = {range_of(router.logits)}};
    add_route(needs, router, arrived);
    context.order.launch(needs);
    route(context.stream, router.logits, router.bias, router.rule, router.row_of, router.plan,
          arrived);
}

bool queue_norm_route(OpContext& context, const Matrix& partial, const Matrix& residual,
                      const RowNorm& norm, const RouterCall& router, std::uint32_t* arrived) {
    if (!norm_route(context.stream, partial, residual, norm, router, arrived)) return false;
    LaunchNeeds needs = adding("norm_route", {range_of(partial)}, residual, norm);
    needs.writes.add(range_of(router.logits));
    add_route(needs, router, arrived);
    context.order.launch(needs);
    return true;
}

bool queue_router_route(OpContext& context, const Matrix& x, const RouterCall& router,
                        std::uint32_t* arrived) {
    if (!router_route(context.stream, x, router, arrived)) return false;
    LaunchNeeds needs{.name = "router_route",
                      .reads = {range_of(x)},
                      .writes = {range_of(router.logits)},
                      .release = Release::behind_wait};
    add_route(needs, router, arrived);
    context.order.launch(needs);
    return true;
}

}  // namespace espalier::ops::cuda
