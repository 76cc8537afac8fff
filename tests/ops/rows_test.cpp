// SPDX-License-Identifier: Apache-2.0
// The row operations: reference against the formula, every variant against the reference with
// derived bounds, and row invariance bit for bit: a token's result never depends on its company,
// its place, T or threads.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "ops/sampling_cases.hpp"

namespace espalier::ops {
namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp, relative
const Matrix kNone;

struct Machine {
    explicit Machine(int workers)
        : device(workers), arena(make_arena(1 << 20)), context{device, arena} {}
    CpuDevice device;
    Arena arena;
    OpContext context;
};

std::vector<std::unique_ptr<Backend>> cpu_backends() {
    std::vector<std::unique_ptr<Backend>> made;
    for (const CpuVariant variant : variants()) made.push_back(make_cpu_backend(variant));
    return made;
}

TEST(RmsNorm, IsItsFormulaWithinTheBound) {
    // f32: 32 lanes add D/32 terms each, then a tree of 5; the root halves that error; squaring,
    // mean, epsilon, root, reciprocal and two products add at most 8 roundings.
    for (const std::int64_t dim : {1, 31, 32, 777, 7168}) {
        const double bound = (static_cast<double>(dim) / 64.0 + 2.5 + 8.0) * kUnit;
        std::vector<float> x = values(1, 0, 3, dim);
        const std::vector<float> weight = values(2, 0, 1, dim);
        for (const auto& backend : cpu_backends()) {
            Machine machine(2);
            std::vector<float> wanted(x.size()), exact(x.size());
            std::vector<Bf16> out(x.size());
            make_reference_backend()->rms_norm(machine.context, Matrix::of(x.data(), 3, dim),
                                               weight.data(), 1e-6f,
                                               Matrix::of(wanted.data(), 3, dim), kNone);
            backend->rms_norm(machine.context, Matrix::of(x.data(), 3, dim), weight.data(), 1e-6f,
                              Matrix::of(out.data(), 3, dim), Matrix::of(exact.data(), 3, dim));
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double truth = wanted[i];
                EXPECT_NEAR(exact[i], truth, std::abs(truth) * (bound + kUnit))
                    << backend->name() << " " << dim;
                EXPECT_EQ(out[i].bits, to_bf16(exact[i]).bits);
            }
        }
    }
    // The reference by hand: mean of squares 12.5.
    std::vector<float> x = {3.0f, 4.0f}, weight = {1.0f, 2.0f}, out(2);
    Machine machine(1);
    make_reference_backend()->rms_norm(machine.context, Matrix::of(x.data(), 1, 2), weight.data(),
                                       0.5f, Matrix::of(out.data(), 1, 2), kNone);
    EXPECT_FLOAT_EQ(out[0], static_cast<float>(3.0 / std::sqrt(13.0)));
    EXPECT_FLOAT_EQ(out[1], static_cast<float>(8.0 / std::sqrt(13.0)));
}

TEST(Swiglu, IsItsFormulaWithinTheBound) {
    // exp 2 ulp = 4 units, then an addition, a division and a product, and the reference's own
    // rounding.
    std::vector<float> gate_up = values(3, 0, 4, 2 * 20000);  // longer than one column range
    for (std::size_t i = 0; i < gate_up.size(); i += 3) gate_up[i] *= 20.0f;
    Machine machine(3);
    std::vector<float> wanted(4 * 20000), got(4 * 20000);
    std::vector<Bf16> rounded(4 * 20000);
    const Matrix in = Matrix::of(gate_up.data(), 4, 40000);
    make_reference_backend()->swiglu(machine.context, in, Matrix::of(wanted.data(), 4, 20000));
    EXPECT_FLOAT_EQ(wanted[5], static_cast<float>(
                                   gate_up[5] / (1.0 + std::exp(-static_cast<double>(gate_up[5]))) *
                                   gate_up[20005]));
    for (const auto& backend : cpu_backends()) {
        backend->swiglu(machine.context, in, Matrix::of(got.data(), 4, 20000));
        backend->swiglu(machine.context, in, Matrix::of(rounded.data(), 4, 20000));
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            ASSERT_NEAR(got[i], wanted[i], std::abs(wanted[i]) * 8.0 * kUnit + 1e-37)
                << backend->name();
            ASSERT_EQ(rounded[i].bits, to_bf16(got[i]).bits);
        }
    }
}

