// SPDX-License-Identifier: Apache-2.0
// From the residual to the experts' lists in one kernel or two: the bits of the operations it is
// made of, which other tests hold to the reference, whatever the number of tokens, replayed as a
// graph too.
#include <fmt/format.h>

#include <array>
#include <limits>
#include <optional>
#include <random>
#include <span>

#include "ops/cuda/gpu.hpp"
#include "ops/cuda/joined.hpp"
#include "ops/cuda/undeclared.hpp"
#include "ops/layer_program.hpp"
#include "ops/support.hpp"

namespace espalier::ops {
namespace {

struct Shape {
    std::int64_t cols;
    RouterRule rule;
    bool bias;
};

// The weights of a layer, whose logits are about `spread` apart.
struct Layer {
    Layer(Gpu& gpu, std::uint32_t seed, const Shape& shape, float spread = 1.0f)
        : rule(shape.rule),
          cols(shape.cols),
          norm(gpu, values(seed, 0, 1, cols)),
          bias(gpu, values(seed + 1, 0, 1, shape.rule.experts)),
          router(pack(gpu, values(seed + 2, 0, shape.rule.experts, cols), spread)),
          biased(shape.bias) {}

    linalg::Weight pack(Gpu& gpu, std::vector<float> stored, float spread) const {
        for (float& value : stored) value *= spread / std::sqrt(static_cast<float>(cols));
        linalg::WeightSource source;
        source.data = reinterpret_cast<const std::byte*>(stored.data());
        source.format = {.code = WeightCode::f32};
        source.n = rule.experts;
        source.k = source.row_stride = cols;
        const std::span<const linalg::WeightSource> one(&source, 1);
        return must(gpu.backend->pack(*gpu.device, linalg::WeightStack(&one, 1)));
    }

    RouterRule rule;
    std::int64_t cols;
    OnGpu<float> norm, bias;
    linalg::Weight router;
    bool biased;
};

// Arrays that the operation reads and writes.
struct Step {
    Step(Gpu& gpu, const Layer& layer, std::int64_t tokens, std::uint32_t seed,
         std::vector<std::int32_t> rows)
        : rows_(tokens),
          partial(gpu, hostile(values(seed, 0, tokens, layer.cols), rows)),
          residual(gpu, values(seed + 1, 0, tokens, layer.cols)),
          exact(gpu, room<float>(tokens * layer.cols)),
          logits(gpu, room<float>(tokens * layer.rule.experts)),
          weight(gpu, room<float>(tokens * layer.rule.top_k)),
          out(gpu, std::vector<Bf16>(static_cast<std::size_t>(tokens * layer.cols), Bf16{77})),
          row_of(gpu, rows),
          expert(gpu, room<std::int32_t>(tokens * layer.rule.top_k)),
          indptr(gpu, room<std::int32_t>(layer.rule.experts + 1)),
          source(gpu, room<std::int32_t>(tokens * layer.rule.top_k)),
          pair_of(gpu, room<std::int32_t>(tokens * layer.rule.top_k)),
          arrived(gpu, {0u}) {}

    void run(Gpu& gpu, Layer& layer, bool apart) {
        const RowNorm norm{layer.norm.data(), 1e-6f, out.matrix(rows_, layer.cols),
                           exact.matrix(rows_, layer.cols)};
        const RouterCall router{
            .w = layer.router.view(),
            .logits = logits.matrix(rows_, layer.rule.experts),
            .bias = layer.biased ? layer.bias.data() : nullptr,
            .rule = layer.rule,
            .row_of = row_of.data(),
            .plan = {expert.data(), weight.data(), indptr.data(), source.data(), pair_of.data()}};
        const Matrix part = partial.matrix(rows_, layer.cols);
        const Matrix sum = residual.matrix(rows_, layer.cols);
        if (!apart)
            return cuda::sum_norm_route(gpu.context, part, sum, norm, router, arrived.data());
        LayerProgram(*gpu.backend).add(gpu.context, {.segments = {part, 1}}, sum, {norm, &router});
    }

