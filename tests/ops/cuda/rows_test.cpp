// SPDX-License-Identifier: Apache-2.0
// The row operations on a GPU: against the reference with the bounds of the CPU's tests, and row
// invariance bit for bit.
#include <algorithm>
#include <functional>
#include <random>

#include "ops/cuda/gpu.hpp"
#include "ops/layer_program.hpp"
#include "ops/support.hpp"
#include "ops/terms_cases.hpp"

namespace espalier::ops {
namespace {

constexpr double kUnit = 0x1p-24;  // half an ulp, relative

class GpuRows : public testing::Test {
  protected:
    Gpu gpu;
    CpuDevice host{1};
    Arena arena = make_arena(1 << 20);
    OpContext context{host, arena};
    std::unique_ptr<Backend> reference = make_reference_backend();
};

void expect_near(const std::vector<float>& got, const std::vector<float>& wanted, double units,
                 const char* what) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], wanted[i], std::abs(wanted[i]) * units * kUnit + 1e-37)
            << what << " at " << i;
}

TEST_F(GpuRows, EmbeddingsAreTheTables) {
    const std::vector<std::int32_t> tokens = {3, 0, 6, 3, 1};
    for (const std::int64_t hidden : {1, 33, 2048}) {
        const std::vector<float> table = values(1, 0, 7, hidden);
        std::vector<Bf16> narrow;
        std::vector<Fp16> half;
        for (const float value : table) {
            narrow.push_back(to_bf16(value));
            half.push_back(to_fp16(value));
        }
        OnGpu<std::int32_t> ids(gpu, tokens);
        OnGpu<float> out(gpu, std::vector<float>(tokens.size() * static_cast<std::size_t>(hidden)));
        const auto check = [&](auto& stored, auto widened) {
            OnGpu copy(gpu, stored);
            gpu.backend->embed(gpu.context, ids.data(),
                               {reinterpret_cast<const std::byte*>(copy.data()),
                                dtype_of<std::remove_cvref_t<decltype(stored[0])>>(), 7, hidden},
                               out.matrix(5, hidden));
            const std::vector<float> got = out.values();
            for (std::size_t i = 0; i < got.size(); ++i) {
                const auto at =
                    static_cast<std::size_t>(tokens[i / static_cast<std::size_t>(hidden)]) *
                        static_cast<std::size_t>(hidden) +
                    i % static_cast<std::size_t>(hidden);
                ASSERT_EQ(got[i], widened(stored[at]));
            }
        };
        check(table, [](float value) { return value; });
        check(narrow, [](Bf16 value) { return to_float(value); });
        check(half, [](Fp16 value) { return to_float(value); });
    }
}

TEST_F(GpuRows, NormsAreTheirFormulaAndStandAlone) {
    for (const std::int64_t dim : {1, 31, 256, 776, 777, 1536, 7168, 8192, 8448}) {
        constexpr std::int64_t kRows = 40;  // another order shows in one row of ten
        std::vector<float> x = values(1, 0, kRows, dim);
        const std::vector<float> weight = values(2, 0, 1, dim);
        std::vector<float> wanted(x.size());
        reference->rms_norm(context, Matrix::of(x.data(), kRows, dim), weight.data(), 1e-6f,
                            Matrix::of(wanted.data(), kRows, dim), {});
        OnGpu<float> in(gpu, x), w(gpu, weight), exact(gpu, x);
        OnGpu<Bf16> out(gpu, std::vector<Bf16>(x.size()));
        gpu.backend->rms_norm(gpu.context, in.matrix(kRows, dim), w.data(), 1e-6f,
                              out.matrix(kRows, dim), exact.matrix(kRows, dim));
        const std::vector<float> got = exact.values();
        // 256 lanes add D/256 terms each, then a tree of 8; the rest as on the CPU.
        expect_near(got, wanted, static_cast<double>(dim) / 512.0 + 4 + 9, "rms_norm");
        const std::vector<Bf16> rounded = out.values();
        for (std::size_t i = 0; i < got.size(); ++i)
            ASSERT_EQ(rounded[i].bits, to_bf16(got[i]).bits);
        OnGpu<float> alone(gpu, std::vector<float>(static_cast<std::size_t>(dim)));
        gpu.backend->rms_norm(gpu.context, in.matrix(kRows, dim).slice(3, 1), w.data(), 1e-6f,
                              alone.matrix(1, dim), {});
        EXPECT_TRUE(same_bits(alone.values().data(), got.data() + 3 * dim, dim));
        // Rows that do not begin at fours have a kernel of their own.
        const std::int64_t stride = dim + 5 - dim % 4;
        std::vector<float> odd(static_cast<std::size_t>(kRows * stride));
        for (std::int64_t row = 0; row < kRows; ++row)
            std::copy_n(x.begin() + row * dim, dim, odd.begin() + row * stride);
        OnGpu<float> apart(gpu, odd), same(gpu, x);
        gpu.backend->rms_norm(gpu.context, apart.matrix(kRows, dim), w.data(), 1e-6f,
                              out.matrix(kRows, dim), same.matrix(kRows, dim));
        EXPECT_TRUE(same_bits(same.values().data(), got.data(), kRows * dim)) << dim;
    }
}

