// SPDX-License-Identifier: Apache-2.0
#include "draft/eagle3.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"

namespace espalier::draft {
namespace {

class Eagle3 final : public Network {
  public:
    Eagle3(std::shared_ptr<const Eagle3Weights> weights, const model::Weights& target)
        : weights_(std::move(weights)),
          embedding_(weights_->embedding ? weights_->embedding->table : target.embedding.table),
          shape_{.config = weights_->config.layer,
                 .act = weights_->layer.attention.o.view().format.input(),
                 .taps = weights_->config.taps() * weights_->config.target_hidden_size,
                 .state = weights_->config.layer.hidden_size,
                 .attention_input = 2 * weights_->config.layer.hidden_size,
                 .vocabulary = weights_->config.draft_vocab_size} {}

    const NetworkShape& shape() const override { return shape_; }
    const model::LayerWeights& layer() const override { return weights_->layer; }
    const linalg::WeightView& head() const override { return weights_->head.view(); }
    ops::DraftVocabulary vocabulary() const override {
        return {weights_->target_of.as<std::int32_t>(), weights_->draft_of.as<std::int32_t>()};
    }

    Expected<void> reserve(Device& device, std::int64_t max_tokens) override {
        const auto tokens = static_cast<std::size_t>(max_tokens);
        ESPALIER_ASSIGN_OR_RETURN(
            embedded_memory_,
            device.allocate(tokens * static_cast<std::size_t>(shape_.state) * sizeof(float)));
        ESPALIER_ASSIGN_OR_RETURN(
            taps_memory_,
            device.allocate(tokens * static_cast<std::size_t>(shape_.taps) * bytes_of(shape_.act)));
        embedded_ = Matrix::of(embedded_memory_.as<float>(), max_tokens, shape_.state);
        taps_act_ = {taps_memory_.data(), shape_.act, max_tokens, shape_.taps, shape_.taps};
        return {};
    }

    std::vector<Matrix> tap_sources(const model::Taps& taps) const override {
        std::vector<Matrix> sources;
        for (const std::int32_t layer : weights_->tap_layers) {
            const auto found = std::find(taps.layers.begin(), taps.layers.end(), layer);
            CHECK(found != taps.layers.end(), "no tap of the residual entering layer {}", layer);
            sources.push_back(taps.residual[static_cast<std::size_t>(found - taps.layers.begin())]);
        }
        return sources;
    }

    Matrix combine(const model::DecoderParts& parts, const Matrix& taps,
                   const Matrix& room) const override {
        const Matrix act = taps_act_.slice(0, taps.rows);
        const std::int64_t width = weights_->config.target_hidden_size;
        if (!weights_->taps_norm.empty())
            parts.backend.rms_norm(parts.context, taps, weights_->taps_norm.data(),
                                   parts.rule.epsilon, act, {});
        else if (weights_->tap_norms.empty())
            parts.backend.convert(parts.context, taps, 0, 1, taps.cols, act, 0);
        std::int64_t column = 0;
        for (const DeviceVector& norm : weights_->tap_norms) {
            parts.backend.rms_norm(parts.context, taps.columns(column, width), norm.data(),
                                   parts.rule.epsilon, act.columns(column, width), {});
            column += width;
        }
        parts.backend.product(parts.context, act, weights_->fc.view(), room, ops::Store::assign);
        return room;
    }

    void enter(const model::DecoderParts& parts, const std::int32_t* tokens,
               const Matrix& before) const override {
        const std::int64_t hidden = shape_.state;
        const Matrix embedded = embedded_.slice(0, before.rows);
        const Matrix input = parts.activations.attention_input.slice(0, before.rows);
        const Matrix residual = parts.activations.residual.slice(0, before.rows);
        const bool normed = weights_->config.norm_before_residual;
        parts.backend.embed(parts.context, tokens, embedding_, embedded);
        parts.backend.rms_norm(parts.context, embedded, weights_->embed_norm.data(),
                               parts.rule.epsilon, input.columns(0, hidden), {});
        parts.backend.rms_norm(parts.context, before, weights_->hidden_norm.data(),
                               parts.rule.epsilon, input.columns(hidden, hidden),
                               normed ? residual : Matrix{});
        if (!normed) parts.backend.convert(parts.context, before, 0, 1, hidden, residual, 0);
    }

    void leave(const model::DecoderParts& parts, const Matrix& after) const override {
        const model::Activations& a = parts.activations;
        const Matrix residual = a.residual.slice(0, after.rows);
        const bool normed = weights_->config.norm_output;
        parts.backend.rms_norm(parts.context, residual, weights_->norm.data(), parts.rule.epsilon,
                               a.gathered_act.slice(0, after.rows), normed ? after : Matrix{});
        if (!normed) parts.backend.convert(parts.context, residual, 0, 1, after.cols, after, 0);
    }

  private:
    std::shared_ptr<const Eagle3Weights> weights_;
    ops::EmbeddingTable embedding_;
    NetworkShape shape_;
    Buffer embedded_memory_, taps_memory_;
    Matrix embedded_;  // [T, hidden] f32
    Matrix taps_act_;  // [T, taps] act: what fc reads
};

}  // namespace

std::unique_ptr<Network> make_eagle3(std::shared_ptr<const Eagle3Weights> weights,
                                     const model::Weights& target) {
    return std::make_unique<Eagle3>(std::move(weights), target);
}

}  // namespace espalier::draft
