// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: checks an operation's arguments on the host and launches its kernels. What lies
// in device memory (tokens, indices) was checked before it went there.
#include "ops/cuda_backend.hpp"

#include <algorithm>
#include <memory>

#include "linalg/cuda/product.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/layer_program.hpp"
#include "ops/cuda/queued.hpp"
#include "ops/cuda/scratch.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

constexpr std::int64_t kRopeWidth = 64;

class CudaBackend final : public Backend {
  public:
    CudaBackend(Stream stream, Buffer arrived)
        : memory_(std::move(arrived)),
          arrived_(stream, memory_.as<std::uint32_t>()),
          program_(*this, arrived_) {}

    std::string name() const override { return "cuda sm_90a"; }

    Expected<linalg::Weight> pack(Device& device, linalg::WeightStack stack) const override {
        CHECK(device.kind() == DeviceKind::cuda, "weights packed for the GPU on {}", device.name());
        return linalg::cuda::pack(device, stack);
    }

    void embed(OpContext& context, const std::int32_t* tokens, const EmbeddingTable& table,
               const Matrix& out) const override {
        check_f32(out, "embeddings");
        check_size(out.cols, table.hidden, "embedding width");
        cuda::embed(unordered(context), tokens, table, out);
    }

    void rms_norm(OpContext& context, const Matrix& x, const float* weight, float epsilon,
                  const Matrix& out, const Matrix& exact) const override {
        check_f32(x, "rms_norm input");
        check_activation(out, "rms_norm output");
        check_size(out.cols, x.cols, "rms_norm output");
        cuda::queue_rms_norm(context, x, {weight, epsilon, out, exact});
    }

    void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                 Store store) const override {
        linalg::cuda::product(context, x, w, y, store, {}, cuda::scratch_of(context));
    }
    void stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                         const WeightView& w, const Matrix& y, std::int64_t y_step) const override {
        linalg::cuda::stacked_product(context, x, x_step, w, y, y_step);
    }
    void expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                        const std::int32_t* indptr, const WeightView& w,
                        const Matrix& y) const override {
        linalg::cuda::expert_product(context, x, source_token, indptr, w, y, {},
                                     cuda::scratch_of(context));
    }

    void rope_angles(OpContext& context, const std::int32_t* position, std::int64_t tokens,
                     const RopeRule& rule, const Matrix& cos_sin) const override {
        check_f32(cos_sin, "rope angles");
        check_size(cos_sin.cols, kRopeWidth, "rope angles");
        cuda::rope_angles(unordered(context), position, tokens, rule, cos_sin);
    }

    void rope(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
              const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) const override {
        check_f32(from, "rope from");
        check_activation(to, "rope to");
        check_heads(from, from_step, heads, kRopeWidth, "rope from");
        check_heads(to, to_step, heads, kRopeWidth, "rope to");
        cuda::rope(unordered(context), from, from_step, heads, cos_sin, to, to_step);
    }

    void convert(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
                 std::int64_t width, const Matrix& to, std::int64_t to_step) const override {
        check_f32(from, "convert from");
        check_activation(to, "convert to");
        check_heads(from, from_step, heads, width, "convert from");
        check_heads(to, to_step, heads, width, "convert to");
        cuda::convert(unordered(context), from, from_step, heads, width, to, to_step);
    }

    void swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out) const override {
        check_f32(gate_up, "gate and up");
        check_activation(out, "swiglu output");
        check_size(gate_up.cols, 2 * out.cols, "gate and up");
        cuda::queue_swiglu(context, gate_up, out);
    }

    void route(OpContext& context, const Matrix& logits, const float* bias, const RouterRule& rule,
               const std::int32_t* row_of, const ExpertPlan& plan) const override {
        check_rule(rule, logits);
        cuda::queue_route(
            context, {.logits = logits, .bias = bias, .rule = rule, .row_of = row_of, .plan = plan},
            arrived_.of(context));
    }

    void add_terms(OpContext& context, const Terms& terms, const Matrix& residual) const override {
        check_terms(terms, residual);
        cuda::add_terms(unordered(context), terms, residual);
    }

    void gather_rows(OpContext& context, const Matrix& x, const std::int32_t* index,
                     const Matrix& out) const override {
        CHECK(x.dtype == out.dtype, "gather from {} to {}", name_of(x.dtype), name_of(out.dtype));
        check_activation(out, "gathered rows");
        cuda::gather_rows(unordered(context), x, index, out);
    }

    void copy_rows(OpContext& context, const Matrix& x, const RowPairs& pairs,
                   const Matrix& out) const override {
        check_copied_rows(x, out);
        check_activation(out, "copied rows");
        cuda::copy_rows(unordered(context), x, pairs, out);
    }

    void sample_nodes(OpContext& context, const Matrix& logits,
                      const SamplingBatch& batch) const override {
        check_sampling(logits, batch);
        check_size(logits.cols, batch.vocabulary, "logits");
        const Arena::Mark mark(context.arena);
        cuda::sample_nodes(unordered(context), logits, batch,
                           context.arena.take<float>(scratch_elements(logits.rows, logits.cols)));
    }

    void draft_children(OpContext& context, const Matrix& logits, const SamplingBatch& batch,
                        const DraftVocabulary& vocabulary, const DraftRule& rule,
                        DraftChild* children) const override {
        check_draft(logits, batch, vocabulary, rule);
        const Arena::Mark mark(context.arena);
        cuda::draft_children(unordered(context), logits, batch, vocabulary, rule, children,
                             context.arena.take<float>(scratch_elements(logits.rows, logits.cols)));
    }

    void grow_trees(OpContext& context, const DraftGrowth& growth,
                    const FoundChildren& found) const override {
        check_growth(found);
        cuda::grow_trees(unordered(context), growth, found);
    }
    void lay_frontiers(OpContext& context, const DraftGrowth& growth, const FrontierBatch& batch,
                       const FrontierDraws& draws) const override {
        check_frontiers(batch, draws);
        cuda::lay_frontiers(unordered(context), growth, batch, draws);
    }

    std::size_t scratch_bytes(std::int64_t, std::int64_t gather_cap, std::int64_t vocabulary,
                              int) const override {
        return static_cast<std::size_t>(scratch_elements(gather_cap, vocabulary)) * sizeof(float);
    }
    std::size_t product_scratch_bytes(std::int64_t rows, std::int64_t inputs) const override {
        return linalg::cuda::scratch_bytes(rows, inputs);
    }
    const LayerProgram& program() const override { return program_; }

  private:
    // For a kernel that the order is told nothing of.
    static Stream unordered(OpContext& context) {
        context.order.forget();
        return context.stream;
    }
    // Elements of the nodes that are drawn at a time, whole cache lines each.
    static std::int64_t scratch_elements(std::int64_t nodes, std::int64_t vocabulary) {
        return std::min(nodes, cuda::kNodesAtOnce) * cuda::row_stride(vocabulary);
    }

    Buffer memory_;
    cuda::Arrived arrived_;
    cuda::CudaProgram program_;
};

}  // namespace

Expected<std::unique_ptr<Backend>> make_cuda_backend(Device& device) {
    ESPALIER_ASSIGN_OR_RETURN(Buffer arrived, device.allocate(sizeof(std::uint32_t)));
    return std::make_unique<CudaBackend>(device.stream(), std::move(arrived));
}

}  // namespace espalier::ops
