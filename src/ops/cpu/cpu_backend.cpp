// SPDX-License-Identifier: Apache-2.0
// The CPU backend: cuts each operation into tasks over tokens and runs the kernel table of its
// variant on them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "linalg/packed.hpp"
#include "linalg/product.hpp"
#include "ops/cpu/children.hpp"
#include "ops/cpu/node_view.hpp"
#include "ops/cpu/parallel.hpp"
#include "ops/cpu/route.hpp"
#include "ops/cpu/sample.hpp"
#include "ops/kernels.hpp"
#include "ops/layer_program.hpp"
#include "ops/ops.hpp"
#include "ops/plain_layer_norm.hpp"
#include "ops/shapes.hpp"

namespace espalier::ops {
namespace {

constexpr std::int64_t kBlock =
    512;  // f32 results kept in cache until they are stored in their dtype
constexpr std::int64_t kRopeWidth = 64;

using Block = std::array<float, kBlock>;

std::byte* address(const Matrix& matrix, std::int64_t row, std::int64_t col) {
    return matrix.data +
           (row * matrix.stride + col) * static_cast<std::int64_t>(bytes_of(matrix.dtype));
}

class CpuBackend final : public Backend {
  public:
    explicit CpuBackend(CpuVariant variant) : products_(variant), kernels_(kernels_for(variant)) {}

    std::string name() const override {
        return fmt::format("cpu {}", name_of(products_.variant()));
    }

    Expected<linalg::Weight> pack(Device& device, linalg::WeightStack stack) const override {
        CHECK(device.kind() == DeviceKind::cpu, "weights packed for the CPU on {}", device.name());
        if (!stack.empty() && !stack.front().empty())
            ESPALIER_RETURN_IF_ERROR(products_.check_format(stack.front().front().format));
        return linalg::pack_panels(static_cast<CpuDevice&>(device), stack);
    }

    void embed(OpContext& context, const std::int32_t* tokens, const EmbeddingTable& table,
               const Matrix& out) const override {
        check_f32(out, "embeddings");
        check_size(out.cols, table.hidden, "embedding width");
        const BlockFacts& block = facts_of(table.block);
        const bool blocks = table.block != BlockCode::none;
        const std::int64_t row_bytes =
            blocks ? table.hidden / block.weights * std::int64_t{block.bytes}
                   : table.hidden * static_cast<std::int64_t>(bytes_of(table.dtype));
        for_rows(pool_of(context), out.rows, out.cols, [&](std::int64_t t) {
            CHECK(tokens[t] >= 0 && tokens[t] < table.vocabulary, "token {} of {}", tokens[t],
                  table.vocabulary);
            const std::byte* row = table.data + tokens[t] * row_bytes;
            if (blocks)
                widen_blocks(table.block, row, out.cols, out.row<float>(t));
            else
                kernels_.load(row, out.cols, table.dtype, out.row<float>(t));
        });
    }

    void rms_norm(OpContext& context, const Matrix& x, const float* weight, float epsilon,
                  const Matrix& out, const Matrix& exact) const override {
        check_f32(x, "rms_norm input");
        check_activation(out, "rms_norm output");
        check_size(out.cols, x.cols, "rms_norm output");
        for_rows(pool_of(context), x.rows, x.cols, [&](std::int64_t t) {
            const float* row = x.row<float>(t);
            const float mean = kernels_.sum_of_squares(row, x.cols) / static_cast<float>(x.cols);
            const float factor = 1.0f / std::sqrt(mean + epsilon);
            Block block;
            for (std::int64_t first = 0; first < x.cols; first += kBlock) {
                const std::int64_t count = std::min(kBlock, x.cols - first);
                kernels_.scale(row + first, factor, weight + first, count, block.data());
                kernels_.store(block.data(), count, out.dtype, address(out, t, first));
                if (exact.data != nullptr)
                    kernels_.store(block.data(), count, DType::f32, address(exact, t, first));
            }
        });
    }

