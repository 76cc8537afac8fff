// SPDX-License-Identifier: Apache-2.0
// The published definition of draft models in double and plain loops, from a checkpoint's f32
// tensors: DeepSeek-V3's MTP layer and EAGLE3 on an MLA layer. A text is the pairs of a token and
// the state of the token before it, the first of which is (state of 0, token 1).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "mla/types.hpp"

namespace espalier::draft::published {

using Row = std::vector<double>;

inline Row read(const checkpoint::Checkpoint& from, const std::string& name) {
    const std::optional<checkpoint::Tensor> tensor = from.stored(name);
    if (!tensor || tensor->type != checkpoint::StoredType::f32)
        throw std::runtime_error("no f32 tensor " + name);
    std::vector<float> values(tensor->bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
    return Row(values.begin(), values.end());
}

// [rows, columns], one product at a time.
struct Weight {
    Row values;
    std::size_t columns = 0;

    Weight() = default;
    Weight(const checkpoint::Checkpoint& from, const std::string& name)
        : values(read(from, name)),
          columns(static_cast<std::size_t>(from.stored(name)->shape.back())) {}
    std::span<const double> row(std::size_t index) const {
        return std::span(values).subspan(index * columns, columns);
    }
    Row operator*(const Row& x) const {
        Row out(values.size() / columns);
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = std::inner_product(x.begin(), x.end(), row(i).begin(), 0.0);
        return out;
    }
};

inline Row norm(std::span<const double> x, const Row& weight, double epsilon) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
    Row out(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = x[i] * factor * weight[i];
    return out;
}

inline void add(Row& to, const Row& row, double factor = 1) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] += factor * row[i];
}

