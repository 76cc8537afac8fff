// SPDX-License-Identifier: Apache-2.0
#include "conformance/prompt.hpp"

#include <cmath>

#include "linalg/weight_at.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

// The element that has the bits of a code.
DType element_of(WeightCode code) {
    switch (code) {
        case WeightCode::f32:
            return DType::f32;
        case WeightCode::f16:
            return DType::f16;
        case WeightCode::bf16:
            return DType::bf16;
        case WeightCode::e4m3:
            return DType::e4m3;
        default:
            break;
    }
    CHECK(false, "weights of code {}", static_cast<int>(code));
}

}  // namespace

UpWeights::UpWeights(Random& random, WeightCode code, int heads, std::int64_t outputs,
                     std::int64_t latent) {
    const bool scaled = code == WeightCode::e4m3;
    view_.format = scaled ? kFp8Blocks : WeightFormat{.code = code};
    view_.layout = linalg::WeightLayout::panels;
    view_.count = heads;
    view_.n = outputs;
    view_.k = latent;
    view_.matrix_bytes = view_.format.bytes(outputs * latent);
    view_.scale_bytes = outputs * view_.scale_groups() * 4;
    std::vector<float> packed(static_cast<std::size_t>(heads * outputs * latent));
    // Outputs of a latent row have variance 1; e4m3 keeps that in its scales.
    const float size = 1.0f / std::sqrt(static_cast<float>(latent));
    for (float& x : packed) x = random.normal() * (scaled ? 60.0f : size);
    data_ = narrowed(packed, element_of(code));
    scales_.resize(static_cast<std::size_t>(heads * outputs * (latent / 128)));
    for (float& scale : scales_)
        scale = size / 60.0f * static_cast<float>(random.between(1, 3)) / 2.0f;
    view_.data = data_.data();
    view_.scales = scaled ? reinterpret_cast<const std::byte*>(scales_.data()) : nullptr;
}

Prompt::Prompt(Random& random, WeightCode weights, int heads, const HeadDims& dims,
               const KeyDims& keys)
    : heads_(heads),
      dims_(dims),
      keys_(keys),
      up_key_(random, weights, heads, dims.nope, keys.latent),
      up_value_(random, weights, heads, dims.value, keys.latent) {}

Row Prompt::row(Random& random, int tokens, int keys) const {
    return make_row(random, MaskKind::causal, heads_, tokens, keys, Spread::normal,
                    query_columns());
}

DecompressedCall Prompt::call(const Batch& batch, const RunOptions& options) const {
    DecompressedCall call;
    call.rows = batch.view();
    call.heads = heads_;
    call.q = batch.image().query.data();
    call.q_dtype = batch.query_dtype();
    call.kv = batch.kv();
    call.up_key = up_key_.view();
    call.up_value = up_value_.view();
    call.scale = options.scale;
    call.out_dtype = options.out_dtype;
    return call;
}

// [heads, key rows then value rows, latent]
std::vector<Bf16> Prompt::plain_rows() const {
    std::vector<Bf16> rows;
    rows.reserve(static_cast<std::size_t>(heads_ * dims_.outputs() * keys_.latent));
    for (std::int64_t head = 0; head < heads_; ++head)
        for (const UpWeights* half : {&up_key_, &up_value_})
            for (std::int64_t output = 0; output < half->view().n; ++output)
                for (std::int64_t input = 0; input < keys_.latent; ++input)
                    rows.push_back(to_bf16(
                        static_cast<float>(linalg::weight_at(half->view(), head, output, input))));
    return rows;
}

Expected<Result> Prompt::run(Device& device, KvFormat format, const std::vector<Row>& rows,
                             const Layout& layout, const RunOptions& options) const {
    const Batch batch(format, heads_, rows, layout, query_columns());
    ESPALIER_ASSIGN_OR_RETURN(const PlacedBatch placed, PlacedBatch::place(device, batch));
    ESPALIER_ASSIGN_OR_RETURN(
        PlacedOutput output,
        PlacedOutput::place(device, batch.tokens(), heads_, dims_.value, options));
    DecompressedCall placed_call = call(batch, options);
    placed_call.rows = placed.rows();
    placed_call.kv = placed.kv();
    placed_call.q = placed.query();
    placed_call.out = output.out();
    placed_call.lse = options.want_lse ? output.lse() : nullptr;
    Buffer weights;
    if (!device.is_host()) {
        const std::vector<Bf16> plain = plain_rows();
        ESPALIER_ASSIGN_OR_RETURN(weights, device.allocate(plain.size() * sizeof(Bf16)));
        ESPALIER_RETURN_IF_ERROR(device.upload(weights.data(), plain.data(), weights.bytes()));
        for (linalg::WeightView* half : {&placed_call.up_key, &placed_call.up_value}) {
            half->layout = linalg::WeightLayout::rows;
            half->matrix_bytes = dims_.outputs() * keys_.latent * 2;
            half->data = weights.data();
        }
        placed_call.up_value.data += dims_.nope * keys_.latent * 2;
    }
    Capacities most = batch.capacities(options.workers, false);
    most.head_dims = dims_;
    ESPALIER_RETURN_IF_ERROR(device.run(
        options.workers, device.kernels().scratch_bytes(most),
        [&](OpContext& context) { return device.kernels().decompressed(context, placed_call); }));
    return output.read();
}

Expected<Result> Prompt::oracle(KvFormat format, const std::vector<Row>& rows,
                                const Layout& layout) const {
    const Batch batch(format, heads_, rows, layout, query_columns());
    Result result{dims_.value, heads_, {}, {}};
    const auto packed = static_cast<std::size_t>(batch.tokens() * heads_);
    result.out.assign(packed * static_cast<std::size_t>(dims_.value), 0.0f);
    result.lse.assign(packed, 0.0f);
    DecompressedCall host = call(batch, {});
    host.out = reinterpret_cast<std::byte*>(result.out.data());
    host.lse = result.lse.data();
    CpuDevice device(1);
    Arena arena{Buffer()};
    OpContext context{device, arena};
    ESPALIER_RETURN_IF_ERROR(make_reference_kernels()->decompressed(context, host));
    return result;
}

WeightCode usual_weights(const Device& device, KvFormat format) {
    return device.is_host() && format == KvFormat::f32 ? WeightCode::f32 : WeightCode::bf16;
}

Expected<void> ask_decompressed(Device& device, KvFormat format, const KeyDims& dims, DType query) {
    Random random(1);
    const Prompt prompt(random, usual_weights(device, format), 1, {}, dims);
    Layout layout;
    layout.dims = dims;
    layout.page_tokens = 16;
    layout.query = query;
    const Expected<Result> result =
        prompt.run(device, format, {prompt.row(random, 1, 1)}, layout, {});
    if (!result) return tl::unexpected<Error>(result.error());
    return {};
}

}  // namespace espalier::conformance