    // All that launches write, and what they only read.
    std::vector<MemoryRange> memory() {
        const auto of = [](auto& values) {
            return range_of(values.data(), std::ssize(values.values()));
        };
        return {of(partial), of(residual), of(exact),  of(logits), of(weight),  of(out),
                of(row_of),  of(expert),   of(indptr), of(source), of(pair_of), of(arrived)};
    }

    // True if an operation behind may read the norm before the last kernel has ended.
    bool lets_its_norm_be_read(Gpu& gpu, Layer& layer) {
        const LaunchNeeds needs{
            .name = "behind", .reads = {range_of(out.matrix(rows_, layer.cols))}, .early = true};
        return gpu.context.order.launch(needs).early;
    }

    void expect_same(const Step& other, const std::string& what) const {
        const auto same = [&](const auto& a, const auto& b, const char* name) {
            const auto one = a.values(), two = b.values();
            EXPECT_TRUE(same_bits(one.data(), two.data(), std::ssize(one))) << what << ": " << name;
        };
        same(residual, other.residual, "residual");
        same(out, other.out, "norm");
        same(exact, other.exact, "exact norm");
        same(logits, other.logits, "logits");
        same(expert, other.expert, "experts");
        same(weight, other.weight, "weights");
        same(indptr, other.indptr, "indptr");
        same(source, other.source, "source tokens");
        same(pair_of, other.pair_of, "pairs");
    }

  private:
    template <typename T>
    static std::vector<T> room(std::int64_t count) {
        return std::vector<T>(static_cast<std::size_t>(count), T{77});
    }
    // Every token of row 2 has a NaN.
    static std::vector<float> hostile(std::vector<float> made,
                                      const std::vector<std::int32_t>& rows) {
        const std::size_t cols = made.size() / rows.size();
        for (std::size_t t = 0; t < rows.size(); ++t)
            if (rows[t] == 2) made[t * cols + cols / 2] = std::numeric_limits<float>::quiet_NaN();
        return made;
    }

    std::int64_t rows_;