TEST(Rope, RotatesInterleavedPairsByThePositionsAngle) {
    Machine machine(2);
    std::array<float, 32> frequency;
    for (std::size_t i = 0; i < 32; ++i)
        frequency[i] = std::pow(10000.0f, -static_cast<float>(i) / 32.0f);
    const std::vector<std::int32_t> position = {0, 1, 5, 163839};
    std::vector<float> wanted_angles(4 * 64);
    const RopeRule rule = {frequency, 1.25f};
    const auto reference = make_reference_backend();
    reference->rope_angles(machine.context, position.data(), 4, rule,
                           Matrix::of(wanted_angles.data(), 4, 64));
    for (std::size_t t = 0; t < 4; ++t) {
        for (std::size_t i = 0; i < 32; ++i) {
            const double angle = static_cast<float>(position[t]) * frequency[i];
            EXPECT_NEAR(wanted_angles[t * 64 + 2 * i], 1.25 * std::cos(angle), 1.25 * 2 * kUnit);
            EXPECT_NEAR(wanted_angles[t * 64 + 2 * i + 1], 1.25 * std::sin(angle),
                        1.25 * 2 * kUnit);
        }
    }
    constexpr std::int64_t kStep = 100;
    std::vector<float> from = values(4, 0, 4, 3 * kStep);
    for (const auto& backend : cpu_backends()) {
        std::vector<float> angles(4 * 64), got(from), wanted(from.size());
        backend->rope_angles(machine.context, position.data(), 4, rule,
                             Matrix::of(angles.data(), 4, 64));
        EXPECT_EQ(angles, wanted_angles);
        const Matrix cos_sin = Matrix::of(angles.data(), 4, 64);
        const Matrix in_place = Matrix::of(got.data(), 4, 3 * kStep);
        reference->rope(machine.context, Matrix::of(from.data(), 4, 3 * kStep), kStep, 3, cos_sin,
                        Matrix::of(wanted.data(), 4, 3 * kStep), kStep);
        backend->rope(machine.context, in_place, kStep, 3, cos_sin, in_place, kStep);
        for (std::size_t i = 0; i < from.size(); ++i) {
            const std::size_t in_head = i % kStep;
            if (in_head >= 64) {
                EXPECT_EQ(got[i], from[i]);
                continue;
            }
            // Two products and a sum, at most 1.25·(|a| + |b|) large, and the reference's rounding.
            const double size = 1.25 * (std::abs(from[i]) + std::abs(from[i ^ 1]));
            EXPECT_NEAR(got[i], wanted[i], 4.0 * kUnit * size);
        }
        // By hand: the first pair of position 5 turns by 5 radians.
        const std::size_t row = 2 * 3 * kStep;
        EXPECT_NEAR(got[row], 1.25 * (from[row] * std::cos(5.0) - from[row + 1] * std::sin(5.0)),
                    1e-6);
        EXPECT_NEAR(got[row + 1],
                    1.25 * (from[row] * std::sin(5.0) + from[row + 1] * std::cos(5.0)), 1e-6);
    }
}