// Blocks in clusters, where the device has them, add as one block does.
TEST_F(GpuRows, NormsOfThePortableFamilyAreTheSame) {
    Gpu portable{.limits = {.portable_kernels = true}};
    for (const std::int64_t rows : {1, 40, 65})
        for (const std::int64_t dim : {256, 2048, 7168}) {
            const std::vector<float> x = values(3, 0, rows, dim), weight = values(4, 0, 1, dim);
            const auto normed = [&](Gpu& on) {
                OnGpu<float> in(on, x), w(on, weight), exact(on, x);
                OnGpu<Bf16> out(on, std::vector<Bf16>(x.size()));
                on.backend->rms_norm(on.context, in.matrix(rows, dim), w.data(), 1e-6f,
                                     out.matrix(rows, dim), exact.matrix(rows, dim));
                return exact.values();
            };
            const std::vector<float> one = normed(gpu), other = normed(portable);
            EXPECT_TRUE(same_bits(one.data(), other.data(), rows * dim)) << rows << " × " << dim;
        }
}

TEST_F(GpuRows, RopeRotatesByThePositionsAngle) {
    RopeRule rule;
    for (std::size_t i = 0; i < 32; ++i)
        rule.inverse_frequency[i] = std::pow(10000.0f, -static_cast<float>(i) / 32.0f);
    rule.magnitude = 1.25f;
    const std::vector<std::int32_t> position = {0, 1, 5, 163839};
    constexpr std::int64_t kStep = 100;
    std::vector<float> angles(4 * 64), from = values(4, 0, 4, 3 * kStep), wanted(from);
    reference->rope_angles(context, position.data(), 4, rule, Matrix::of(angles.data(), 4, 64));
    OnGpu<std::int32_t> places(gpu, position);
    OnGpu<float> cos_sin(gpu, angles), in_place(gpu, from);
    gpu.backend->rope_angles(gpu.context, places.data(), 4, rule, cos_sin.matrix(4, 64));
    std::vector<float> got = cos_sin.values();
    for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], angles[i], 1.25 * 2 * kUnit) << i;
    reference->rope(context, Matrix::of(from.data(), 4, 3 * kStep), kStep, 3,
                    Matrix::of(got.data(), 4, 64), Matrix::of(wanted.data(), 4, 3 * kStep), kStep);
    gpu.backend->rope(gpu.context, in_place.matrix(4, 3 * kStep), kStep, 3, cos_sin.matrix(4, 64),
                      in_place.matrix(4, 3 * kStep), kStep);
    got = in_place.values();
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (i % kStep >= 64) {
            ASSERT_EQ(got[i], from[i]) << i;  // not its columns
        } else {
            const double size = 1.25 * (std::abs(from[i]) + std::abs(from[i ^ 1]));
            ASSERT_NEAR(got[i], wanted[i], size * 3 * kUnit) << i;
        }
    }
}

TEST_F(GpuRows, ConversionsAndGathersMoveTheirColumns) {
    constexpr std::int64_t kFrom = 37, kTo = 50, kWidth = 29;
    std::vector<float> from = values(6, 0, 3, 4 * kFrom);
    from[5] = std::nanf("");
    from[6] = 1e38f;
    std::vector<Bf16> wanted(3 * 4 * kTo, Bf16{0x1234});
    OnGpu<Bf16> to(gpu, wanted);
    OnGpu<float> in(gpu, from);
    reference->convert(context, Matrix::of(from.data(), 3, 4 * kFrom), kFrom, 4, kWidth,
                       Matrix::of(wanted.data(), 3, 4 * kTo), kTo);
    gpu.backend->convert(gpu.context, in.matrix(3, 4 * kFrom), kFrom, 4, kWidth,
                         to.matrix(3, 4 * kTo), kTo);
    EXPECT_TRUE(same_bits(to.values().data(), wanted.data(), std::ssize(wanted)));

    const std::vector<std::int32_t> index = {2, -1, 0, 2};
    std::vector<float> rows(4 * 4 * kFrom, 7.0f);
    OnGpu<float> gathered(gpu, rows);
    OnGpu<std::int32_t> places(gpu, index);
    reference->gather_rows(context, Matrix::of(from.data(), 3, 4 * kFrom), index.data(),
                           Matrix::of(rows.data(), 4, 4 * kFrom));
    gpu.backend->gather_rows(gpu.context, in.matrix(3, 4 * kFrom), places.data(),
                             gathered.matrix(4, 4 * kFrom));
    EXPECT_TRUE(same_bits(gathered.values().data(), rows.data(), std::ssize(rows)));

    const std::vector<std::int32_t> target = {3, 99, 0, 1};
    OnGpu<std::int32_t> target_rows(gpu, target);
    reference->copy_rows(context, Matrix::of(from.data(), 3, 4 * kFrom),
                         {index.data(), target.data(), 4}, Matrix::of(rows.data(), 4, 4 * kFrom));
    gpu.backend->copy_rows(gpu.context, in.matrix(3, 4 * kFrom),
                           {places.data(), target_rows.data(), 4}, gathered.matrix(4, 4 * kFrom));
    EXPECT_TRUE(same_bits(gathered.values().data(), rows.data(), std::ssize(rows)));
}

