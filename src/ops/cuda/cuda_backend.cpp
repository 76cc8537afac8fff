// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: checks an operation's arguments on the host and launches its kernels. What lies
// in device memory (tokens, indices) was checked before it went there.
#include "ops/cuda_backend.hpp"

#include <algorithm>
#include <memory>

#include "linalg/cuda/product.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

constexpr std::int64_t kRopeWidth = 64;

class CudaBackend final : public Backend {
  public:
    // arrived: a word that is 0, where a kernel's blocks count. The operations of a backend are
    // queued on one stream, so one kernel does at a time.
    explicit CudaBackend(Buffer arrived) : arrived_(std::move(arrived)) {}

    std::string name() const override { return "cuda sm_90a"; }

    Expected<linalg::Weight> pack(Device& device, linalg::WeightStack stack) const override {
        CHECK(device.kind() == DeviceKind::cuda, "weights packed for the GPU on {}", device.name());
        return linalg::cuda::pack(device, stack);
    }

    void embed(OpContext& context, const std::int32_t* tokens, const EmbeddingTable& table,
               const Matrix& out) const override {
        check_f32(out, "embeddings");
        check_size(out.cols, table.hidden, "embedding width");
        cuda::embed(context.stream, tokens, table, out);
    }

    void rms_norm(OpContext& context, const Matrix& x, const float* weight, float epsilon,
                  const Matrix& out, const Matrix& exact) const override {
        const RowNorm norm{weight, epsilon, out, exact};
        check_norm(x, norm);
        cuda::rms_norm(context.stream, x, norm);
    }

