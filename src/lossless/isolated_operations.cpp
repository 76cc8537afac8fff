// SPDX-License-Identifier: Apache-2.0
// Backends and kernels of an isolated device: each operation sees that all it was given lies in the
// device's memory, opens it, and runs.
#include <string_view>
#include <utility>

#include "lossless/isolated_device.hpp"
#include "ops/layer_program.hpp"

namespace espalier::lossless {
namespace {

// Opens the device for one operation. Each argument may be a pointer, a matrix or weights; null is
// nothing.
class Operation {
  public:
    template <typename... Arguments>
    Operation(IsolatedDevice& device, std::string_view name, const Arguments&... arguments)
        : access_((check(device, name, arguments), ..., device)) {}

  private:
    static void check(IsolatedDevice& device, std::string_view name, const void* at) {
        CHECK(at == nullptr || device.owns(at), "{} was given memory of the host", name);
    }
    static void check(IsolatedDevice& device, std::string_view name, const Matrix& matrix) {
        if (matrix.rows > 0) check(device, name, matrix.data);
    }
    static void check(IsolatedDevice& device, std::string_view name,
                      const linalg::WeightView& weights) {
        check(device, name, weights.data);
        check(device, name, weights.scales);
    }
    static void check(IsolatedDevice& device, std::string_view name, const mla::RaggedRows& rows) {
        for (const void* at :
             {static_cast<const void*>(rows.q_indptr), static_cast<const void*>(rows.kv_len),
              static_cast<const void*>(rows.block_table), static_cast<const void*>(rows.mask),
              static_cast<const void*>(rows.tail_len), static_cast<const void*>(rows.words),
              static_cast<const void*>(rows.table_row)})
            check(device, name, at);
    }

    static void check(IsolatedDevice& device, std::string_view name, const mla::KeyLists& lists) {
        check(device, name, static_cast<const void*>(lists.slots));
        check(device, name, static_cast<const void*>(lists.count));
    }

    static void check(IsolatedDevice& device, std::string_view name,
                      const ops::DraftGrowth& growth) {
        for (const void* at :
             {static_cast<const void*>(growth.head), static_cast<const void*>(growth.trees),
              static_cast<const void*>(growth.nodes), static_cast<const void*>(growth.drafted)})
            check(device, name, at);
    }

    static void check(IsolatedDevice& device, std::string_view name,
                      const ops::SamplingBatch& batch) {
        for (const void* at :
             {static_cast<const void*>(batch.parameters), static_cast<const void*>(batch.position),
              static_cast<const void*>(batch.choice), static_cast<const void*>(batch.wanted),
              static_cast<const void*>(batch.lists), static_cast<const void*>(batch.counts),
              static_cast<const void*>(batch.draws), static_cast<const void*>(batch.alternatives)})
            check(device, name, at);
    }

    IsolatedDevice::Access access_;
};

class IsolatedBackend final : public ops::Backend {
  public:
    IsolatedBackend(IsolatedDevice& device, std::unique_ptr<ops::Backend> inner)
        : device_(device), inner_(std::move(inner)) {}

