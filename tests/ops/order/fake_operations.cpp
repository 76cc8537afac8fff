// SPDX-License-Identifier: Apache-2.0
// In place of the CUDA backend's other kernels.
#include <cmath>

#include "base/cpu_device.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/ops.hpp"
#include "ops/order/fake_gpu.hpp"

namespace espalier::ops::cuda {
namespace {

using order_test::Kernel;
using order_test::queue;

OpContext& plain_context() {
    static CpuDevice host(1);
    static Arena none{Buffer()};
    static OpContext context{host, none};
    return context;
}
const Backend& plain() {
    static const std::unique_ptr<Backend> backend = make_reference_backend();
    return *backend;
}

float& f32(const Matrix& m, std::int64_t row, std::int64_t col) {
    return reinterpret_cast<float*>(m.data)[row * m.stride + col];
}

void norm_rows(const Matrix& x, const RowNorm& norm) {
    plain().rms_norm(plain_context(), x, norm.weight, norm.epsilon, norm.out, norm.exact);
}

void add(const Matrix& partial, const Matrix& residual) {
    for (std::int64_t t = 0; t < residual.rows; ++t)
        for (std::int64_t d = 0; d < residual.cols; ++d) f32(residual, t, d) += f32(partial, t, d);
}

void route_rows(const Matrix& logits, const float* bias, const RouterRule& rule,
                const std::int32_t* row_of, const ExpertPlan& plan, std::uint32_t* arrived) {
    *arrived += 1;
    plain().route(plain_context(), logits, bias, rule, row_of, plan);
    *arrived -= 1;
}

void multiply_router(const Matrix& x, const RouterCall& router) {
    const auto* w = reinterpret_cast<const float*>(router.w.data);
    for (std::int64_t t = 0; t < x.rows; ++t)
        for (std::int64_t e = 0; e < router.logits.cols; ++e) {
            float sum = 0.0f;
            for (std::int64_t d = 0; d < x.cols; ++d) sum += f32(x, t, d) * w[e * x.cols + d];
            f32(router.logits, t, e) = sum;
        }
}

void unexpected(const char* what) { CHECK(false, "{} stands in no layer", what); }

}  // namespace

void rms_norm(Stream, const Matrix& x, const RowNorm& norm) {
    queue({.name = "rms_norm", .body = [=] { norm_rows(x, norm); }});
}

void reduce_add_norm(Stream, const Matrix& partial, const Matrix& residual, const RowNorm& norm) {
    queue({.name = "reduce_add_norm", .body = [=] {
               add(partial, residual);
               norm_rows(residual, norm);
           }});
}

// The plan as it was when it was read.
void combine_add_norm(Stream, const Matrix& expert_out, std::int32_t top_k, const ExpertPlan& plan,
                      const Matrix& shared, const Matrix& residual, const RowNorm& norm,
                      const LaunchGrant& grant) {
    struct Plan {
        std::vector<float> weight;
        std::vector<std::int32_t> pair;
    };
    const auto read = std::make_shared<Plan>();
    const std::int64_t choices = residual.rows * top_k;
    const auto load = [=] {
        read->weight.assign(plan.weight, plan.weight + choices);
        read->pair.assign(plan.pair_of, plan.pair_of + choices);
    };
    Kernel kernel{.name = "combine_add_norm", .grant = grant};
    if (grant.ahead) kernel.ahead = load;
    kernel.body = [=] {
        if (!grant.ahead) load();
        for (std::int64_t t = 0; t < residual.rows; ++t)
            for (std::int64_t d = 0; d < residual.cols; ++d) {
                float sum = 0.0f;
                for (std::int64_t i = t * top_k; i < (t + 1) * top_k; ++i) {
                    const std::int32_t pair = read->pair[static_cast<std::size_t>(i)];
                    if (pair >= 0 && pair < expert_out.rows)
                        sum += read->weight[static_cast<std::size_t>(i)] * f32(expert_out, pair, d);
                }
                if (shared.data != nullptr) sum += f32(shared, t, d);
                f32(residual, t, d) += sum;
            }
        norm_rows(residual, norm);
    };
    queue(std::move(kernel));
}

void split_queries(Stream, const Matrix& q, std::int32_t heads, std::int64_t width,
                   const Matrix& cos_sin, const Matrix& q_act, const Matrix& rope_to,
                   std::int64_t rope_step) {
    queue({.name = "split_queries", .body = [=] {
               const std::int64_t step = width + 64;
               plain().convert(plain_context(), q, step, heads, width, q_act, step);
               plain().rope(plain_context(), q.columns(width, q.cols - width), step, heads, cos_sin,
                            rope_to, rope_step);
           }});
}

void swiglu(Stream, const Matrix& gate_up, const Matrix& out) {
    queue({.name = "swiglu", .body = [=] { plain().swiglu(plain_context(), gate_up, out); }});
}

void route(Stream, const Matrix& logits, const float* bias, const RouterRule& rule,
           const std::int32_t* row_of, const ExpertPlan& plan, std::uint32_t* arrived) {
    queue(
        {.name = "route", .body = [=] { route_rows(logits, bias, rule, row_of, plan, arrived); }});
}

// Limits of the kernels: tokens, choices and columns that they have room for.
bool norm_route(Stream, const Matrix& partial, const Matrix& residual, const RowNorm& norm,
                const RouterCall& router, std::uint32_t* arrived) {
    if (residual.rows > 8 || residual.rows * router.rule.top_k > 256 ||
        residual.rows * residual.cols * 4 > 60 * 1024 || router.rule.experts > 512)
        return false;
    queue({.name = "norm_route", .body = [=] {
               add(partial, residual);
               norm_rows(residual, norm);
               Matrix exact = norm.exact;
               multiply_router(exact, router);
               route_rows(router.logits, router.bias, router.rule, router.row_of, router.plan,
                          arrived);
           }});
    return true;
}

bool router_route(Stream, const Matrix& x, const RouterCall& router, std::uint32_t* arrived) {
    if (x.rows > 16 || x.rows * router.rule.top_k > 256 || router.rule.experts > 512 ||
        x.rows * x.cols > 64 * 1024)
        return false;
    queue({.name = "router_route",
           .body =
               [=] {
                   multiply_router(x, router);
                   route_rows(router.logits, router.bias, router.rule, router.row_of, router.plan,
                              arrived);
               },
           .release = Release::behind_wait});
    return true;
}

void embed(Stream, const std::int32_t*, const EmbeddingTable&, const Matrix&) {
    unexpected("embed");
}
void rope_angles(Stream, const std::int32_t*, std::int64_t, const RopeRule&, const Matrix&) {
    unexpected("rope_angles");
}
void rope(Stream, const Matrix&, std::int64_t, std::int32_t, const Matrix&, const Matrix&,
          std::int64_t) {
    unexpected("rope");
}
void convert(Stream, const Matrix&, std::int64_t, std::int32_t, std::int64_t, const Matrix&,
             std::int64_t) {
    unexpected("convert");
}
void add_terms(Stream, const Terms&, const Matrix&) { unexpected("add_terms"); }
void gather_rows(Stream, const Matrix&, const std::int32_t*, const Matrix&) {
    unexpected("gather_rows");
}
void copy_rows(Stream, const Matrix&, const RowPairs&, const Matrix&) { unexpected("copy_rows"); }
void sample_nodes(Stream, const Matrix&, const SamplingBatch&, float*) {
    unexpected("sample_nodes");
}
void draft_children(Stream, const Matrix&, const SamplingBatch&, const DraftVocabulary&,
                    const DraftRule&, DraftChild*, float*) {
    unexpected("draft_children");
}
void grow_trees(Stream, const DraftGrowth&, const FoundChildren&) { unexpected("grow_trees"); }
void lay_frontiers(Stream, const DraftGrowth&, const FrontierBatch&, const FrontierDraws&) {
    unexpected("lay_frontiers");
}

}  // namespace espalier::ops::cuda