    void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                 Store store) const override {
        linalg::cuda::product(context.stream, x, w, y, store, {}, scratch_of(context));
    }
    void stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                         const WeightView& w, const Matrix& y, std::int64_t y_step) const override {
        linalg::cuda::stacked_product(context.stream, x, x_step, w, y, y_step);
    }
    void expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                        const std::int32_t* indptr, const WeightView& w,
                        const Matrix& y) const override {
        linalg::cuda::expert_product(context.stream, x, source_token, indptr, w, y, {},
                                     scratch_of(context));
    }

    void rope_angles(OpContext& context, const std::int32_t* position, std::int64_t tokens,
                     const RopeRule& rule, const Matrix& cos_sin) const override {
        check_f32(cos_sin, "rope angles");
        check_size(cos_sin.cols, kRopeWidth, "rope angles");
        cuda::rope_angles(context.stream, position, tokens, rule, cos_sin);
    }

    void rope(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
              const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) const override {
        check_f32(from, "rope from");
        check_activation(to, "rope to");
        check_heads(from, from_step, heads, kRopeWidth, "rope from");
        check_heads(to, to_step, heads, kRopeWidth, "rope to");
        cuda::rope(context.stream, from, from_step, heads, cos_sin, to, to_step);
    }

    void convert(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
                 std::int64_t width, const Matrix& to, std::int64_t to_step) const override {
        check_f32(from, "convert from");
        check_activation(to, "convert to");
        check_heads(from, from_step, heads, width, "convert from");
        check_heads(to, to_step, heads, width, "convert to");
        cuda::convert(context.stream, from, from_step, heads, width, to, to_step);
    }

    void swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out) const override {
        check_f32(gate_up, "gate and up");
        check_activation(out, "swiglu output");
        check_size(gate_up.cols, 2 * out.cols, "gate and up");
        cuda::swiglu(context.stream, gate_up, out);
    }

    void route(OpContext& context, const Matrix& logits, const float* bias, const RouterRule& rule,
               const std::int32_t* row_of, const ExpertPlan& plan) const override {
        check_rule(rule, logits);
        cuda::route(context.stream, logits, bias, rule, row_of, plan, arrived_.as<std::uint32_t>());
    }

    void combine_experts(OpContext& context, const Matrix& expert_out, const RouterRule& rule,
                         const ExpertPlan& plan, const Matrix& shared,
                         const Matrix& out) const override {
        check_f32(expert_out, "expert outputs");
        check_f32(out, "sum of experts");
        check_size(expert_out.cols, out.cols, "expert outputs");
        cuda::combine_experts(context.stream, expert_out, rule.top_k, plan, shared, out);
    }

    void reduce_add(OpContext& context, const Matrix& partial,
                    const Matrix& residual) const override {
        check_f32(partial, "partial sums");
        check_f32(residual, "residual");
        check_size(partial.rows, residual.rows, "rows of partial sums");
        check_size(partial.cols, residual.cols, "columns of partial sums");
        cuda::reduce_add(context.stream, partial, residual);
    }

    Expected<linalg::Weight> pack_gated(Device& device, linalg::WeightStack stack) const override {
        CHECK(device.kind() == DeviceKind::cuda, "weights packed for the GPU on {}", device.name());
        return linalg::cuda::pack_gated(device, stack);
    }
    void gated_product(OpContext& context, const Matrix& x, const WeightView& w,
                       const Matrix& gate_up, const Matrix& out, Overlap overlap) const override {
        if (w.layout == linalg::WeightLayout::gated_fragments)
            return linalg::cuda::gated_product(context.stream, x, w, out, overlap,
                                               memory_of(gate_up));
        overlapping_product(context, x, w, gate_up, overlap);
        swiglu(context, gate_up, out);
    }
    void gated_expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                              const std::int32_t* indptr, const WeightView& w,
                              const Matrix& gate_up, const Matrix& out,
                              Overlap overlap) const override {
        if (w.layout == linalg::WeightLayout::gated_fragments)
            return linalg::cuda::gated_expert_product(context.stream, x, source_token, indptr, w,
                                                      out, overlap, memory_of(gate_up));
        linalg::cuda::expert_product(context.stream, x, source_token, indptr, w, gate_up, overlap);
        swiglu(context, gate_up, out);
    }
    void overlapping_product(OpContext& context, const Matrix& x, const WeightView& w,
                             const Matrix& y, Overlap overlap) const override {
        linalg::cuda::product(context.stream, x, w, y, Store::assign, overlap, scratch_of(context));
    }
    void overlapping_stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                                     const WeightView& w, const Matrix& y, std::int64_t y_step,
                                     Overlap overlap) const override {
        linalg::cuda::stacked_product(context.stream, x, x_step, w, y, y_step, overlap);
    }
    void product_pair(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                      const BesideProduct& beside) const override {
        if (!linalg::cuda::joint_product(context.stream, x, w, y, {beside.w, beside.y}, nullptr,
                                         scratch_of(context)))
            Backend::product_pair(context, x, w, y, beside);
    }
    bool query_product(OpContext& context, const Matrix& x, const WeightView& w,
                       const QueryPlaces& to, const BesideProduct& beside) const override {
        check_queries(to.q, to.heads, to.width, to.q_act, to.rope_to, to.rope_step);
        check_f32(to.cos_sin, "rope angles");
        check_size(to.cos_sin.cols, kRopeWidth, "rope angles");
        const linalg::cuda::Queries queries{to.width, to.cos_sin, to.q_act, to.rope_to,
                                            to.rope_step};
        if (!linalg::cuda::joint_product(context.stream, x, w, to.q, {beside.w, beside.y}, &queries,
                                         scratch_of(context)))
            return Backend::query_product(context, x, w, to, beside);
        return true;
    }

    // Of many tokens what a gated product gives goes straight to where the product behind it reads
    // it.
    void feed_forward(OpContext& context, const Matrix& x, const FeedForward& network,
                      Overlap overlap, Overlap down_overlap) const override {
        if (!linalg::cuda::feed_forward(context.stream, x, network.gate_up, network.down,
                                        network.gated, network.out,
                                        {memory_of(network.gate_up_room), scratch_of(context)}))
            Backend::feed_forward(context, x, network, overlap, down_overlap);
    }
    void expert_feed_forward(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                             const FeedForward& experts, Overlap overlap) const override {
        if (!linalg::cuda::expert_feed_forward(
                context.stream, x, plan.source_token, plan.indptr, experts.gate_up, experts.down,
                experts.gated, experts.out, {memory_of(experts.gate_up_room), scratch_of(context)}))
            Backend::expert_feed_forward(context, x, plan, experts, overlap);
    }

    // Of few tokens each product of the shared expert is in front of the experts' in one launch.
    void expert_layer(OpContext& context, const Matrix& x, const ExpertPlan& plan,
                      const FeedForward& experts, const FeedForward& shared,
                      Overlap beside_router) const override {
        const bool gated = experts.gate_up.layout == linalg::WeightLayout::gated_fragments;
        if (!gated || shared.out.data == nullptr ||
            !linalg::cuda::joint_expert_product(context.stream, {x, shared.gate_up, shared.gated},
                                                x, plan.source_token, plan.indptr, experts.gate_up,
                                                experts.gated))
            return Backend::expert_layer(context, x, plan, experts, shared, beside_router);
        if (linalg::cuda::joint_expert_product(
                context.stream, {shared.gated, shared.down, shared.out}, experts.gated, nullptr,
                plan.indptr, experts.down, experts.out))
            return;
        overlapping_product(context, shared.gated, shared.down, shared.out, {});
        expert_product(context, experts.gated, nullptr, plan.indptr, experts.down, experts.out);
    }

    void reduce_add_norm(OpContext& context, const Matrix& partial, const Matrix& residual,
                         const RowNorm& norm) const override {
        check_f32(partial, "partial sums");
        check_size(partial.rows, residual.rows, "rows of partial sums");
        check_size(partial.cols, residual.cols, "columns of partial sums");
        check_norm(residual, norm);
        cuda::reduce_add_norm(context.stream, partial, residual, norm);
    }

    Overlap reduce_add_norm_route(OpContext& context, const Matrix& partial, const Matrix& residual,
                                  const RowNorm& norm, const RouterCall& router) const override {
        check_f32(partial, "partial sums");
        check_size(partial.rows, residual.rows, "rows of partial sums");
        check_size(partial.cols, residual.cols, "columns of partial sums");
        check_norm(residual, norm);
        check_rule(router.rule, router.logits);
        check_size(router.logits.rows, residual.rows, "rows of router logits");
        const WeightView& w = router.w;
        const bool plain = w.layout == linalg::WeightLayout::fragments && w.count == 1 &&
                           w.format.code == WeightCode::f32 && w.n == router.rule.experts &&
                           w.k == residual.cols;
        auto* arrived = arrived_.as<std::uint32_t>();
        if (plain && cuda::norm_route(context.stream, partial, residual, norm, router, arrived))
            return {};  // the norm is written by the kernel in front itself
        cuda::reduce_add_norm(context.stream, partial, residual, norm);
        if (!plain || !cuda::router_route(context.stream, norm.exact, router, arrived)) {
            overlapping_product(context, norm.exact, w, router.logits, {.holds_next = true});
            route(context, router.logits, router.bias, router.rule, router.row_of, router.plan);
        }
        return {.inputs_settled = true};
    }

    void combine_add_norm(OpContext& context, const Matrix& expert_out, const RouterRule& rule,
                          const ExpertPlan& plan, const Matrix& shared, const Matrix&,
                          const Matrix& residual, const RowNorm& norm) const override {
        check_f32(expert_out, "expert outputs");
        check_size(expert_out.cols, residual.cols, "expert outputs");
        check_norm(residual, norm);
        cuda::combine_add_norm(context.stream, expert_out, rule.top_k, plan, shared, residual,
                               norm);
    }

    void split_queries(OpContext& context, const Matrix& q, std::int32_t heads, std::int64_t width,
                       const Matrix& cos_sin, const Matrix& q_act, const Matrix& rope_to,
                       std::int64_t rope_step) const override {
        check_queries(q, heads, width, q_act, rope_to, rope_step);
        cuda::split_queries(context.stream, q, heads, width, cos_sin, q_act, rope_to, rope_step);
    }

    void gather_rows(OpContext& context, const Matrix& x, const std::int32_t* index,
                     const Matrix& out) const override {
        CHECK(x.dtype == out.dtype, "gather from {} to {}", name_of(x.dtype), name_of(out.dtype));
        check_activation(out, "gathered rows");
        cuda::gather_rows(context.stream, x, index, out);
    }

    void copy_rows(OpContext& context, const Matrix& x, const RowPairs& pairs,
                   const Matrix& out) const override {
        check_copied_rows(x, out);
        check_activation(out, "copied rows");
        cuda::copy_rows(context.stream, x, pairs, out);
    }

    void sample_nodes(OpContext& context, const Matrix& logits,
                      const SamplingBatch& batch) const override {
        check_sampling(logits, batch);
        check_size(logits.cols, batch.vocabulary, "logits");
        const Arena::Mark mark(context.arena);
        cuda::sample_nodes(context.stream, logits, batch,
                           context.arena.take<float>(scratch_elements(logits.rows, logits.cols)));
    }

    void draft_children(OpContext& context, const Matrix& logits, const SamplingBatch& batch,
                        const DraftVocabulary& vocabulary, const DraftRule& rule,
                        DraftChild* children) const override {
        check_draft(logits, batch, vocabulary, rule);
        const Arena::Mark mark(context.arena);
        cuda::draft_children(context.stream, logits, batch, vocabulary, rule, children,
                             context.arena.take<float>(scratch_elements(logits.rows, logits.cols)));
    }

    void grow_trees(OpContext& context, const DraftGrowth& growth,
                    const FoundChildren& found) const override {
        check_growth(found);
        cuda::grow_trees(context.stream, growth, found);
    }
    void lay_frontiers(OpContext& context, const DraftGrowth& growth, const FrontierBatch& batch,
                       const FrontierDraws& draws) const override {
        check_frontiers(batch, draws);
        cuda::lay_frontiers(context.stream, growth, batch, draws);
    }

    std::size_t scratch_bytes(std::int64_t, std::int64_t gather_cap, std::int64_t vocabulary,
                              int) const override {
        return static_cast<std::size_t>(scratch_elements(gather_cap, vocabulary)) * sizeof(float);
    }
    std::size_t product_scratch_bytes(std::int64_t rows, std::int64_t inputs) const override {
        return linalg::cuda::scratch_bytes(rows, inputs);
    }

  private:
    // No operation that holds a part of the arena calls a product.
    static linalg::cuda::Scratch scratch_of(OpContext& context) {
        return {context.arena.memory().data(), context.arena.memory().bytes()};
    }
    // Where gate and up would lie if they were stored.
    static linalg::cuda::Scratch memory_of(const Matrix& gate_up) {
        return {gate_up.data,
                static_cast<std::size_t>(gate_up.rows * gate_up.stride) * sizeof(float)};
    }
    static void check_queries(const Matrix& q, std::int32_t heads, std::int64_t width,
                              const Matrix& q_act, const Matrix& rope_to, std::int64_t rope_step) {
        check_f32(q, "queries");
        check_activation(q_act, "convert to");
        check_activation(rope_to, "rope to");
        check_size(q.cols, heads * (width + kRopeWidth), "queries");
        check_heads(q_act, width + kRopeWidth, heads, width, "convert to");
        check_heads(rope_to, rope_step, heads, kRopeWidth, "rope to");
    }
    static void check_norm(const Matrix& x, const RowNorm& norm) {
        check_f32(x, "rms_norm input");
        check_activation(norm.out, "rms_norm output");
        check_size(norm.out.cols, x.cols, "rms_norm output");
    }
    // Of the nodes that are drawn at a time, whole cache lines each.
    static std::int64_t scratch_elements(std::int64_t nodes, std::int64_t vocabulary) {
        return std::min(nodes, cuda::kNodesAtOnce) * cuda::row_stride(vocabulary);
    }

    mutable Buffer arrived_;
};

}  // namespace

Expected<std::unique_ptr<Backend>> make_cuda_backend() {
    ESPALIER_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, make_cuda_device());
    ESPALIER_ASSIGN_OR_RETURN(Buffer arrived, device->allocate(sizeof(std::uint32_t)));
    return std::make_unique<CudaBackend>(std::move(arrived));
}

}  // namespace espalier::ops