    std::string name() const override { return "isolated " + inner_->name(); }
    std::size_t scratch_bytes(std::int64_t token_cap, std::int64_t gather_cap,
                              std::int64_t vocabulary, int workers) const override {
        return inner_->scratch_bytes(token_cap, gather_cap, vocabulary, workers);
    }
    std::size_t product_scratch_bytes(std::int64_t rows, std::int64_t inputs) const override {
        return inner_->product_scratch_bytes(rows, inputs);
    }
    Expected<linalg::Weight> pack(Device& device, linalg::WeightStack stack) const override {
        const IsolatedDevice::Access access(device_);
        return inner_->pack(device, stack);
    }
    void embed(OpContext& context, const std::int32_t* tokens, const ops::EmbeddingTable& table,
               const Matrix& out) const override {
        const Operation open(device_, "embed", tokens, table.data, out);
        inner_->embed(context, tokens, table, out);
    }
    void rms_norm(OpContext& context, const Matrix& x, const float* weight, float epsilon,
                  const Matrix& out, const Matrix& exact) const override {
        const Operation open(device_, "rms_norm", x, weight, out, exact);
        inner_->rms_norm(context, x, weight, epsilon, out, exact);
    }
    void product(OpContext& context, const Matrix& x, const linalg::WeightView& w, const Matrix& y,
                 ops::Store store) const override {
        const Operation open(device_, "product", x, w, y);
        inner_->product(context, x, w, y, store);
    }
    void segment_sums(OpContext& context, const Matrix& x, const linalg::WeightView& w,
                      const Matrix& sums) const override {
        const Operation open(device_, "segment_sums", x, w, sums);
        inner_->segment_sums(context, x, w, sums);
    }
    void stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                         const linalg::WeightView& w, const Matrix& y,
                         std::int64_t y_step) const override {
        const Operation open(device_, "stacked_product", x, w, y);
        inner_->stacked_product(context, x, x_step, w, y, y_step);
    }
    void expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                        const std::int32_t* indptr, const linalg::WeightView& w,
                        const Matrix& y) const override {
        const Operation open(device_, "expert_product", x, source_token, indptr, w, y);
        inner_->expert_product(context, x, source_token, indptr, w, y);
    }
    void rope_angles(OpContext& context, const std::int32_t* position, std::int64_t tokens,
                     const ops::RopeRule& rule, const Matrix& cos_sin) const override {
        const Operation open(device_, "rope_angles", position, cos_sin);
        inner_->rope_angles(context, position, tokens, rule, cos_sin);
    }
    void rope(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
              const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) const override {
        const Operation open(device_, "rope", from, cos_sin, to);
        inner_->rope(context, from, from_step, heads, cos_sin, to, to_step);
    }
    bool scales_queries() const override { return inner_->scales_queries(); }
    void scale_queries(OpContext& context, const std::int32_t* position,
                       const ops::QueryScaling& scaling, const Matrix& queries) const override {
        const Operation open(device_, "scale_queries", position, queries);
        inner_->scale_queries(context, position, scaling, queries);
    }
    void layer_norm(OpContext& context, const Matrix& x, const float* weight, const float* bias,
                    float epsilon, const Matrix& out) const override {
        const Operation open(device_, "layer_norm", x, weight, bias, out);
        inner_->layer_norm(context, x, weight, bias, epsilon, out);
    }
    void rope_halves(OpContext& context, const Matrix& from, std::int64_t from_step,
                     std::int32_t heads, const Matrix& cos_sin, const Matrix& to,
                     std::int64_t to_step) const override {
        const Operation open(device_, "rope_halves", from, cos_sin, to);
        inner_->rope_halves(context, from, from_step, heads, cos_sin, to, to_step);
    }
    void convert(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
                 std::int64_t width, const Matrix& to, std::int64_t to_step) const override {
        const Operation open(device_, "convert", from, to);
        inner_->convert(context, from, from_step, heads, width, to, to_step);
    }
    void swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out) const override {
        const Operation open(device_, "swiglu", gate_up, out);
        inner_->swiglu(context, gate_up, out);
    }
    void route(OpContext& context, const Matrix& logits, const float* bias,
               const ops::RouterRule& rule, const std::int32_t* row_of,
               const ops::ExpertPlan& plan) const override {
        const Operation open(device_, "route", logits, bias, row_of, plan.expert, plan.weight,
                             plan.indptr, plan.source_token, plan.pair_of);
        inner_->route(context, logits, bias, rule, row_of, plan);
    }
    void add_terms(OpContext& context, const ops::Terms& terms,
                   const Matrix& residual) const override {
        const auto& [experts, segments] = terms;
        const Operation open(device_, "add_terms", experts.rows, experts.plan.expert,
                             experts.plan.weight, experts.plan.pair_of, experts.owner,
                             segments.sums, residual);
        inner_->add_terms(context, terms, residual);
    }
    void gather_rows(OpContext& context, const Matrix& x, const std::int32_t* index,
                     const Matrix& out) const override {
        const Operation open(device_, "gather_rows", x, index, out);
        inner_->gather_rows(context, x, index, out);
    }
    void copy_rows(OpContext& context, const Matrix& x, const ops::RowPairs& pairs,
                   const Matrix& out) const override {
        const Operation open(device_, "copy_rows", x, pairs.from, pairs.to, out);
        inner_->copy_rows(context, x, pairs, out);
    }
    void sample_nodes(OpContext& context, const Matrix& logits,
                      const ops::SamplingBatch& batch) const override {
        const Operation open(device_, "sample_nodes", logits, batch);
        inner_->sample_nodes(context, logits, batch);
    }
    void draft_children(OpContext& context, const Matrix& logits, const ops::SamplingBatch& batch,
                        const ops::DraftVocabulary& vocabulary, const ops::DraftRule& rule,
                        ops::DraftChild* children) const override {
        const Operation open(device_, "draft_children", logits, batch, vocabulary.target_of,
                             vocabulary.draft_of, children);
        inner_->draft_children(context, logits, batch, vocabulary, rule, children);
    }
    void grow_trees(OpContext& context, const ops::DraftGrowth& growth,
                    const ops::FoundChildren& found) const override {
        const Operation open(device_, "grow_trees", growth, found.plain, found.coupled);
        inner_->grow_trees(context, growth, found);
    }
    void lay_frontiers(OpContext& context, const ops::DraftGrowth& growth,
                       const ops::FrontierBatch& batch,
                       const ops::FrontierDraws& draws) const override {
        const Operation open(device_, "lay_frontiers", growth, batch.tokens, batch.position,
                             batch.slot, batch.row_of, batch.words, batch.parent_row,
                             batch.q_indptr, batch.kv_len, batch.tail_len, batch.table_row,
                             batch.mask, batch.block_tables, draws.batch);
        inner_->lay_frontiers(context, growth, batch, draws);
    }
    const ops::LayerProgram& program() const override { return program_; }

  private:
    IsolatedDevice& device_;
    std::unique_ptr<ops::Backend> inner_;
    ops::LayerProgram program_{*this};
};