TEST(Copies, EmbedConvertAndGatherAreExact) {
    Machine machine(2);
    constexpr std::int64_t kHidden = 133;
    const std::vector<float> table = values(5, 0, 9, kHidden);
    std::vector<std::byte> odd(table.size() * 4 + 1);  // checkpoints do not align
    std::vector<std::unique_ptr<Backend>> all = cpu_backends();
    all.push_back(make_reference_backend());
    for (const auto& backend : all) {
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
            const auto widened = [&](std::size_t i) {
                return dtype == DType::f32   ? table[i]
                       : dtype == DType::f16 ? to_float(to_fp16(table[i]))
                                             : to_float(to_bf16(table[i]));
            };
            for (std::size_t i = 0; i < table.size(); ++i) {
                const std::uint16_t half =
                    dtype == DType::f16 ? to_fp16(table[i]).bits : to_bf16(table[i]).bits;
                if (dtype == DType::f32) std::memcpy(odd.data() + 1 + 4 * i, &table[i], 4);
                if (dtype != DType::f32) std::memcpy(odd.data() + 1 + 2 * i, &half, 2);
            }
            const std::vector<std::int32_t> tokens = {8, 0, 3};
            std::vector<float> out(3 * kHidden);
            backend->embed(machine.context, tokens.data(), {odd.data() + 1, dtype, 9, kHidden},
                           Matrix::of(out.data(), 3, kHidden));
            for (std::size_t i = 0; i < out.size(); ++i)
                EXPECT_EQ(out[i], widened(static_cast<std::size_t>(tokens[i / kHidden]) * kHidden +
                                          i % kHidden));
        }
        const std::vector<std::int32_t> beyond = {9};
        std::vector<float> out(kHidden);
        EXPECT_THROW(
            backend->embed(machine.context, beyond.data(), {odd.data(), DType::f32, 9, kHidden},
                           Matrix::of(out.data(), 1, kHidden)),
            CheckFailure);

        std::vector<float> from(table);
        std::vector<Bf16> to(9 * 100);
        backend->convert(machine.context, Matrix::of(from.data(), 9, kHidden), 50, 2, 33,
                         Matrix::of(to.data(), 9, 100), 40);
        for (std::size_t t = 0; t < 9; ++t)
            for (std::size_t h = 0; h < 2; ++h)
                for (std::size_t i = 0; i < 33; ++i)
                    EXPECT_EQ(to[t * 100 + h * 40 + i].bits,
                              to_bf16(from[t * kHidden + h * 50 + i]).bits);
        EXPECT_EQ(to[35].bits, 0);  // between heads nothing is written

        const std::vector<std::int32_t> index = {4, -1, 8};
        std::vector<float> gathered(3 * kHidden, 5.0f);
        backend->gather_rows(machine.context, Matrix::of(from.data(), 9, kHidden), index.data(),
                             Matrix::of(gathered.data(), 3, kHidden));
        EXPECT_TRUE(same_bits(gathered.data(), from.data() + 4 * kHidden, kHidden));
        EXPECT_TRUE(same_bits(gathered.data() + 2 * kHidden, from.data() + 8 * kHidden, kHidden));
        EXPECT_EQ(gathered[kHidden + 3], 0.0f);

        const std::vector<std::int32_t> places = {2, 99, 0};
        std::vector<float> copied(3 * kHidden, 5.0f);
        backend->copy_rows(machine.context, Matrix::of(from.data(), 9, kHidden),
                           {index.data(), places.data(), 3}, Matrix::of(copied.data(), 3, kHidden));
        EXPECT_TRUE(same_bits(copied.data() + 2 * kHidden, from.data() + 4 * kHidden, kHidden));
        EXPECT_TRUE(same_bits(copied.data(), from.data() + 8 * kHidden, kHidden));
        EXPECT_EQ(copied[kHidden + 3], 5.0f);  // a row of no pair
    }
}

RouterRule small_rule() {
    RouterRule rule;
    rule.group_score = GroupScore::top_two_sum;
    rule.experts = 24;
    rule.groups = 4;
    rule.top_groups = 2;
    rule.top_k = 5;
    rule.normalise = true;
    rule.scaling = 2.5f;
    return rule;
}

// Rows [first, first + count) of one fixed input of 80 tokens.
std::vector<float> tokens_of(std::uint32_t stream, std::int64_t first, std::int64_t count,
                             std::int64_t cols) {
    static std::map<std::pair<std::uint32_t, std::int64_t>, std::vector<float>> made;
    std::vector<float>& all = made[{stream, cols}];
    if (all.empty()) all = values(stream, 0, 80, cols);
    return {all.begin() + first * cols, all.begin() + (first + count) * cols};
}