    void product(OpContext& context, const Matrix& x, const WeightView& w, const Matrix& y,
                 Store store) const override {
        products_.product(pool_of(context), x, w, y, store);
    }
    void segment_sums(OpContext& context, const Matrix& x, const WeightView& w,
                      const Matrix& sums) const override {
        products_.segment_sums(pool_of(context), x, w, sums);
    }
    void stacked_product(OpContext& context, const Matrix& x, std::int64_t x_step,
                         const WeightView& w, const Matrix& y, std::int64_t y_step) const override {
        products_.stacked(pool_of(context), x, x_step, w, y, y_step);
    }
    void expert_product(OpContext& context, const Matrix& x, const std::int32_t* source_token,
                        const std::int32_t* indptr, const WeightView& w,
                        const Matrix& y) const override {
        products_.grouped(pool_of(context), x, source_token, indptr, w, y);
    }

    void rope_angles(OpContext& context, const std::int32_t* position, std::int64_t tokens,
                     const RopeRule& rule, const Matrix& cos_sin) const override {
        check_size(cos_sin.cols, kRopeWidth, "rope angles");
        // A sine costs about as much as 64 elements of other work.
        for_rows(pool_of(context), tokens, kRopeWidth * 64, [&](std::int64_t t) {
            float* out = cos_sin.row<float>(t);
            for (std::int64_t i = 0; i < kRopeWidth / 2; ++i) {
                const auto angle =
                    static_cast<double>(static_cast<float>(position[t]) *
                                        rule.inverse_frequency[static_cast<std::size_t>(i)]);
                out[2 * i] = static_cast<float>(std::cos(angle)) * rule.magnitude;
                out[2 * i + 1] = static_cast<float>(std::sin(angle)) * rule.magnitude;
            }
        });
    }

    void rope(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
              const Matrix& cos_sin, const Matrix& to, std::int64_t to_step) const override {
        check_activation(to, "rope to");
        check_heads(from, from_step, heads, kRopeWidth, "rope from");
        check_heads(to, to_step, heads, kRopeWidth, "rope to");
        for_rows(pool_of(context), from.rows, heads * kRopeWidth, [&](std::int64_t t) {
            const float* row = from.row<float>(t);
            std::array<float, kRopeWidth> rotated;
            for (std::int32_t h = 0; h < heads; ++h) {
                kernels_.rotate(row + h * from_step, cos_sin.row<float>(t), rotated.data());
                kernels_.store(rotated.data(), kRopeWidth, to.dtype, address(to, t, h * to_step));
            }
        });
    }

    bool scales_queries() const override { return true; }
    void scale_queries(OpContext& context, const std::int32_t* position,
                       const QueryScaling& scaling, const Matrix& queries) const override {
        check_f32(queries, "queries");
        for_rows(pool_of(context), queries.rows, queries.cols, [&](std::int64_t t) {
            const float factor = scaling.at(position[t]);
            float* row = queries.row<float>(t);
            for (std::int64_t column = 0; column < queries.cols; ++column) row[column] *= factor;
        });
    }

    void layer_norm(OpContext& context, const Matrix& x, const float* weight, const float* bias,
                    float epsilon, const Matrix& out) const override {
        check_f32(x, "layer_norm input");
        check_f32(out, "layer_norm output");
        check_size(out.cols, x.cols, "layer_norm output");
        for_rows(pool_of(context), x.rows, x.cols * 4, [&](std::int64_t t) {
            plain_layer_norm(x.row<float>(t), x.cols, weight, bias, epsilon, out.row<float>(t));
        });
    }