class IsolatedKernels final : public mla::Kernels {
  public:
    IsolatedKernels(IsolatedDevice& device, std::unique_ptr<mla::Kernels> inner)
        : device_(device), inner_(std::move(inner)) {}

    Expected<void> absorbed(OpContext& context, const mla::AbsorbedCall& call) const override {
        const Operation open(device_, "absorbed attention", call.rows, call.lists, call.q,
                             call.kv.data, call.out, call.lse, call.plan);
        return inner_->absorbed(context, call);
    }
    Expected<void> plan(OpContext& context, const mla::AbsorbedCall& call) const override {
        const Operation open(device_, "the plan of attention", call.rows, call.plan);
        return inner_->plan(context, call);
    }
    std::size_t plan_bytes(const mla::Capacities& most) const override {
        return inner_->plan_bytes(most);
    }
    Expected<void> decompressed(OpContext& context,
                                const mla::DecompressedCall& call) const override {
        const Operation open(device_, "decompressed attention", call.rows, call.q, call.kv.data,
                             call.up_key, call.up_value, call.out, call.lse);
        return inner_->decompressed(context, call);
    }
    Expected<void> append(OpContext& context, const mla::AppendCall& call) const override {
        const Operation open(device_, "append", call.latent, call.rope, call.slot, call.kv.data,
                             call.nonfinite);
        return inner_->append(context, call);
    }
    Expected<void> compact(OpContext& context, const mla::CompactCall& call) const override {
        const Operation open(device_, "compact", call.source, call.destination, call.kv.data);
        return inner_->compact(context, call);
    }
    Expected<void> select(OpContext& context, const mla::SelectCall& call) const override {
        const Operation open(device_, "choosing keys", call.rows, call.lists, call.q, call.weights,
                             call.keys.data, call.nonfinite);
        return inner_->select(context, call);
    }
    Expected<void> check_indexer() const override { return inner_->check_indexer(); }
    Expected<void> check_dims(const KeyDims& keys, const HeadDims& heads) const override {
        return inner_->check_dims(keys, heads);
    }
    std::size_t scratch_bytes(const mla::Capacities& most) const override {
        return inner_->scratch_bytes(most);
    }

  private:
    IsolatedDevice& device_;
    std::unique_ptr<mla::Kernels> inner_;
};

}  // namespace

std::unique_ptr<ops::Backend> isolate(IsolatedDevice& device, std::unique_ptr<ops::Backend> inner) {
    return std::make_unique<IsolatedBackend>(device, std::move(inner));
}

std::unique_ptr<mla::Kernels> isolate(IsolatedDevice& device, std::unique_ptr<mla::Kernels> inner) {
    return std::make_unique<IsolatedKernels>(device, std::move(inner));
}

}  // namespace espalier::lossless