// Routes tokens [first, first + count) of an endless prompt and combines outputs that are a
// function of (token, expert): the whole mixture but for the products. Every seventh token is a
// pad.
std::vector<float> mixture(const Backend& backend, OpContext& context, std::int64_t first,
                           std::int64_t count, std::int64_t hidden) {
    const RouterRule rule = small_rule();
    std::vector<float> logits = tokens_of(10, first, count, rule.experts);
    const std::vector<float> bias = values(11, 0, 1, rule.experts);
    std::vector<std::int32_t> row_of;
    for (std::int64_t t = 0; t < count; ++t) row_of.push_back((first + t) % 7 == 3 ? -1 : 0);
    PlanStore store(count, rule);
    const ExpertPlan plan = store.plan();
    backend.route(context, Matrix::of(logits.data(), count, rule.experts), bias.data(), rule,
                  row_of.data(), plan);
    std::vector<float> expert_out(static_cast<std::size_t>(count * rule.top_k * hidden));
    for (std::int32_t e = 0; e < rule.experts; ++e)
        for (std::int32_t pair = plan.indptr[e]; pair < plan.indptr[e + 1]; ++pair)
            for (std::int64_t d = 0; d < hidden; ++d)
                expert_out[static_cast<std::size_t>(pair * hidden + d)] =
                    value_at(12, first + plan.source_token[pair], e * 10000 + d);
    std::vector<float> shared = tokens_of(13, first, count, hidden);
    std::vector<float> sum(shared.size());
    backend.add_terms(
        context,
        {.experts = {Matrix::of(expert_out.data(), count * rule.top_k, hidden), rule.top_k, plan},
         .segments = {Matrix::of(shared.data(), count, hidden), 1}},
        Matrix::of(sum.data(), count, hidden));
    return sum;
}

TEST(AddTerms, IsTheWeightedSumWithinTheBound) {
    // Five products and additions and the shared output, on terms whose sizes add up to at most 2.5
    // (the weights) times the largest output plus one more: values lie within ±3.47.
    const double bound = (5 + 1 + 1) * kUnit * (2.5 + 1.0) * 3.47;
    Machine machine(2);
    const std::vector<float> wanted =
        mixture(*make_reference_backend(), machine.context, 0, 20, 600);
    for (const auto& backend : cpu_backends()) {
        const std::vector<float> got = mixture(*backend, machine.context, 0, 20, 600);
        for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_NEAR(got[i], wanted[i], bound) << backend->name();
    }
    // A pad gets the shared output alone.
    EXPECT_EQ(wanted[3 * 600], value_at(13, 3, 0));
}

// A product that is stored and then added has the bits of one that adds by itself: each output is
// one chain, finished before it meets the residual.
TEST(AddTerms, GivesTheBitsOfAProductThatAccumulates) {
    constexpr std::int64_t kRows = 5, kInputs = 300, kOutputs = 50;
    Machine machine(2);
    std::vector<float> x = values(33, 0, kRows, kInputs), w = values(34, 0, kOutputs, kInputs);
    const std::vector<float> start = values(35, 0, kRows, kOutputs);
    linalg::WeightSource source;
    source.data = reinterpret_cast<const std::byte*>(w.data());
    source.format = {.code = WeightCode::f32};
    source.n = kOutputs;
    source.k = kInputs;
    source.row_stride = kInputs;
    const std::span<const linalg::WeightSource> one(&source, 1);
    for (const auto& backend : cpu_backends()) {
        const auto packed = backend->pack(machine.device, {&one, 1});
        ASSERT_TRUE(packed);
        std::vector<float> accumulated = start, partial(start.size()), residual = start;
        const Matrix in = Matrix::of(x.data(), kRows, kInputs);
        const Matrix out = Matrix::of(partial.data(), kRows, kOutputs);
        backend->product(machine.context, in, packed->view(),
                         Matrix::of(accumulated.data(), kRows, kOutputs), Store::accumulate);
        backend->product(machine.context, in, packed->view(), out, Store::assign);
        backend->add_terms(machine.context, {.segments = {out, 1}},
                           Matrix::of(residual.data(), kRows, kOutputs));
        EXPECT_EQ(residual, accumulated) << backend->name();
    }
}