    void rope_halves(OpContext& context, const Matrix& from, std::int64_t from_step,
                     std::int32_t heads, const Matrix& cos_sin, const Matrix& to,
                     std::int64_t to_step) const override {
        check_activation(to, "rope to");
        check_heads(from, from_step, heads, kRopeWidth, "rope from");
        check_heads(to, to_step, heads, kRopeWidth, "rope to");
        constexpr std::int64_t kHalf = kRopeWidth / 2;
        for_rows(pool_of(context), from.rows, heads * kRopeWidth, [&](std::int64_t t) {
            std::array<float, kRopeWidth> pairs, halves;
            for (std::int32_t h = 0; h < heads; ++h) {
                const float* row = from.row<float>(t) + h * from_step;
                for (std::size_t i = 0; i < kHalf; ++i) {
                    pairs[2 * i] = row[i];
                    pairs[2 * i + 1] = row[i + kHalf];
                }
                kernels_.rotate(pairs.data(), cos_sin.row<float>(t), pairs.data());
                for (std::size_t i = 0; i < kHalf; ++i) {
                    halves[i] = pairs[2 * i];
                    halves[i + kHalf] = pairs[2 * i + 1];
                }
                kernels_.store(halves.data(), kRopeWidth, to.dtype, address(to, t, h * to_step));
            }
        });
    }

    void convert(OpContext& context, const Matrix& from, std::int64_t from_step, std::int32_t heads,
                 std::int64_t width, const Matrix& to, std::int64_t to_step) const override {
        check_activation(to, "convert to");
        check_heads(from, from_step, heads, width, "convert from");
        check_heads(to, to_step, heads, width, "convert to");
        for_rows(pool_of(context), from.rows, heads * width, [&](std::int64_t t) {
            const float* row = from.row<float>(t);
            for (std::int32_t h = 0; h < heads; ++h)
                kernels_.store(row + h * from_step, width, to.dtype, address(to, t, h * to_step));
        });
    }

    void swiglu(OpContext& context, const Matrix& gate_up, const Matrix& out) const override {
        check_activation(out, "swiglu output");
        check_size(gate_up.cols, 2 * out.cols, "gate and up");
        for_ranges(pool_of(context), out.rows, out.cols,
                   [&](std::int64_t r, std::int64_t first, std::int64_t count) {
                       const float* gate = gate_up.row<float>(r);
                       Block block;
                       for (std::int64_t at = first; at < first + count; at += kBlock) {
                           const std::int64_t some = std::min(kBlock, first + count - at);
                           kernels_.swiglu(gate + at, gate + out.cols + at, some, block.data());
                           kernels_.store(block.data(), some, out.dtype, address(out, r, at));
                       }
                   });
    }

    void route(OpContext& context, const Matrix& logits, const float* bias, const RouterRule& rule,
               const std::int32_t* row_of, const ExpertPlan& plan) const override {
        check_rule(rule, logits);
        // Choosing costs about as much as 16 plain passes over the scores.
        for_rows(pool_of(context), logits.rows, rule.experts * std::int64_t{16},
                 [&](std::int64_t t) {
                     std::int32_t* expert = plan.expert + t * rule.top_k;
                     float* weight = plan.weight + t * rule.top_k;
                     if (row_of[t] >= 0) {
                         route_token(kernels_, logits.row<float>(t), bias, rule, expert, weight);
                     } else {
                         std::fill_n(expert, rule.top_k, -1);
                         std::fill_n(weight, rule.top_k, 0.0f);
                     }
                 });
        sort_pairs(rule, logits.rows, plan);
    }

    void add_terms(OpContext& context, const Terms& terms, const Matrix& residual) const override {
        check_terms(terms, residual);
        for_ranges(pool_of(context), residual.rows, residual.cols,
                   [&](std::int64_t t, std::int64_t first, std::int64_t count) {
                       Block sum;
                       for (std::int64_t at = first; at < first + count; at += kBlock) {
                           const std::int64_t some = std::min(kBlock, first + count - at);
                           sum_terms(terms, residual.rows, t, at, some, sum.data());
                           kernels_.add(sum.data(), some, residual.row<float>(t) + at);
                       }
                   });
    }

    void gather_rows(OpContext& context, const Matrix& x, const std::int32_t* index,
                     const Matrix& out) const override {
        CHECK(x.dtype == out.dtype, "gather from {} to {}", name_of(x.dtype), name_of(out.dtype));
        check_size(out.cols, x.cols, "gathered columns");
        const std::size_t bytes = static_cast<std::size_t>(out.cols) * bytes_of(out.dtype);
        for_rows(pool_of(context), out.rows, out.cols, [&](std::int64_t g) {
            if (index[g] < 0) {
                std::memset(address(out, g, 0), 0, bytes);
            } else {
                CHECK(index[g] < x.rows, "row {} of {}", index[g], x.rows);
                std::memcpy(address(out, g, 0), address(x, index[g], 0), bytes);
            }
        });
    }

