// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/layer_program.hpp"

#include "linalg/cuda/product.hpp"
#include "ops/cuda/joined.hpp"
#include "ops/cuda/queued.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops::cuda {
namespace {

// kv_a's rows → the cache, in one kernel; `low_rank`, if there is one, is normed beside them.
// holds_back: what an operation behind reads early.
Expected<void> append(OpContext& context, const KeysCall& keys,
                      const AttentionCall::LowRank& low_rank, const Ranges& holds_back) {
    mla::RawKeys raw{.kv_a = keys.kv_a.row<float>(0),
                     .kv_a_stride = keys.kv_a.stride,
                     .norm_weight = keys.norm.weight,
                     .epsilon = keys.norm.epsilon,
                     .cos_sin = keys.cos_sin.row<float>(0),
                     .cos_sin_stride = keys.cos_sin.stride,
                     .holds_back = holds_back};
    if (low_rank.low.data != nullptr)
        raw.beside = {low_rank.product, low_rank.norm.weight, low_rank.norm.epsilon,
                      low_rank.norm.out};
    return mla::append_raw(context, keys.append, raw);
}

Ranges project_queries(OpContext& context, const mla::Kernels& kernels, const Matrix& input,
                       const AttentionCall& call, const BesideProduct& beside) {
    return query_product(context, input, call.q,
                         {.q = call.queries,
                          .heads = call.heads(),
                          .width = call.nope(),
                          .cos_sin = call.cos_sin,
                          .q_act = call.q_act,
                          .rope_to = call.rope_to(),
                          .rope_step = mla::kKey},
                         beside, mla::read_ahead(kernels, call.absorbed));
}

void check_norm(const Matrix& x, const RowNorm& norm) {
    check_activation(norm.out, "rms_norm output");
    check_size(norm.out.cols, x.cols, "rms_norm output");
}

}  // namespace

Expected<linalg::Weight> CudaProgram::pack_up_projection(Device& device,
                                                         const linalg::WeightSource& rows,
                                                         std::int64_t heads) const {
    CHECK(rows.n % heads == 0 && rows.row_stride == rows.k, "{} rows, {} apart, of {} heads",
          rows.n, rows.row_stride, heads);
    const WeightFormat bf16{.code = WeightCode::bf16};
    const std::int64_t bytes = bf16.bytes(rows.n * rows.k);
    ESPALIER_ASSIGN_OR_RETURN(Buffer data, device.allocate(static_cast<std::size_t>(bytes)));
    ESPALIER_RETURN_IF_ERROR(
        device.upload(device.stream(), data.data(), rows.data, static_cast<std::size_t>(bytes)));
    return linalg::Weight(std::move(data), Buffer(),
                          {.format = bf16,
                           .layout = linalg::WeightLayout::rows,
                           .count = heads,
                           .n = rows.n / heads,
                           .k = rows.k,
                           .matrix_bytes = bytes / heads});
}

Expected<linalg::Weight> CudaProgram::pack_gated(Device& device, linalg::WeightStack stack) const {
    CHECK(device.kind() == DeviceKind::cuda, "weights packed for the GPU on {}", device.name());
    return linalg::cuda::pack_gated(device, stack);
}

// Operations behind may read anything early.
Expected<void> CudaProgram::write_keys(OpContext& context, const mla::Kernels&, const Matrix& input,
                                       const KeysCall& keys) const {
    context.order.forget();
    operations().product(context, input, keys.w, keys.kv_a, Store::assign);
    return append(context, keys, {}, {kAllMemory});
}

Expected<Terms> CudaProgram::attend(OpContext& context, const mla::Kernels& kernels,
                                    const Matrix& input, const AttentionCall& call) const {
    context.order.forget();
    const auto& [low, low_product, norm] = call.low_rank;
    if (low.data != nullptr) {
        operations().product(context, input, low, low_product, Store::assign);
        queue_rms_norm(context, low_product, norm);
    }
    project_queries(context, kernels, low.data != nullptr ? norm.out : input, call, {});
    return attend_projected(context, kernels, call);
}

