// SPDX-License-Identifier: Apache-2.0
// A layer of a model, called as model/decoder_layer.cpp calls the layer program.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "base/cpu_device.hpp"
#include "ops/layer_program.hpp"
#include "ops/ops.hpp"
#include "ops/order/fake_attention.hpp"
#include "ops/order/fake_gpu.hpp"

namespace espalier::order_test {

using linalg::WeightLayout;
using linalg::WeightView;

struct Shape {
    WeightFormat format{.code = WeightCode::bf16};
    std::int64_t tokens = 1;
    std::int64_t absorbed = 1;  // of the tokens, in front
    std::int64_t row_tokens = 1;
    std::int64_t hidden = 64;
    std::int32_t heads = 2;
    HeadDims dims{};
    std::int64_t q_lora = 0;  // 0: none
    std::int64_t dense = 64;  // width of a dense layer
    std::int32_t experts = 8;
    std::int32_t top_k = 2;
    std::int64_t expert_width = 32;
    std::int64_t shared_width = 32;  // 0: none
    WeightLayout gate_up = WeightLayout::gated_fragments;
    int launches = 1;   // of attention
    bool tree = false;  // rows have words
    bool runs = true;   // numbers are there; otherwise addresses alone
};

class Layer {
  public:
    Layer(Recording& recording, const Shape& shape);

    void plan_attention();
    // Adds the first norm's result to what the layers below find.
    void enter();
    // A whole layer, and the norm in front of the next one.
    void run(bool experts);
    // Keys alone, then a dense layer's attention over them, as draft models do.
    void run_apart();

  private:
    std::byte* room(std::int64_t bytes) { return recording_.memory.take(bytes); }
    Matrix matrix(std::int64_t rows, std::int64_t cols, DType dtype);
    template <typename T>
    T* array(const std::vector<T>& values);
    const float* numbers(std::int64_t count, float scale);
    WeightView weight(std::int64_t count, std::int64_t n, std::int64_t k,
                      WeightLayout layout = WeightLayout::fragments);
    WeightView router_weight();
    void take_activations();
    void take_rows();
    void take_weights();

    ops::KeysCall keys_call() const;
    ops::AttentionCall attention_call() const;
    ops::RowNorm norm_to(const Matrix& out, const Matrix& exact) const;
    ops::Terms feed_forward(const ops::Terms& attention);
    ops::Terms mixture(const ops::Terms& attention);

    Recording& recording_;
    Shape shape_;
    CpuDevice host_{1};
    FakeKernels kernels_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<Arena> arena_;
    std::unique_ptr<OpContext> context_;
    std::deque<std::vector<float>> weights_;

    WeightView q_a_, q_, kv_a_, absorb_, up_key_, up_value_, o_, dense_up_, dense_down_, expert_up_,
        expert_down_, shared_up_, shared_down_, router_;
    const float* norm_ = nullptr;
    Matrix residual_, sums_, normed_, exact_, cos_sin_, low_, low_act_, kv_, q_room_, q_act_,
        q_absorbed_, out_latent_, out_, gate_up_, gated_, pair_gate_up_, pair_gated_, pair_out_,
        shared_out_, logits_, latent_, key_rope_;
    ops::ExpertPlan plan_{};
    mla::RaggedRows absorbed_{}, decompressed_{};
    mla::KvPages pages_{};
    std::byte* attention_plan_ = nullptr;
    std::int64_t* slot_ = nullptr;
    std::int32_t* row_of_ = nullptr;
    std::uint8_t* nonfinite_ = nullptr;
};

}  // namespace espalier::order_test