    void copy_rows(OpContext& context, const Matrix& x, const RowPairs& pairs,
                   const Matrix& out) const override {
        check_copied_rows(x, out);
        const std::size_t bytes = static_cast<std::size_t>(out.cols) * bytes_of(out.dtype);
        for_rows(pool_of(context), pairs.count, out.cols, [&](std::int64_t i) {
            if (pairs.from[i] < 0) return;
            check_pair(x, pairs, i, out);
            std::memcpy(address(out, pairs.to[i], 0), address(x, pairs.from[i], 0), bytes);
        });
    }

    void sample_nodes(OpContext& context, const Matrix& logits,
                      const SamplingBatch& batch) const override {
        ops::sample_nodes(kernels_, context, logits, batch);
    }

    void draft_children(OpContext& context, const Matrix& logits, const SamplingBatch& batch,
                        const DraftVocabulary& vocabulary, const DraftRule& rule,
                        DraftChild* children) const override {
        ops::draft_children(kernels_, context, logits, batch, vocabulary, rule, children);
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

    // Only sampling and drafting take scratch: rows live on the stack of their task.
    std::size_t scratch_bytes(std::int64_t, std::int64_t, std::int64_t vocabulary,
                              int workers) const override {
        return node_scratch_bytes(vocabulary, workers);
    }
    const LayerProgram& program() const override { return program_; }

  private:
    // sum [count]: token t's experts, then the segments' total.
    void sum_terms(const Terms& terms, std::int64_t tokens, std::int64_t t, std::int64_t first,
                   std::int64_t count, float* sum) const {
        const auto& [experts, segments] = terms;
        if (experts.rows.data == nullptr)
            return sum_segments(segments, tokens, t, first, count, sum);
        sum_experts(experts, t, first, count, sum);
        if (segments.count == 0) return;
        Block total;
        sum_segments(segments, tokens, t, first, count, total.data());
        kernels_.add(total.data(), count, sum);
    }
    void sum_segments(const SegmentSums& segments, std::int64_t tokens, std::int64_t t,
                      std::int64_t first, std::int64_t count, float* sum) const {
        std::copy_n(segments.sums.row<float>(t) + first, count, sum);
        for (std::int64_t s = 1; s < segments.count; ++s)
            kernels_.add(segments.sums.row<float>(s * tokens + t) + first, count, sum);
    }
    // Σ weight · row over token t's choices, in the plan's (ascending) order; 0 for a pad.
    void sum_experts(const ExpertRows& experts, std::int64_t t, std::int64_t first,
                     std::int64_t count, float* sum) const {
        bool begun = false;
        for (std::int64_t i = t * experts.top_k; i < (t + 1) * experts.top_k; ++i) {
            const std::int64_t row = row_of_choice(experts, i);
            if (row < 0) continue;
            const float* out = experts.rows.row<float>(row) + first;
            if (begun) {
                kernels_.add_weighted(experts.plan.weight[i], out, count, sum);
            } else {
                kernels_.weighted(experts.plan.weight[i], out, count, sum);
            }
            begun = true;
        }
        if (!begun) std::fill_n(sum, count, 0.0f);
    }

    linalg::Products products_;
    const KernelTable& kernels_;
    LayerProgram program_{*this};
};

}  // namespace

const KernelTable& kernels_for(CpuVariant variant) {
#if defined(__x86_64__)
    if (variant >= CpuVariant::avx512) return avx512_kernels();
    if (variant == CpuVariant::avx2) return avx2_kernels();
#endif
    static_cast<void>(variant);
    return portable_kernels();
}

std::unique_ptr<Backend> make_cpu_backend(CpuVariant variant) {
    return std::make_unique<CpuBackend>(variant);
}

}  // namespace espalier::ops
