// SPDX-License-Identifier: Apache-2.0
// Every operation in plain loops, sums in double: what the fast versions are compared with. Where
// an operation makes a discrete choice (router, sampling) it shares the scores' definition with
// them, so that the choice must be the same.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/portable_math.hpp"
#include "linalg/rows.hpp"
#include "ops/layer_program.hpp"
#include "ops/ops.hpp"
#include "ops/plain_layer_norm.hpp"
#include "ops/reference_product.hpp"
#include "ops/reference_sampling.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

void put(const Matrix& matrix, std::int64_t row, std::int64_t col, double value) {
    const auto rounded = static_cast<float>(value);
    switch (matrix.dtype) {
        case DType::f32:
            matrix.row<float>(row)[col] = rounded;
            return;
        case DType::f16:
            matrix.row<Fp16>(row)[col] = to_fp16(rounded);
            return;
        case DType::bf16:
            matrix.row<Bf16>(row)[col] = to_bf16(rounded);
            return;
        case DType::e4m3:
            break;
    }
    CHECK(false, "no operation writes e4m3");
}

float table_value(const EmbeddingTable& table, std::int64_t index) {
    const std::byte* at = table.data + index * static_cast<std::int64_t>(bytes_of(table.dtype));
    if (table.dtype == DType::f32) {
        float value;
        std::memcpy(&value, at, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return table.dtype == DType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
}

// Scores of one token. Softmax sums in double by ascending expert, then rounds once.
std::vector<float> router_scores(const float* logits, const RouterRule& rule) {
    const auto experts = static_cast<std::size_t>(rule.experts);
    std::vector<float> scores(experts);
    if (rule.score == RouterScore::sigmoid) {
        for (std::size_t e = 0; e < experts; ++e) scores[e] = portable_sigmoid(logits[e]);
        return scores;
    }
    float maximum = -std::numeric_limits<float>::infinity();
    for (std::size_t e = 0; e < experts; ++e) maximum = std::max(maximum, logits[e]);
    double sum = 0.0;
    for (std::size_t e = 0; e < experts; ++e) sum += scores[e] = portable_exp(logits[e] - maximum);
    for (std::size_t e = 0; e < experts; ++e) scores[e] /= static_cast<float>(sum);
    return scores;
}

// Index of the largest value that is still open; ties to the lower index.
std::size_t take_largest(const std::vector<float>& values, std::vector<bool>& open) {
    std::size_t best = values.size();
    for (std::size_t i = 0; i < values.size(); ++i)
        if (open[i] && (best == values.size() || values[i] > values[best])) best = i;
    open[best] = false;
    return best;
}

float group_score(const std::vector<float>& choice, std::size_t first, std::size_t count,
                  GroupScore rule) {
    std::vector<float> members(choice.begin() + static_cast<std::ptrdiff_t>(first),
                               choice.begin() + static_cast<std::ptrdiff_t>(first + count));
    std::sort(members.begin(), members.end(), std::greater<>());
    return rule == GroupScore::maximum || count == 1 ? members[0] : members[0] + members[1];
}

// The chosen experts of one token, ascending.
std::vector<std::size_t> choose_experts(const std::vector<float>& choice, const RouterRule& rule) {
    std::vector<bool> open(choice.size(), true);
    if (rule.group_score != GroupScore::none) {
        const auto groups = static_cast<std::size_t>(rule.groups);
        const std::size_t size = choice.size() / groups;
        std::vector<float> group_scores;
        for (std::size_t g = 0; g < groups; ++g)
            group_scores.push_back(group_score(choice, g * size, size, rule.group_score));
        std::vector<bool> group_open(groups, true);
        for (std::int32_t i = 0; i < rule.top_groups; ++i) take_largest(group_scores, group_open);
        for (std::size_t e = 0; e < choice.size(); ++e) open[e] = !group_open[e / size];
    }
    std::vector<std::size_t> chosen;
    for (std::int32_t i = 0; i < rule.top_k; ++i) chosen.push_back(take_largest(choice, open));
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

void route_token(const float* logits, const float* bias, const RouterRule& rule,
                 std::int32_t* expert, float* weight) {
    const std::vector<float> scores = router_scores(logits, rule);
    std::vector<float> choice = scores;
    bool nan = false;
    for (std::size_t e = 0; e < choice.size(); ++e) {
        if (bias != nullptr) choice[e] += bias[e];
        nan = nan || std::isnan(choice[e]);
    }
    if (nan) {
        for (std::int32_t i = 0; i < rule.top_k; ++i) {
            expert[i] = i;
            weight[i] = std::numeric_limits<float>::quiet_NaN();
        }
        return;
    }
    const std::vector<std::size_t> chosen = choose_experts(choice, rule);
    float sum = 0.0f;
    for (const std::size_t e : chosen) sum += scores[e];
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        expert[i] = static_cast<std::int32_t>(chosen[i]);
        weight[i] = rule.normalise ? scores[chosen[i]] / (sum + 1e-20f) : scores[chosen[i]];
        weight[i] *= rule.scaling;
    }
}

// Sum of the terms for column d of token t.
double sum_terms(const Terms& terms, const Matrix& residual, std::int64_t t, std::int64_t d) {
    const auto& [experts, segments] = terms;
    double sum = 0.0, total = 0.0;
    const std::int64_t choices = experts.rows.data != nullptr ? experts.top_k : 0;
    for (std::int64_t i = t * choices; i < (t + 1) * choices; ++i)
        if (const std::int64_t row = row_of_choice(experts, i); row >= 0)
            sum += static_cast<double>(experts.plan.weight[i]) *
                   static_cast<double>(experts.rows.row<float>(row)[d]);
    for (std::int32_t s = 0; s < segments.count; ++s)
        total += static_cast<double>(segments.sums.row<float>(s * residual.rows + t)[d]);
    return sum + total;
}

class ReferenceBackend final : public Backend {
  public:
    std::string name() const override { return "reference"; }

    Expected<linalg::Weight> pack(Device& device, linalg::WeightStack stack) const override {
        return linalg::pack_rows(device, stack);
    }

    void embed(OpContext&, const std::int32_t* tokens, const EmbeddingTable& table,
               const Matrix& out) const override {
        check_size(out.cols, table.hidden, "embedding width");
        for (std::int64_t t = 0; t < out.rows; ++t) {
            CHECK(tokens[t] >= 0 && tokens[t] < table.vocabulary, "token {} of {}", tokens[t],
                  table.vocabulary);
            if (const BlockFacts& block = facts_of(table.block); table.block != BlockCode::none) {
                const std::int64_t row_bytes = table.hidden / block.weights * block.bytes;
                widen_blocks(table.block, table.data + tokens[t] * row_bytes, out.cols,
                             out.row<float>(t));
                continue;
            }
            for (std::int64_t d = 0; d < out.cols; ++d)
                out.row<float>(t)[d] = table_value(table, tokens[t] * table.hidden + d);
        }
    }

    void rms_norm(OpContext&, const Matrix& x, const float* weight, float epsilon,
                  const Matrix& out, const Matrix& exact) const override {
        for (std::int64_t t = 0; t < x.rows; ++t) {
            double sum = 0.0;
            for (std::int64_t d = 0; d < x.cols; ++d) {
                const double value = x.row<float>(t)[d];
                sum += value * value;
            }
            const double factor =
                1.0 / std::sqrt(sum / static_cast<double>(x.cols) + static_cast<double>(epsilon));
            for (std::int64_t d = 0; d < x.cols; ++d) {
                const double value = x.row<float>(t)[d] * factor * weight[d];
                put(out, t, d, value);
                if (exact.data != nullptr) put(exact, t, d, value);
            }
        }
    }

    void product(OpContext&, const Matrix& x, const WeightView& w, const Matrix& y,
                 Store store) const override {
        check_size(x.rows, y.rows, "rows of a product");
        reference_product(x, w, y, store);
    }
    void segment_sums(OpContext&, const Matrix& x, const WeightView& w,
                      const Matrix& sums) const override {
        reference_segment_sums(x, w, sums);
    }
    void stacked_product(OpContext&, const Matrix& x, std::int64_t x_step, const WeightView& w,
                         const Matrix& y, std::int64_t y_step) const override {
        for (std::int64_t head = 0; head < w.count; ++head)
            reference_product(x.columns(head * x_step, w.k), w.at(head),
                              y.columns(head * y_step, w.n), Store::assign);
    }
    void expert_product(OpContext&, const Matrix& x, const std::int32_t* source_token,
                        const std::int32_t* indptr, const WeightView& w,
                        const Matrix& y) const override {
        for (std::int64_t expert = 0; expert < w.count; ++expert)
            for (std::int64_t pair = indptr[expert]; pair < indptr[expert + 1]; ++pair)
                reference_product(x.slice(source_token == nullptr ? pair : source_token[pair], 1),
                                  w.at(expert), y.slice(pair, 1), Store::assign);
    }

    void rope_angles(OpContext&, const std::int32_t* position, std::int64_t tokens,
                     const RopeRule& rule, const Matrix& cos_sin) const override {
        for (std::int64_t t = 0; t < tokens; ++t) {
            for (std::int64_t i = 0; i < 32; ++i) {
                const float angle = static_cast<float>(position[t]) *
                                    rule.inverse_frequency[static_cast<std::size_t>(i)];
                const auto wide = static_cast<double>(angle);
                cos_sin.row<float>(t)[2 * i] = static_cast<float>(std::cos(wide)) * rule.magnitude;
                cos_sin.row<float>(t)[2 * i + 1] =
                    static_cast<float>(std::sin(wide)) * rule.magnitude;
            }
        }
    }

    void rope(OpContext&, const Matrix& from, std::int64_t from_step, std::int32_t heads,
              const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) const override {
        check_heads(from, from_step, heads, 64, "rope from");
        check_heads(to, to_step, heads, 64, "rope to");
        for (std::int64_t t = 0; t < from.rows; ++t) {
            for (std::int32_t h = 0; h < heads; ++h) {
                for (std::int64_t i = 0; i < 32; ++i) {
                    const double a = from.row<float>(t)[h * from_step + 2 * i];
                    const double b = from.row<float>(t)[h * from_step + 2 * i + 1];
                    const double cosine = cos_sin.row<float>(t)[2 * i];
                    const double sine = cos_sin.row<float>(t)[2 * i + 1];
                    put(to, t, h * to_step + 2 * i, a * cosine - b * sine);
                    put(to, t, h * to_step + 2 * i + 1, a * sine + b * cosine);
                }
            }
        }
    }

    bool scales_queries() const override { return true; }
    void scale_queries(OpContext&, const std::int32_t* position, const QueryScaling& scaling,
                       const Matrix& queries) const override {
        check_f32(queries, "queries");
        for (std::int64_t t = 0; t < queries.rows; ++t)
            for (std::int64_t column = 0; column < queries.cols; ++column)
                queries.row<float>(t)[column] *= scaling.at(position[t]);
    }

    void layer_norm(OpContext&, const Matrix& x, const float* weight, const float* bias,
                    float epsilon, const Matrix& out) const override {
        for (std::int64_t t = 0; t < x.rows; ++t)
            plain_layer_norm(x.row<float>(t), x.cols, weight, bias, epsilon, out.row<float>(t));
    }

    void rope_halves(OpContext&, const Matrix& from, std::int64_t from_step, std::int32_t heads,
                     const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) const override {
        check_heads(from, from_step, heads, 64, "rope from");
        check_heads(to, to_step, heads, 64, "rope to");
        for (std::int64_t t = 0; t < from.rows; ++t) {
            for (std::int32_t h = 0; h < heads; ++h) {
                for (std::int64_t i = 0; i < 32; ++i) {
                    const double a = from.row<float>(t)[h * from_step + i];
                    const double b = from.row<float>(t)[h * from_step + 32 + i];
                    const double cosine = cos_sin.row<float>(t)[2 * i];
                    const double sine = cos_sin.row<float>(t)[2 * i + 1];
                    put(to, t, h * to_step + i, a * cosine - b * sine);
                    put(to, t, h * to_step + 32 + i, a * sine + b * cosine);
                }
            }
        }
    }

    void convert(OpContext&, const Matrix& from, std::int64_t from_step, std::int32_t heads,
                 std::int64_t width, const Matrix& to, std::int64_t to_step) const override {
        check_heads(from, from_step, heads, width, "convert from");
        check_heads(to, to_step, heads, width, "convert to");
        for (std::int64_t t = 0; t < from.rows; ++t)
            for (std::int32_t h = 0; h < heads; ++h)
                for (std::int64_t i = 0; i < width; ++i)
                    put(to, t, h * to_step + i,
                        static_cast<double>(from.row<float>(t)[h * from_step + i]));
    }

    void swiglu(OpContext&, const Matrix& gate_up, const Matrix& out) const override {
        check_size(gate_up.cols, 2 * out.cols, "gate and up");
        for (std::int64_t r = 0; r < out.rows; ++r) {
            for (std::int64_t i = 0; i < out.cols; ++i) {
                const double gate = gate_up.row<float>(r)[i];
                const double up = gate_up.row<float>(r)[out.cols + i];
                put(out, r, i, gate / (1.0 + std::exp(-gate)) * up);
            }
        }
    }

    void route(OpContext&, const Matrix& logits, const float* bias, const RouterRule& rule,
               const std::int32_t* row_of, const ExpertPlan& plan) const override {
        check_rule(rule, logits);
        for (std::int64_t t = 0; t < logits.rows; ++t) {
            const std::int64_t at = t * rule.top_k;
            std::fill_n(plan.expert + at, rule.top_k, -1);
            std::fill_n(plan.weight + at, rule.top_k, 0.0f);
            std::fill_n(plan.pair_of + at, rule.top_k, -1);
            if (row_of[t] >= 0)
                route_token(logits.row<float>(t), bias, rule, plan.expert + at, plan.weight + at);
        }
        std::int32_t pairs = 0;
        for (std::int32_t e = 0; e < rule.experts; ++e) {
            plan.indptr[e] = pairs;
            for (std::int64_t i = 0; i < logits.rows * rule.top_k; ++i) {
                if (plan.expert[i] != e) continue;
                plan.source_token[pairs] = static_cast<std::int32_t>(i / rule.top_k);
                plan.pair_of[i] = pairs++;
            }
        }
        plan.indptr[rule.experts] = pairs;
    }

    void add_terms(OpContext&, const Terms& terms, const Matrix& residual) const override {
        check_terms(terms, residual);
        for (std::int64_t t = 0; t < residual.rows; ++t)
            for (std::int64_t d = 0; d < residual.cols; ++d)
                residual.row<float>(t)[d] += static_cast<float>(sum_terms(terms, residual, t, d));
    }

    void gather_rows(OpContext&, const Matrix& x, const std::int32_t* index,
                     const Matrix& out) const override {
        CHECK(x.dtype == out.dtype, "gather from {} to {}", name_of(x.dtype), name_of(out.dtype));
        const std::size_t element = bytes_of(x.dtype);
        for (std::int64_t g = 0; g < out.rows; ++g) {
            std::byte* to = out.data + g * out.stride * static_cast<std::int64_t>(element);
            const std::size_t bytes = static_cast<std::size_t>(out.cols) * element;
            if (index[g] < 0) {
                std::memset(to, 0, bytes);
            } else {
                CHECK(index[g] < x.rows, "row {} of {}", index[g], x.rows);
                std::memcpy(to, x.data + index[g] * x.stride * static_cast<std::int64_t>(element),
                            bytes);
            }
        }
    }

    void copy_rows(OpContext&, const Matrix& x, const RowPairs& pairs,
                   const Matrix& out) const override {
        check_copied_rows(x, out);
        const auto element = static_cast<std::int64_t>(bytes_of(x.dtype));
        for (std::int64_t i = 0; i < pairs.count; ++i) {
            if (pairs.from[i] < 0) continue;
            check_pair(x, pairs, i, out);
            std::memcpy(out.data + pairs.to[i] * out.stride * element,
                        x.data + pairs.from[i] * x.stride * element,
                        static_cast<std::size_t>(out.cols * element));
        }
    }

    void sample_nodes(OpContext&, const Matrix& logits, const SamplingBatch& batch) const override {
        check_sampling(logits, batch);
        check_size(logits.cols, batch.vocabulary, "logits");
        apply_count_updates(batch);
        for (std::int64_t g = 0; g < logits.rows; ++g)
            batch.draws[g] = reference_draw(logits.row<float>(g), logits.cols, node_of(batch, g),
                                            alternatives_of(batch, g));
    }

    void draft_children(OpContext&, const Matrix& logits, const SamplingBatch& batch,
                        const DraftVocabulary& vocabulary, const DraftRule& rule,
                        DraftChild* children) const override {
        check_draft(logits, batch, vocabulary, rule);
        apply_count_updates(batch);
        const auto width = static_cast<std::size_t>(rule.width);
        for (std::int64_t g = 0; g < logits.rows; ++g)
            reference_children({logits.row<float>(g), static_cast<std::size_t>(logits.cols)},
                               batch.vocabulary, vocabulary.target_of, node_of(batch, g),
                               rule.coupled, {children + g * rule.width, width});
    }

    void grow_trees(OpContext&, const DraftGrowth& growth,
                    const FoundChildren& found) const override {
        check_growth(found);
        ops::grow_trees(growth, found);
    }
    void lay_frontiers(OpContext&, const DraftGrowth& growth, const FrontierBatch& batch,
                       const FrontierDraws& draws) const override {
        check_frontiers(batch, draws);
        ops::lay_frontiers(growth, batch, draws);
    }

    std::size_t scratch_bytes(std::int64_t, std::int64_t, std::int64_t, int) const override {
        return 0;
    }
    const LayerProgram& program() const override { return program_; }

  private:
    LayerProgram program_{*this};
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace espalier::ops