// Attention may read its plan and its history before the step's own keys are there:
//   low-rank queries      kv_a with q_a | append, norm of q_a beside it | q (may hold)
//   others, q holds       q with kv_a (holds) | append (lets next start) | absorb
//   others, q does not    q with kv_a | append (holds) | absorb (starts early, beside append)
Expected<Terms> CudaProgram::write_keys_and_attend(OpContext& context, const mla::Kernels& kernels,
                                                   const Matrix& input, const KeysCall& keys,
                                                   const AttentionCall& call) const {
    context.order.forget();
    const BesideProduct kv_a{keys.w, keys.kv_a};
    const auto& [low, low_product, norm] = call.low_rank;
    if (low.data != nullptr) {
        product_pair(context, input, low, low_product, kv_a);
        ESPALIER_RETURN_IF_ERROR(append(context, keys, call.low_rank, {}));
        project_queries(context, kernels, norm.out, call, {});
        return attend_projected(context, kernels, call);
    }
    Ranges early = project_queries(context, kernels, input, call, kv_a);
    early.add(mla::read_ahead(kernels, call.absorbed));
    ESPALIER_RETURN_IF_ERROR(append(context, keys, {}, early));
    return attend_projected(context, kernels, call);
}

// Expects queries and keys where attention reads them.
Expected<Terms> CudaProgram::attend_projected(OpContext& context, const mla::Kernels& kernels,
                                              const AttentionCall& call) const {
    const std::int64_t absorbed = call.q_absorbed.rows, tokens = call.out.rows;
    if (absorbed > 0) {
        linalg::cuda::stacked_product(context, call.q_act.slice(0, absorbed),
                                      call.nope() + mla::kRope, call.absorb_key, call.q_absorbed,
                                      mla::kKey, {.early = true});
        mla::AbsorbedCall attention = call.absorbed;
        // Nothing that this step appends is another absorbed row's history, unless a prompt's own
        // beginning is decompressed beside it.
        attention.history_stands = absorbed == tokens;
        ESPALIER_RETURN_IF_ERROR(kernels.absorbed(context, attention));
        operations().stacked_product(context, call.out_latent, mla::kLatent, call.up_value,
                                     call.out.slice(0, absorbed), call.up_value.n);
    }
    if (absorbed < tokens)
        ESPALIER_RETURN_IF_ERROR(kernels.decompressed(context, call.decompressed));
    operations().product(context, call.out, call.o, call.sums, Store::assign);
    return Terms{.segments = {call.sums, 1}};
}

Terms CudaProgram::feed_forward(OpContext& context, const Matrix& x,
                                const FeedForward& network) const {
    cuda::feed_forward(context, x, network);
    return {.segments = {network.out, 1}};
}

Terms CudaProgram::experts(OpContext& context, const Matrix& x, const RouterCall& router,
                           const FeedForward& experts, const FeedForward& shared) const {
    expert_layer(context, x, router, experts, shared);
    Terms terms{.experts = {experts.out, router.rule.top_k, router.plan}};
    if (shared.out.data != nullptr) terms.segments = {shared.out, 1};
    return terms;
}

// A norm's kernel adds one rank's terms itself: a product's one segment, or the rows of one owner.
void CudaProgram::add(OpContext& context, const Terms& terms, const Matrix& residual,
                      const AfterTerms& after) const {
    const auto& [norm, router] = after;
    const auto& [experts, segments] = terms;
    const bool has_experts = experts.rows.data != nullptr;
    const Matrix sum = segments.count > 0 ? segments.sums : Matrix{};
    if (norm.weight == nullptr || experts.owner != nullptr || segments.count > 1 ||
        (has_experts && router != nullptr))
        return LayerProgram::add(context, terms, residual, after);
    check_terms(terms, residual);
    check_norm(residual, norm);
    if (has_experts)
        queue_combine_add_norm(context, experts, sum, residual, norm);
    else if (router != nullptr)
        sum_norm_route(context, sum, residual, norm, *router, arrived_.of(context));
    else
        queue_reduce_add_norm(context, sum, residual, norm);
}

}  // namespace espalier::ops::cuda