  public:
    OnGpu<float> partial, residual, exact, logits, weight;
    OnGpu<Bf16> out;
    OnGpu<std::int32_t> row_of, expert, indptr, source, pair_of;
    OnGpu<std::uint32_t> arrived;  // where the kernel's blocks count
};

RouterRule rule_of(RouterScore score, std::int32_t experts, std::int32_t top_k) {
    RouterRule rule;
    rule.score = score;
    rule.experts = experts;
    rule.top_k = top_k;
    rule.scaling = 2.5f;
    return rule;
}

RouterRule grouped(RouterRule rule, GroupScore score, std::int32_t groups, std::int32_t kept) {
    rule.group_score = score;
    rule.groups = groups;
    rule.top_groups = kept;
    rule.normalise = true;
    return rule;
}

const auto kSoftmax = RouterScore::softmax;
const auto kSigmoid = RouterScore::sigmoid;

// The published models' and others: rows that end inside a round of 256 columns, that are no fours,
// that are longer than a round of loads; one expert a block and several, the last block's fewer.
const std::array kShapes = {
    Shape{2048, rule_of(kSoftmax, 64, 6), false},
    Shape{7168, grouped(rule_of(kSigmoid, 256, 8), GroupScore::top_two_sum, 8, 4), true},
    Shape{7168, rule_of(kSigmoid, 384, 8), true},
    Shape{5120, grouped(rule_of(kSoftmax, 160, 6), GroupScore::maximum, 8, 3), false},
    Shape{2048, grouped(rule_of(kSigmoid, 64, 4), GroupScore::top_two_sum, 1, 1), true},
    Shape{512, rule_of(kSoftmax, 8, 3), true},
    Shape{4, rule_of(kSoftmax, 1, 1), false},
    Shape{260, rule_of(kSigmoid, 33, 33), true},
    Shape{1032, grouped(rule_of(kSoftmax, 129, 2), GroupScore::maximum, 3, 1), true},
    Shape{2050, rule_of(kSoftmax, 64, 6), false},
    Shape{2304, grouped(rule_of(kSigmoid, 512, 9), GroupScore::top_two_sum, 16, 2), false},
    Shape{7424, rule_of(kSoftmax, 1000, 64), true},
};

std::vector<std::int32_t> random_rows(std::mt19937& random, std::int64_t tokens) {
    std::vector<std::int32_t> rows;  // a quarter are pads, a quarter hold NaN
    for (std::int64_t t = 0; t < tokens; ++t)
        rows.push_back(static_cast<std::int32_t>(random() % 4) - 1);
    return rows;
}

TEST(GpuNormRoute, HasTheBitsOfItsParts) {
    Gpu gpu;
    std::mt19937 random(3);
    for (const Shape& shape : kShapes) {
        Layer layer(gpu, 20, shape);
        for (const std::int64_t tokens :
             {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 24, 31, 32, 33, 43}) {
            const std::vector<std::int32_t> rows =
                tokens == 1 ? std::vector<std::int32_t>{0} : random_rows(random, tokens);
            Step apart(gpu, layer, tokens, 30, rows), together(gpu, layer, tokens, 30, rows);
            apart.run(gpu, layer, true);
            together.run(gpu, layer, false);
            const bool beside = together.lets_its_norm_be_read(gpu, layer);
            const std::string what = fmt::format("{} tokens, {} of {} experts, {} columns", tokens,
                                                 shape.rule.top_k, shape.rule.experts, shape.cols);
            together.expect_same(apart, what);
            ASSERT_FALSE(testing::Test::HasFailure());
            // One kernel writes the norm itself; of several the last is not the one that does.
            const bool several = shape.cols % 4 != 0 || shape.rule.experts > 512;
            ASSERT_TRUE(tokens > 1 || beside == several) << what;
        }
    }
}

// Scores far apart, whose sum depends on the order in which they are added.
TEST(GpuNormRoute, AddsScoresInOrder) {
    Gpu gpu;
    const Shape shape{2048, rule_of(kSoftmax, 64, 6), false};
    Layer layer(gpu, 40, shape, 12.0f);
    for (std::uint32_t seed = 50; seed < 70; ++seed) {
        Step apart(gpu, layer, 3, seed, {0, 1, 0}), together(gpu, layer, 3, seed, {0, 1, 0});
        apart.run(gpu, layer, true);
        together.run(gpu, layer, false);
        together.expect_same(apart, fmt::format("seed {}", seed));
    }
}

TEST(GpuNormRoute, WritesWhatItDeclares) {
    Gpu gpu;
    for (const std::int64_t tokens : {1, 5, 9, 16, 40, 300}) {
        Layer layer(gpu, 60, kShapes[0]);
        Step step(gpu, layer, tokens, 61,
                  std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 0));
        UndeclaredWrites watch(gpu, step.memory());
        step.run(gpu, layer, false);
        watch.compare();
    }
}

// Two layers in turns, replayed: the residual grows by `partial` in each, and nothing that a replay
// leaves behind is in the next one's way.
TEST(GpuNormRoute, IsReplayedAsAGraph) {
    Gpu gpu;
    for (const std::int64_t tokens : {1, 2, 5, 8, 9, 32}) {
        Layer one(gpu, 70, kShapes[0]);
        Layer two(gpu, 80,
                  Shape{2048, grouped(rule_of(kSigmoid, 64, 6), GroupScore::maximum, 4, 2), true});
        const std::vector<std::int32_t> rows(static_cast<std::size_t>(tokens), 0);
        Step apart(gpu, one, tokens, 90, rows), together(gpu, one, tokens, 90, rows);
        auto replay = must(gpu.device->record(gpu.context.stream, [&]() -> Expected<void> {
            for (int turn = 0; turn < 8; ++turn)
                together.run(gpu, turn % 2 == 0 ? one : two, false);
            return {};
        }));
        for (int round = 0; round < 40; ++round) {
            ASSERT_TRUE(replay->play());
            for (int turn = 0; turn < 8; ++turn) apart.run(gpu, turn % 2 == 0 ? one : two, true);
            together.expect_same(apart, fmt::format("{} tokens, replay {}", tokens, round));
            ASSERT_FALSE(testing::Test::HasFailure());
        }
    }
}

}  // namespace
}  // namespace espalier::ops