// Runs an operation on tokens [first, first + count) and returns their results, one row after
// another.
using RowOperation = std::function<std::vector<float>(const Backend&, OpContext&,
                                                      std::int64_t first, std::int64_t count)>;

std::vector<float> widen(const std::vector<Bf16>& values_bf16) {
    std::vector<float> out;
    for (const Bf16 value : values_bf16) out.push_back(to_float(value));
    return out;
}

const std::vector<std::pair<std::string, RowOperation>>& row_operations() {
    constexpr std::int64_t kHidden = 1300;  // twelve rows per task, and no multiple of a vector
    static const std::vector<float> weight = values(21, 0, 1, kHidden);
    static const RopeRule rope_rule = [] {
        RopeRule rule;
        const std::vector<float> frequency = values(22, 0, 1, 32);
        std::copy_n(frequency.begin(), 32, rule.inverse_frequency.begin());
        return rule;
    }();
    static const std::vector<std::pair<std::string, RowOperation>> all = {
        {"embed",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             static const std::vector<float> table = values(20, 0, 80, kHidden);
             std::vector<std::int32_t> tokens;
             for (std::int64_t t = first; t < first + count; ++t)
                 tokens.push_back(static_cast<std::int32_t>(t));
             std::vector<float> out(static_cast<std::size_t>(count * kHidden));
             backend.embed(
                 context, tokens.data(),
                 {reinterpret_cast<const std::byte*>(table.data()), DType::f32, 80, kHidden},
                 Matrix::of(out.data(), count, kHidden));
             return out;
         }},
        {"rms_norm",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> x = tokens_of(23, first, count, kHidden);
             std::vector<float> exact(x.size());
             std::vector<Bf16> out(x.size());
             backend.rms_norm(context, Matrix::of(x.data(), count, kHidden), weight.data(), 1e-6f,
                              Matrix::of(out.data(), count, kHidden),
                              Matrix::of(exact.data(), count, kHidden));
             return exact;
         }},
        {"swiglu",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> x = tokens_of(24, first, count, 2 * kHidden);
             std::vector<Bf16> out(x.size() / 2);
             backend.swiglu(context, Matrix::of(x.data(), count, 2 * kHidden),
                            Matrix::of(out.data(), count, kHidden));
             return widen(out);
         }},
        {"rope",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> x = tokens_of(25, first, count, 5 * 64);
             std::vector<float> angles(static_cast<std::size_t>(count * 64));
             std::vector<std::int32_t> position;
             for (std::int64_t t = first; t < first + count; ++t)
                 position.push_back(static_cast<std::int32_t>(t * 31));
             const Matrix cos_sin = Matrix::of(angles.data(), count, 64);
             backend.rope_angles(context, position.data(), count, rope_rule, cos_sin);
             const Matrix both = Matrix::of(x.data(), count, 5 * 64);
             backend.rope(context, both, 64, 5, cos_sin, both, 64);
             return x;
         }},
        {"convert",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> x = tokens_of(26, first, count, kHidden);
             std::vector<Bf16> out(x.size());
             backend.convert(context, Matrix::of(x.data(), count, kHidden), 0, 1, kHidden,
                             Matrix::of(out.data(), count, kHidden), 0);
             return widen(out);
         }},
        {"mixture", [](const Backend& backend, OpContext& context, std::int64_t first,
                       std::int64_t count) { return mixture(backend, context, first, count, 70); }},
        {"gather_rows",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> x = values(27, 0, 80, 100);
             std::vector<std::int32_t> index;
             for (std::int64_t t = first; t < first + count; ++t)
                 index.push_back(static_cast<std::int32_t>(t) - 1);
             std::vector<float> out(static_cast<std::size_t>(count * 100));
             backend.gather_rows(context, Matrix::of(x.data(), 80, 100), index.data(),
                                 Matrix::of(out.data(), count, 100));
             return out;
         }},
        {"sample_nodes",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> logits = tokens_of(28, first, count, 500);
             const std::vector<TokenCount> counts = {{3, 2, true}, {77, 0, true}, {401, 9, false}};
             const std::vector<std::int32_t> banned = {12, 300};
             std::vector<SamplingNode> nodes(static_cast<std::size_t>(count));
             for (std::size_t g = 0; g < nodes.size(); ++g) {
                 nodes[g].position =
                     static_cast<std::int32_t>(first) + static_cast<std::int32_t>(g);
                 nodes[g].top_p = 0.9f;
                 nodes[g].temperature = g % 2 == static_cast<std::size_t>(first % 2) ? 1.0f : 0.6f;
                 if (nodes[g].position % 3 == 0) continue;
                 nodes[g].repetition_penalty = 1.5f;
                 nodes[g].frequency_penalty = 0.25f;
                 nodes[g].committed = counts;
                 nodes[g].banned = banned;
             }
             const NodeBatch batch(500, nodes, std::vector<std::size_t>(nodes.size(), 3));
             backend.sample_nodes(context, Matrix::of(logits.data(), count, 500), batch.view());
             std::vector<float> out;
             for (const Outcome& outcome : batch.outcomes()) {
                 out.push_back(static_cast<float>(outcome.draw.token));
                 out.push_back(outcome.draw.logprob);
                 for (const TokenLogprob& entry : outcome.top) {
                     out.push_back(static_cast<float>(entry.token));
                     out.push_back(entry.logprob);
                 }
             }
             return out;
         }},
        {"draft_children",
         [](const Backend& backend, OpContext& context, std::int64_t first, std::int64_t count) {
             std::vector<float> logits = tokens_of(29, first, count, 300);
             const std::vector<std::int32_t> banned = {12, 200};
             std::vector<SamplingNode> nodes(static_cast<std::size_t>(count));
             for (std::size_t g = 0; g < nodes.size(); ++g) {
                 nodes[g].position =
                     static_cast<std::int32_t>(first) + static_cast<std::int32_t>(g);
                 if (nodes[g].position % 3 != 0) nodes[g].banned = banned;
             }
             const NodeBatch batch(300, nodes, std::vector<std::size_t>(nodes.size(), 0));
             std::vector<DraftChild> children(nodes.size() * 5);
             backend.draft_children(context, Matrix::of(logits.data(), count, 300), batch.view(),
                                    {}, {.width = 5}, children.data());
             std::vector<float> out;
             for (const DraftChild& child : children) {
                 out.push_back(static_cast<float>(child.token));
                 out.push_back(static_cast<float>(child.score));
                 out.push_back(child.probability);
             }
             return out;
         }},
    };
    return all;
}

TEST(RowInvariance, ATokensBitsDependOnTheTokenAlone) {
    constexpr std::int64_t kTokens = 70;
    for (const auto& backend : cpu_backends()) {
        for (const auto& [name, operation] : row_operations()) {
            Machine alone(1);
            const std::vector<float> wanted = operation(*backend, alone.context, 0, kTokens);
            const auto width = static_cast<std::int64_t>(wanted.size()) / kTokens;
            for (int workers = 1; workers <= 3; ++workers) {
                Machine machine(workers);
                for (std::int64_t count = workers; count <= kTokens;
                     count += workers == 1 ? 1 : 3) {
                    const std::int64_t first = count * 17 % (kTokens - count + 1);
                    const std::vector<float> got =
                        operation(*backend, machine.context, first, count);
                    ASSERT_TRUE(same_bits(got.data(), wanted.data() + first * width, count * width))
                        << backend->name() << " " << name << ", tokens " << first << " + " << count
                        << " on " << workers << " threads";
                }
            }
        }
    }
}

}  // namespace
}  // namespace espalier::ops