TEST_F(GpuRows, SwigluAndSumsAreTheirFormulas) {
    constexpr std::int64_t kWidth = 1409, kRows = 7;
    std::vector<float> gate_up = values(3, 0, kRows, 2 * kWidth), wanted(kRows * kWidth);
    for (std::size_t i = 0; i < gate_up.size(); i += 3) gate_up[i] *= 20.0f;
    OnGpu<float> in(gpu, gate_up), out(gpu, wanted);
    reference->swiglu(context, Matrix::of(gate_up.data(), kRows, 2 * kWidth),
                      Matrix::of(wanted.data(), kRows, kWidth));
    gpu.backend->swiglu(gpu.context, in.matrix(kRows, 2 * kWidth), out.matrix(kRows, kWidth));
    expect_near(out.values(), wanted, 8, "swiglu");

    std::vector<float> residual = values(8, 0, kRows, kWidth),
                       partial = values(9, 0, kRows, kWidth);
    OnGpu<float> sum(gpu, residual), part(gpu, partial);
    reference->add_terms(context, {.segments = {Matrix::of(partial.data(), kRows, kWidth), 1}},
                         Matrix::of(residual.data(), kRows, kWidth));
    gpu.backend->add_terms(gpu.context, {.segments = {part.matrix(kRows, kWidth), 1}},
                           sum.matrix(kRows, kWidth));
    EXPECT_TRUE(same_bits(sum.values().data(), residual.data(), std::ssize(residual)));
}

// Several segments and owners, too, which no fused kernel adds: the bits of the definition.
TEST_F(GpuRows, TermsAreAddedInTheOrderOfTheDefinition) {
    constexpr std::int64_t kTokens = 7, kCols = 530;
    for (const std::int32_t top_k : {0, 1, 8})
        for (const std::int32_t segments : {0, 1, 3, 8})
            for (const bool dealt : {false, true}) {
                if (top_k + segments == 0) continue;
                const TermsCase made(kTokens, kCols, top_k, segments, dealt);
                const auto some = [](auto values) {
                    values.resize(std::max<std::size_t>(values.size(), 1));
                    return values;
                };
                OnGpu<float> rows(gpu, some(made.rows)), sums(gpu, some(made.sums)),
                    weight(gpu, some(made.weight)), apart(gpu, made.residual),
                    together(gpu, made.residual), scale(gpu, values(6, 0, 1, kCols)),
                    normed(gpu, made.residual);
                OnGpu<std::int32_t> owner(gpu, some(made.owner)), expert(gpu, some(made.expert)),
                    pair_of(gpu, some(made.pair_of));
                Terms terms = made.terms;
                terms.experts.rows.data = reinterpret_cast<std::byte*>(rows.data());
                if (top_k == 0) terms.experts = {};
                terms.experts.plan = {expert.data(), weight.data(), nullptr, nullptr,
                                      pair_of.data()};
                if (dealt) terms.experts.owner = owner.data();
                terms.segments.sums.data = reinterpret_cast<std::byte*>(sums.data());
                gpu.backend->add_terms(gpu.context, terms, apart.matrix(kTokens, kCols));
                gpu.backend->program().add(
                    gpu.context, terms, together.matrix(kTokens, kCols),
                    {{scale.data(), 1e-6f, normed.matrix(kTokens, kCols), {}}});
                const std::vector<float> one = apart.values(), two = together.values();
                for (std::int64_t i = 0; i < kTokens * kCols; ++i) {
                    const auto at = static_cast<std::size_t>(i);
                    ASSERT_EQ(one[at], made.wanted(i / kCols, i % kCols)) << i;
                    ASSERT_EQ(two[at], one[at]) << i;
                }
            }
}

TEST_F(GpuRows, NothingHappensWithoutRows) {
    OnGpu<float> some(gpu, std::vector<float>(64, 1.0f));
    const Matrix none = some.matrix(1, 64).slice(0, 0);
    gpu.backend->rms_norm(gpu.context, none, some.data(), 1e-6f, none, {});
    gpu.backend->add_terms(gpu.context, {}, none);
    gpu.backend->gather_rows(gpu.context, none, nullptr, none);
    gpu.backend->copy_rows(gpu.context, none, {}, none);
    gpu.backend->embed(gpu.context, nullptr, {nullptr, DType::bf16, 1, 64}, none);
    EXPECT_EQ(some.values(), std::vector<float>(64, 1.0f));
}

}  // namespace
}  // namespace espalier::ops
