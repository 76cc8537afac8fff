// SPDX-License-Identifier: Apache-2.0
#include "draft/mtp.hpp"

#include "base/check.hpp"

namespace espalier::draft {
namespace {

class Mtp final : public Network {
  public:
    Mtp(const checkpoint::ModelConfig& config, const model::Weights& target)
        : weights_(target.mtp.front()),
          embedding_(weights_.embedding ? weights_.embedding->table : target.embedding.table),
          head_(weights_.head ? weights_.head->view() : target.head.view()),
          shape_{.config = config,
                 .act = target.format.input(),
                 .taps = config.hidden_size,
                 .state = config.hidden_size,
                 .attention_input = config.hidden_size,
                 .vocabulary = config.vocab_size,
                 .shard = target.shard} {}

    std::string_view name() const override { return "mtp"; }
    const NetworkShape& shape() const override { return shape_; }
    const model::LayerWeights& layer() const override { return weights_.layer; }
    const linalg::WeightView& head() const override { return head_; }

    Expected<void> reserve(Device& device, std::int64_t max_tokens) override {
        const std::int64_t hidden = shape_.state;
        const auto elements = static_cast<std::size_t>(max_tokens * hidden);
        ESPALIER_ASSIGN_OR_RETURN(embedded_memory_, device.allocate(elements * sizeof(float)));
        ESPALIER_ASSIGN_OR_RETURN(joined_memory_,
                                  device.allocate(2 * elements * bytes_of(shape_.act)));
        embedded_ = Matrix::of(embedded_memory_.as<float>(), max_tokens, hidden);
        joined_ = {joined_memory_.data(), shape_.act, max_tokens, 2 * hidden, 2 * hidden};
        return {};
    }

    std::vector<Matrix> tap_sources(const model::Taps& taps) const override {
        CHECK(taps.final_state.data != nullptr, "MTP without the target's final state");
        return {taps.final_state};
    }

    Matrix combine(const model::DecoderParts&, const Matrix& taps, const Matrix&) const override {
        return taps;
    }

    void enter(const model::DecoderParts& parts, const std::int32_t* tokens,
               const Matrix& before) const override {
        const std::int64_t hidden = shape_.state;
        const Matrix embedded = embedded_.slice(0, before.rows);
        const Matrix joined = joined_.slice(0, before.rows);
        parts.backend.embed(parts.context, tokens, embedding_, embedded);
        parts.backend.rms_norm(parts.context, embedded, weights_.embed_norm.data(),
                               parts.rule.epsilon, joined.columns(0, hidden), {});
        parts.backend.rms_norm(parts.context, before, weights_.hidden_norm.data(),
                               parts.rule.epsilon, joined.columns(hidden, hidden), {});
        parts.backend.product(parts.context, joined, weights_.eh_proj.view(),
                              parts.activations.residual.slice(0, before.rows), ops::Store::assign);
    }

    void leave(const model::DecoderParts& parts, const Matrix& after) const override {
        const model::Activations& a = parts.activations;
        parts.backend.rms_norm(parts.context, a.residual.slice(0, after.rows),
                               weights_.head_norm.data(), parts.rule.epsilon,
                               a.gathered_act.slice(0, after.rows), after);
    }

  private:
    const model::MtpWeights& weights_;
    ops::EmbeddingTable embedding_;
    linalg::WeightView head_;
    NetworkShape shape_;
    Buffer embedded_memory_, joined_memory_;
    Matrix embedded_;  // [T, hidden] f32
    Matrix joined_;    // [T, 2·hidden] act
};

}  // namespace

std::unique_ptr<Network> make_mtp(const checkpoint::ModelConfig& config,
                                  const model::Weights& target) {
    CHECK(!target.mtp.empty(), "a target without an MTP layer");
    return std::make_unique<Mtp>(config, target);
}

}  // namespace espalier::draft