inline Row joined(Row first, const Row& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

// Interleaved pairs of the rope columns.
inline void rotate(std::span<double> x, std::int64_t position, double theta) {
    for (std::size_t pair = 0; 2 * pair < x.size(); ++pair) {
        const double angle =
            static_cast<double>(position) *
            std::pow(theta, -2.0 * static_cast<double>(pair) / static_cast<double>(x.size()));
        const double a = x[2 * pair], b = x[2 * pair + 1];
        x[2 * pair] = a * std::cos(angle) - b * std::sin(angle);
        x[2 * pair + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
}

// A token's values for later ones: of all heads the keys' nope half and the values, and the rope
// columns that heads share.
struct Key {
    Row heads;  // [heads, nope + value]
    Row rope;
};

struct Attention {
    const checkpoint::ModelConfig& config;
    Row q_a_norm, kv_a_norm;
    Weight q_a, q_b, kv_a, kv_b, o;

    Attention(const checkpoint::Checkpoint& from, const std::string& name)
        : config(from.config()),
          q_a_norm(read(from, name + "q_a_layernorm.weight")),
          kv_a_norm(read(from, name + "kv_a_layernorm.weight")),
          q_a(from, name + "q_a_proj.weight"),
          q_b(from, name + "q_b_proj.weight"),
          kv_a(from, name + "kv_a_proj_with_mqa.weight"),
          kv_b(from, name + "kv_b_proj.weight"),
          o(from, name + "o_proj.weight") {}

    std::size_t heads() const { return static_cast<std::size_t>(config.num_attention_heads); }
    std::size_t nope() const { return static_cast<std::size_t>(config.qk_nope_head_dim); }
    std::size_t value() const { return static_cast<std::size_t>(config.v_head_dim); }

    Key key(const Row& x, std::int64_t position) const {
        Row kv = kv_a * x;
        const auto [latent, rope] =
            std::pair(std::span(kv).first(mla::kLatent), std::span(kv).last(mla::kRope));
        rotate(rope, position, config.rope_theta);
        return {kv_b * norm(latent, kv_a_norm, 1e-6), Row(rope.begin(), rope.end())};
    }

    // Over these keys, the token's own among them.
    Row attend(const Row& x, std::int64_t position, std::span<const Key* const> keys) const {
        Row q = q_b * norm(q_a * x, q_a_norm, 1e-6), out;
        const double scale = 1 / std::sqrt(static_cast<double>(nope() + mla::kRope));
        for (std::size_t head = 0; head < heads(); ++head) {
            const auto query =
                std::span(q).subspan(head * (nope() + mla::kRope)).first(nope() + mla::kRope);
            rotate(query.last(mla::kRope), position, config.rope_theta);
            Row scores;
            for (const Key* key : keys)
                scores.push_back(scale *
                                 (std::inner_product(query.begin(), query.end() - mla::kRope,
                                                     of_head(*key, head).begin(), 0.0) +
                                  std::inner_product(query.end() - mla::kRope, query.end(),
                                                     key->rope.begin(), 0.0)));
            const double largest = *std::max_element(scores.begin(), scores.end());
            Row values(value());
            double sum = 0;
            for (std::size_t c = 0; c < keys.size(); ++c) {
                const double p = std::exp(scores[c] - largest);
                sum += p;
                const auto of_key = of_head(*keys[c], head).last(value());
                for (std::size_t d = 0; d < value(); ++d) values[d] += p * of_key[d];
            }
            for (const double number : values) out.push_back(number / sum);
        }
        return o * out;
    }

  private:
    std::span<const double> of_head(const Key& key, std::size_t head) const {
        return std::span(key.heads).subspan(head * (nope() + value()), nope() + value());
    }
};

struct FeedForward {
    Weight gate, up, down;

    FeedForward(const checkpoint::Checkpoint& from, const std::string& name)
        : gate(from, name + "gate_proj.weight"),
          up(from, name + "up_proj.weight"),
          down(from, name + "down_proj.weight") {}
    Row operator()(const Row& x) const {
        Row inner = gate * x;
        const Row other = up * x;
        for (std::size_t i = 0; i < inner.size(); ++i)
            inner[i] = inner[i] / (1 + std::exp(-inner[i])) * other[i];
        return down * inner;
    }
};

// Indices of the largest values, the best first.
inline std::vector<std::size_t> best(const Row& values, std::size_t count) {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
    order.resize(count);
    return order;
}

// Sigmoid scores, corrected for the choice alone, in groups: DeepSeek-V3's.
struct Experts {
    const checkpoint::ModelConfig& config;
    Weight router;
    Row bias;
    std::vector<FeedForward> experts;
    FeedForward shared;

    Experts(const checkpoint::Checkpoint& from, const std::string& name)
        : config(from.config()),
          router(from, name + "gate.weight"),
          bias(read(from, name + "gate.e_score_correction_bias")),
          shared(from, name + "shared_experts.") {
        for (std::size_t i = 0; i < bias.size(); ++i)
            experts.emplace_back(from, name + "experts." + std::to_string(i) + ".");
    }

    Row operator()(const Row& x) const {
        Row scores = router * x, corrected;
        for (double& score : scores) score = 1 / (1 + std::exp(-score));
        for (std::size_t i = 0; i < scores.size(); ++i) corrected.push_back(scores[i] + bias[i]);
        const auto groups = static_cast<std::size_t>(config.n_group);
        const std::size_t size = scores.size() / groups;
        Row of_group;
        for (std::size_t g = 0; g < groups; ++g) {
            Row members(corrected.begin() + static_cast<std::ptrdiff_t>(g * size),
                        corrected.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
            std::sort(members.rbegin(), members.rend());
            of_group.push_back(members[0] + members[1]);
        }
        Row candidates(scores.size(), -std::numeric_limits<double>::infinity());
        for (const std::size_t g : best(of_group, static_cast<std::size_t>(config.topk_group)))
            std::copy_n(corrected.begin() + static_cast<std::ptrdiff_t>(g * size), size,
                        candidates.begin() + static_cast<std::ptrdiff_t>(g * size));
        const auto chosen = best(candidates, static_cast<std::size_t>(config.num_experts_per_tok));
        double sum = 1e-20;
        for (const std::size_t e : chosen) sum += scores[e];
        Row out = shared(x);
        for (const std::size_t e : chosen)
            add(out, experts[e](x), scores[e] / sum * config.routed_scaling_factor);
        return out;
    }
};

// One draft model. `taps`: what it is told of a token of the target; `state`: what its next token
// is drafted from.
class Draft {
  public:
    virtual ~Draft() = default;
    virtual Row state_of(const Row& taps) const = 0;
    struct Entered {
        Row residual, input;  // of attention
    };
    virtual Entered enter(std::int32_t token, const Row& before) const = 0;
    virtual Row mlp(const Row& x) const = 0;
    struct Left {
        Row logits, state;  // logits by the target's tokens; -inf: the draft has no such token
    };
    virtual Left leave(const Row& residual) const = 0;

    Key key(std::int32_t token, const Row& before, std::int64_t position) const {
        return attention_.key(enter(token, before).input, position);
    }
    // The token behind these keys, of which the last is its own.
    Left run(std::int32_t token, const Row& before, std::int64_t position,
             std::span<const Key* const> keys) const {
        Entered entered = enter(token, before);
        add(entered.residual, attention_.attend(entered.input, position, keys));
        add(entered.residual, mlp(norm(entered.residual, post_norm_, epsilon())));
        return leave(entered.residual);
    }

  protected:
    Draft(const checkpoint::Checkpoint& from, const std::string& layer)
        : config_(from.config()),
          attention_(from, layer + "self_attn."),
          post_norm_(read(from, layer + "post_attention_layernorm.weight")) {}
    double epsilon() const { return config_.rms_norm_eps; }

    const checkpoint::ModelConfig& config_;

  private:
    Attention attention_;
    Row post_norm_;
};

// x = eh_proj([enorm(embedding); hnorm(state before)]); the state is what shared_head.norm gives.
class Mtp final : public Draft {
  public:
    explicit Mtp(const checkpoint::Checkpoint& target) : Mtp(target, name_of(target)) {}

    Row state_of(const Row& taps) const override { return taps; }
    Entered enter(std::int32_t token, const Row& before) const override {
        const Row x = eh_proj_ * joined(norm(embedding_.row(static_cast<std::size_t>(token)),
                                             embed_norm_, epsilon()),
                                        norm(before, hidden_norm_, epsilon()));
        return {x, norm(x, input_norm_, epsilon())};
    }
    Row mlp(const Row& x) const override { return experts_(x); }
    Left leave(const Row& residual) const override {
        Row state = norm(residual, head_norm_, epsilon());
        return {head_ * state, state};
    }

  private:
    static std::string name_of(const checkpoint::Checkpoint& target) {
        return "model.layers." + std::to_string(target.config().num_hidden_layers) + ".";
    }
    Mtp(const checkpoint::Checkpoint& target, const std::string& name)
        : Draft(target, name),
          embedding_(target, "model.embed_tokens.weight"),
          head_(target, "lm_head.weight"),
          eh_proj_(target, name + "eh_proj.weight"),
          embed_norm_(read(target, name + "enorm.weight")),
          hidden_norm_(read(target, name + "hnorm.weight")),
          input_norm_(read(target, name + "input_layernorm.weight")),
          head_norm_(read(target, name + "shared_head.norm.weight")),
          experts_(target, name + "mlp.") {}

    Weight embedding_, head_, eh_proj_;
    Row embed_norm_, hidden_norm_, input_norm_, head_norm_;
    Experts experts_;
};

// State: fc over the taps, then what the layer leaves. Attention reads [norm(embedding); norm(state
// before)], and the residual is the state before.
class Eagle3 final : public Draft {
  public:
    Eagle3(const checkpoint::Checkpoint& draft, const checkpoint::Checkpoint& target)
        : Draft(draft, kLayer),
          embedding_(target, "model.embed_tokens.weight"),
          head_(draft, "lm_head.weight"),
          fc_(draft, "fc.weight"),
          embed_norm_(read(draft, kLayer + "input_layernorm.weight")),
          hidden_norm_(read(draft, kLayer + "hidden_norm.weight")),
          norm_(read(draft, "norm.weight")),
          feed_forward_(draft, kLayer + "mlp.") {
        const checkpoint::Tensor offsets = *draft.stored("d2t");
        offsets_.resize(head_.values.size() / head_.columns);
        std::memcpy(offsets_.data(), offsets.bytes.data(), offsets.bytes.size());
    }

    Row state_of(const Row& taps) const override { return fc_ * taps; }
    Entered enter(std::int32_t token, const Row& before) const override {
        return {before, joined(norm(embedding_.row(static_cast<std::size_t>(token)), embed_norm_,
                                    epsilon()),
                               norm(before, hidden_norm_, epsilon()))};
    }
    Row mlp(const Row& x) const override { return feed_forward_(x); }
    Left leave(const Row& residual) const override {
        const Row logits = head_ * norm(residual, norm_, epsilon());
        Row of_target(static_cast<std::size_t>(config_.vocab_size),
                      -std::numeric_limits<double>::infinity());
        for (std::size_t i = 0; i < logits.size(); ++i)
            of_target[i + static_cast<std::size_t>(offsets_[i])] = logits[i];
        return {of_target, residual};
    }

  private:
    inline static const std::string kLayer = "midlayer.";
    Weight embedding_, head_, fc_;
    Row embed_norm_, hidden_norm_, norm_;
    FeedForward feed_forward_;
    std::vector<std::int64_t> offsets_;
};

}  // namespace espalier::draft::published
