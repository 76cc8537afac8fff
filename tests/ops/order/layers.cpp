// SPDX-License-Identifier: Apache-2.0
#include "ops/order/layers.hpp"

#include <cstring>
#include <random>

#include "linalg/cuda/fragments.hpp"
#include "ops/cuda_backend.hpp"

namespace espalier::order_test {

Layer::Layer(Recording& recording, const Shape& shape)
    : recording_(recording), shape_(shape), kernels_(shape.launches) {
    record_into(&recording);
    // The backend's one word is memory of the fake GPU, too.
    class OnFakeGpu final : public CpuDevice {
      public:
        explicit OnFakeGpu(Memory& memory) : CpuDevice(1), memory_(memory) {}
        Expected<Buffer> allocate(std::size_t bytes) override {
            return Buffer(memory_.take(static_cast<std::int64_t>(bytes)), bytes, nullptr);
        }

      private:
        Memory& memory_;
    } device(recording.memory);
    backend_ = std::move(ops::make_cuda_backend(device)).value();
    // Products arrange x in the arena, where there is room for all of it.
    const std::int64_t rows = shape.tokens * std::max<std::int64_t>(shape.top_k, 1);
    const std::int64_t widest = std::max({shape.hidden, shape.dense, shape.shared_width,
                                          shape.heads * shape.dims.value, std::int64_t{128}});
    const std::int64_t scratch = 4096 + rows * (widest + 128) * 2;
    arena_ =
        std::make_unique<Arena>(Buffer(room(scratch), static_cast<std::size_t>(scratch), nullptr));
    context_ = std::make_unique<OpContext>(OpContext{host_, *arena_});
    context_->order.watch(&recording);
    take_activations();
    take_rows();
    take_weights();
}

Matrix Layer::matrix(std::int64_t rows, std::int64_t cols, DType dtype) {
    const auto bytes = static_cast<std::int64_t>(bytes_of(dtype));
    Matrix m{room(rows * cols * bytes), dtype, rows, cols, cols};
    if (!shape_.runs) return m;
    std::mt19937 random(static_cast<std::uint32_t>(rows * 31 + cols));
    for (std::int64_t i = 0; i < rows * cols; ++i) {
        const float value = static_cast<float>(random() % 2000) / 1000.0f - 1.0f;
        if (dtype == DType::f32)
            reinterpret_cast<float*>(m.data)[i] = value;
        else
            reinterpret_cast<Bf16*>(m.data)[i] = to_bf16(value);
    }
    return m;
}

template <typename T>
T* Layer::array(const std::vector<T>& values) {
    std::byte* data = room(static_cast<std::int64_t>(values.size() * sizeof(T)) + 1);
    if (!values.empty()) std::memcpy(data, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(data);
}

// Weights, which no launch writes, lie elsewhere.
const float* Layer::numbers(std::int64_t count, float scale) {
    std::vector<float>& values = weights_.emplace_back();
    std::mt19937 random(static_cast<std::uint32_t>(weights_.size()));
    for (std::int64_t i = 0; i < count; ++i)
        values.push_back((static_cast<float>(random() % 2000) / 1000.0f - 1.0f) * scale);
    return values.data();
}

WeightView Layer::weight(std::int64_t count, std::int64_t n, std::int64_t k, WeightLayout layout) {
    using namespace linalg::cuda;
    if (count == 0 || n == 0 || k == 0) return {};
    const WeightFormat& format = shape_.format;
    const std::int64_t tiles = linalg::tiles_of(n) * linalg::chunks_of(k);
    WeightView w{.format = format, .layout = layout, .count = count, .n = n, .k = k};
    w.matrix_bytes = in_fragments(format.code) ? tiles * 2 * half_bytes(format) : n * k * 4;
    if (in_blocks(format.code)) w.scale_bytes = tiles * 2 * 4;
    const float scale = 2.0f / static_cast<float>(k);
    w.data = shape_.runs ? reinterpret_cast<const std::byte*>(numbers(count * n * k, scale))
                         : reinterpret_cast<const std::byte*>(std::uintptr_t{4096});
    w.scales = w.data;
    return w;
}

WeightView Layer::router_weight() {
    WeightView w{.format = {.code = WeightCode::f32},
                 .layout = WeightLayout::fragments,
                 .count = 1,
                 .n = shape_.experts,
                 .k = shape_.hidden};
    w.matrix_bytes = w.n * w.k * 4;
    w.data = reinterpret_cast<const std::byte*>(shape_.runs ? numbers(w.n * w.k, 1.0f)
                                                            : reinterpret_cast<const float*>(4096));
    return w;
}

void Layer::take_activations() {
    const std::int64_t tokens = shape_.tokens, heads = shape_.heads, pairs = tokens * shape_.top_k;
    const std::int64_t width = std::max(shape_.dense, shape_.shared_width);
    const DType act = shape_.format.input();
    residual_ = matrix(tokens, shape_.hidden, DType::f32);
    sums_ = matrix(tokens, shape_.hidden, DType::f32);
    normed_ = matrix(tokens, shape_.hidden, act);
    exact_ = matrix(tokens, shape_.hidden, DType::f32);
    cos_sin_ = matrix(tokens, mla::kRope, DType::f32);
    low_ = matrix(tokens, shape_.q_lora, DType::f32);
    low_act_ = matrix(tokens, shape_.q_lora, act);
    kv_ = matrix(tokens, mla::kKey, DType::f32);
    latent_ = matrix(tokens, mla::kLatent, DType::f32);
    key_rope_ = matrix(tokens, mla::kRope, DType::f32);
    q_room_ = matrix(tokens, heads * shape_.dims.query(), DType::f32);
    q_act_ = matrix(tokens, heads * shape_.dims.query(), act);
    q_absorbed_ = matrix(tokens, heads * mla::kKey, act);
    out_latent_ = matrix(tokens, heads * mla::kLatent, act);
    out_ = matrix(tokens, heads * shape_.dims.value, act);
    gate_up_ = matrix(tokens, 2 * width, DType::f32);
    gated_ = matrix(tokens, width, act);
    pair_gate_up_ = matrix(pairs, 2 * shape_.expert_width, DType::f32);
    pair_gated_ = matrix(pairs, shape_.expert_width, act);
    pair_out_ = matrix(pairs, shape_.hidden, DType::f32);
    shared_out_ = matrix(tokens, shape_.hidden, DType::f32);
    logits_ = matrix(tokens, shape_.experts, DType::f32);
    plan_ = {reinterpret_cast<std::int32_t*>(room(pairs * 4)),
             reinterpret_cast<float*>(room(pairs * 4)),
             reinterpret_cast<std::int32_t*>(room((shape_.experts + 1) * 4)),
             reinterpret_cast<std::int32_t*>(room(pairs * 4)),
             reinterpret_cast<std::int32_t*>(room(pairs * 4))};
}

// Rows of row_tokens tokens over a page of their own each.
void Layer::take_rows() {
    const auto rows_of = [&](std::int64_t tokens, std::int64_t first_page) {
        const std::int64_t count = (tokens + shape_.row_tokens - 1) / shape_.row_tokens;
        std::vector<std::int32_t> indptr{0}, lengths, table, table_row, tail;
        std::vector<mla::MaskKind> mask;
        for (std::int64_t b = 0; b < count; ++b) {
            const std::int64_t end = std::min((b + 1) * shape_.row_tokens, tokens);
            indptr.push_back(static_cast<std::int32_t>(end));
            lengths.push_back(static_cast<std::int32_t>(64 - b % 7));
            table.push_back(static_cast<std::int32_t>(first_page + b));
            table_row.push_back(static_cast<std::int32_t>(b));
            tail.push_back(static_cast<std::int32_t>(shape_.row_tokens));
            mask.push_back(shape_.tree ? mla::MaskKind::tree : mla::MaskKind::causal);
        }
        mla::RaggedRows rows;
        rows.rows = static_cast<std::int32_t>(count);
        rows.token_end = tokens;
        rows.q_indptr = array(indptr);
        rows.kv_len = array(lengths);
        rows.block_table = array(table);
        rows.block_stride = 1;
        rows.table_row = array(table_row);
        rows.table_rows = rows.rows;
        rows.mask = array(mask);
        rows.tail_len = array(tail);
        rows.words = array(std::vector<std::uint64_t>(static_cast<std::size_t>(tokens), 5));
        rows.max_q_len = static_cast<std::int32_t>(shape_.row_tokens);
        rows.max_kv_len = 64;
        return rows;
    };
    absorbed_ = rows_of(shape_.absorbed, 1);
    decompressed_ = rows_of(shape_.tokens - shape_.absorbed, 1 + absorbed_.rows);
    const std::int64_t pages = 1 + absorbed_.rows + decompressed_.rows;
    pages_ = {
        .format = mla::KvFormat::bf16, .page_stride = 64 * mla::kKey * 2, .page_count = pages};
    pages_.data = matrix(pages * 64, mla::kKey, DType::bf16).data;
    std::vector<std::int64_t> slots;
    const auto own = [&](const mla::RaggedRows& rows) {
        for (std::int64_t b = 0; b < rows.rows; ++b)
            for (std::int64_t t = rows.q_indptr[b]; t < rows.q_indptr[b + 1]; ++t)
                slots.push_back(std::int64_t{rows.block_table[b]} * 64 + rows.kv_len[b] -
                                (rows.q_indptr[b + 1] - t));
    };
    own(absorbed_);
    own(decompressed_);
    slot_ = array(slots);
    row_of_ = array(std::vector<std::int32_t>(static_cast<std::size_t>(shape_.tokens), 0));
    nonfinite_ = array(std::vector<std::uint8_t>(static_cast<std::size_t>(shape_.tokens), 0));
    attention_plan_ = room(2 * 4096);
}

void Layer::take_weights() {
    const std::int64_t heads = shape_.heads, query = heads * shape_.dims.query();
    const std::int64_t hidden = shape_.hidden, low = shape_.q_lora;
    const bool gated = shape_.gate_up == WeightLayout::gated_fragments;
    const WeightLayout up = gated ? WeightLayout::gated_fragments : WeightLayout::fragments;
    q_a_ = weight(1, low, hidden);
    q_ = weight(1, query, low > 0 ? low : hidden);
    kv_a_ = weight(1, mla::kKey, hidden);
    absorb_ = weight(heads, mla::kLatent, shape_.dims.nope);
    up_value_ = weight(heads, shape_.dims.value, mla::kLatent);
    up_key_ = weight(heads, shape_.dims.nope, mla::kLatent, WeightLayout::rows);
    o_ = weight(1, hidden, heads * shape_.dims.value);
    dense_up_ = weight(1, 2 * shape_.dense, hidden, up);
    dense_down_ = weight(1, hidden, shape_.dense);
    expert_up_ = weight(shape_.experts, 2 * shape_.expert_width, hidden, up);
    expert_down_ = weight(shape_.experts, hidden, shape_.expert_width);
    shared_up_ = weight(1, 2 * shape_.shared_width, hidden, up);
    shared_down_ = weight(1, hidden, shape_.shared_width);
    router_ = router_weight();
    norm_ = numbers(shape_.runs ? std::max(std::max(hidden, low), mla::kKey) : 1, 1.0f);
}

ops::RowNorm Layer::norm_to(const Matrix& out, const Matrix& exact) const {
    return {norm_, 1e-6f, out, exact};
}

ops::KeysCall Layer::keys_call() const {
    ops::KeysCall keys{.w = kv_a_,
                       .kv_a = kv_,
                       .norm = norm_to(latent_, {}),
                       .cos_sin = cos_sin_,
                       .key_rope = key_rope_,
                       .append = {}};
    keys.append.tokens = shape_.tokens;
    keys.append.slot = slot_;
    keys.append.kv = pages_;
    keys.append.nonfinite = nonfinite_;
    return keys;
}

ops::AttentionCall Layer::attention_call() const {
    mla::AbsorbedCall absorbed;
    absorbed.rows = absorbed_;
    absorbed.heads = shape_.heads;
    absorbed.q = q_absorbed_.data;
    absorbed.q_dtype = q_absorbed_.dtype;
    absorbed.kv = pages_;
    absorbed.scale = 1.0f;
    absorbed.out = out_latent_.data;
    absorbed.out_dtype = out_latent_.dtype;
    absorbed.plan = attention_plan_;
    // Decompressed tokens lie behind the absorbed ones.
    mla::DecompressedCall decompressed;
    decompressed.rows = decompressed_;
    decompressed.heads = shape_.heads;
    decompressed.q = q_act_.slice(shape_.absorbed, 0).data;
    decompressed.kv = pages_;
    decompressed.up_key = up_key_;
    decompressed.up_value = up_value_;
    decompressed.scale = 1.0f;
    decompressed.out = out_.slice(shape_.absorbed, 0).data;
    ops::AttentionCall call{.q = q_,
                            .queries = q_room_,
                            .cos_sin = cos_sin_,
                            .q_act = q_act_,
                            .absorb_key = absorb_,
                            .up_value = up_value_,
                            .q_absorbed = q_absorbed_.slice(0, shape_.absorbed),
                            .out_latent = out_latent_.slice(0, shape_.absorbed),
                            .absorbed = absorbed,
                            .decompressed = decompressed,
                            .out = out_,
                            .o = o_,
                            .sums = sums_};
    if (shape_.q_lora > 0) call.low_rank = {q_a_, low_, norm_to(low_act_, {})};
    return call;
}

void Layer::plan_attention() {
    if (shape_.absorbed > 0)
        CHECK(kernels_.plan(*context_, attention_call().absorbed).has_value(), "a plan");
}

void Layer::enter() { backend_->rms_norm(*context_, residual_, norm_, 1e-6f, normed_, {}); }

ops::Terms Layer::feed_forward(const ops::Terms& attention) {
    backend_->program().add(*context_, attention, residual_, {.norm = norm_to(normed_, {})});
    const std::int64_t tokens = shape_.tokens;
    const Matrix room{gate_up_.data, DType::f32, tokens, 2 * shape_.dense, 2 * shape_.dense};
    const Matrix gated{gated_.data, gated_.dtype, tokens, shape_.dense, shape_.dense};
    return backend_->program().feed_forward(*context_, normed_,
                                            {dense_up_, dense_down_, room, gated, sums_});
}

ops::Terms Layer::mixture(const ops::Terms& attention) {
    ops::RouterRule rule{
        .score = ops::RouterScore::softmax, .experts = shape_.experts, .top_k = shape_.top_k};
    const ops::RouterCall router{
        .w = router_, .logits = logits_, .rule = rule, .row_of = row_of_, .plan = plan_};
    backend_->program().add(*context_, attention, residual_,
                            {.norm = norm_to(normed_, exact_), .router = &router});
    const std::int64_t tokens = shape_.tokens, width = shape_.shared_width;
    ops::FeedForward shared;
    if (width > 0)
        shared = {shared_up_,
                  shared_down_,
                  {gate_up_.data, DType::f32, tokens, 2 * width, 2 * width},
                  {gated_.data, gated_.dtype, tokens, width, width},
                  shared_out_};
    return backend_->program().experts(
        *context_, normed_, router,
        {expert_up_, expert_down_, pair_gate_up_, pair_gated_, pair_out_}, shared);
}

void Layer::run(bool experts) {
    const auto attention = backend_->program().write_keys_and_attend(*context_, kernels_, normed_,
                                                                     keys_call(), attention_call());
    CHECK(attention.has_value(), "attention: {}", attention.error().message);
    const ops::Terms terms = experts ? mixture(*attention) : feed_forward(*attention);
    backend_->program().add(*context_, terms, residual_, {.norm = norm_to(normed_, {})});
}

void Layer::run_apart() {
    CHECK(backend_->program().write_keys(*context_, kernels_, normed_, keys_call()).has_value(),
          "keys");
    const auto attention =
        backend_->program().attend(*context_, kernels_, normed_, attention_call());
    CHECK(attention.has_value(), "attention: {}", attention.error().message);
    const ops::Terms terms = feed_forward(*attention);
    backend_->program().add(*context_, terms, residual_, {.norm = norm_to(normed_, {})});
}

}  // namespace espalier::order_test
