// SPDX-License-Identifier: Apache-2.0
// Products have the bits of linalg, and operations in the step loop take no memory but the arena's.
#include <gtest/gtest.h>

#include <cmath>

#include "linalg/packed.hpp"
#include "linalg/product.hpp"
#include "ops/sampling_cases.hpp"
#include "support/allocation_counter.hpp"

namespace espalier::ops {
namespace {

// One factor for a whole row: 1 up to position 63, then 1 + 0.1 · ln 2, and so on.
TEST(ScaledQueries, GrowWithTheirPosition) {
    CpuDevice device(2);
    Arena arena = make_arena(1 << 16);
    OpContext context{device, arena};
    const std::vector<std::int32_t> position = {0, 63, 64, 127, 128, 640, 0};
    const QueryScaling scaling{0.1, 64};
    for (const auto& backend : {make_cpu_backend(best_cpu_variant()), make_reference_backend()}) {
        std::vector<float> queries = values(5, 0, 7, 24);
        const std::vector<float> before = queries;
        ASSERT_TRUE(backend->scales_queries());
        backend->scale_queries(context, position.data(), scaling,
                               Matrix::of(queries.data(), 7, 24));
        for (std::size_t i = 0; i < queries.size(); ++i) {
            const int steps = position[i / 24] / 64;
            EXPECT_EQ(queries[i],
                      before[i] * static_cast<float>(1.0 + 0.1 * std::log(1.0 + steps)));
            EXPECT_EQ(queries[i] == before[i], steps == 0);
        }
    }
}

TEST(Products, AreThoseOfLinalg) {
    constexpr std::int64_t kOut = 19;
    constexpr std::int64_t kIn = 33;
    CpuDevice device(2);
    Arena arena = make_arena(1 << 20);
    OpContext context{device, arena};
    const std::vector<float> weights = values(1, 0, 2 * kOut, kIn);
    std::vector<linalg::WeightSource> sources(2);
    for (std::size_t i = 0; i < 2; ++i) {
        sources[i].data = reinterpret_cast<const std::byte*>(weights.data() + i * kOut * kIn);
        sources[i].n = kOut;
        sources[i].k = sources[i].row_stride = kIn;
    }
    const std::span<const linalg::WeightSource> both(sources);
    const std::vector<std::span<const linalg::WeightSource>> stack = {both.first(1), both.last(1)};
    std::vector<float> x = values(2, 0, 4, 2 * kIn);
    const Matrix in = Matrix::of(x.data(), 4, 2 * kIn);
    const Matrix narrow = in.columns(0, kIn);
    const std::vector<std::int32_t> source = {3, 0, 2, 2};
    const std::vector<std::int32_t> indptr = {0, 1, 4};
    const linalg::Weight packed = linalg::pack_panels(device, stack).value();
    struct Case {
        std::unique_ptr<Backend> backend;
        CpuVariant variant;
    };
    std::vector<Case> cases;
    cases.push_back({make_cpu_backend(best_cpu_variant()), best_cpu_variant()});
    cases.push_back({make_reference_backend(), CpuVariant::portable});
    for (const auto& [backend, variant] : cases) {
        const linalg::Products products(variant);
        const linalg::Weight own = backend->pack(device, stack).value();
        std::vector<float> got(4 * 2 * kOut, 1.0f), wanted(got);
        const Matrix out = Matrix::of(got.data(), 4, 2 * kOut);
        const Matrix truth = Matrix::of(wanted.data(), 4, 2 * kOut);
        backend->product(context, narrow, own.view().at(1), out.columns(0, kOut),
                         Store::accumulate);
        products.product(device.pool(), narrow, packed.view().at(1), truth.columns(0, kOut),
                         Store::accumulate);
        EXPECT_EQ(got, wanted);
        backend->stacked_product(context, in, kIn, own.view(), out, kOut);
        products.stacked(device.pool(), in, kIn, packed.view(), truth, kOut);
        EXPECT_EQ(got, wanted);
        backend->expert_product(context, narrow, source.data(), indptr.data(), own.view(),
                                out.columns(0, kOut));
        products.grouped(device.pool(), narrow, source.data(), indptr.data(), packed.view(),
                         truth.columns(0, kOut));
        EXPECT_EQ(got, wanted);
    }
}

TEST(Products, RefuseAForeignLayout) {
    CpuDevice device(1);
    Arena arena = make_arena(1 << 16);
    OpContext context{device, arena};
    const std::vector<float> weights = values(1, 0, 16, 8);
    const linalg::WeightSource source{.data = reinterpret_cast<const std::byte*>(weights.data()),
                                      .n = 16,
                                      .k = 8,
                                      .row_stride = 8};
    const std::span<const linalg::WeightSource> one(&source, 1);
    const auto cpu = make_cpu_backend(best_cpu_variant()), plain = make_reference_backend();
    const linalg::Weight panels = cpu->pack(device, {&one, 1}).value();
    const linalg::Weight rows = plain->pack(device, {&one, 1}).value();
    std::vector<float> x(8), y(16);
    const Matrix in = Matrix::of(x.data(), 1, 8), out = Matrix::of(y.data(), 1, 16);
    EXPECT_THROW(cpu->product(context, in, rows.view(), out, Store::assign), CheckFailure);
    EXPECT_THROW(plain->product(context, in, panels.view(), out, Store::assign), CheckFailure);
}

TEST(Products, RefuseAFormatWithoutKernelsByName) {
    CpuDevice device(1);
    const std::vector<std::byte> weights(64 * 64);
    const std::vector<float> scales(64);
    linalg::WeightSource source{.data = weights.data(),
                                .format = kFp8Blocks,
                                .n = 64,
                                .k = 64,
                                .row_stride = 64,
                                .scales = reinterpret_cast<const std::byte*>(scales.data()),
                                .scale_stride = 4};
    source.format.group_k = 16;
    const std::span<const linalg::WeightSource> one(&source, 1);
    const auto refused = make_cpu_backend(best_cpu_variant())->pack(device, {&one, 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::unsupported);
    EXPECT_NE(refused.error().message.find("e4m3 weights with a scale for 16 inputs"),
              std::string::npos)
        << refused.error().message;
    EXPECT_TRUE(make_reference_backend()->pack(device, {&one, 1}));
    source.format.zero_points = true;
    EXPECT_FALSE(make_reference_backend()->pack(device, {&one, 1}));
}

TEST(StepLoop, OperationsDoNotAllocate) {
    constexpr std::int64_t kTokens = 40;
    constexpr std::int64_t kHidden = 1024;
    constexpr std::int64_t kVocabulary = 40000;
    const auto backend = make_cpu_backend(best_cpu_variant());
    CpuDevice device(3);
    Arena arena = make_arena(backend->scratch_bytes(kTokens, 2, kVocabulary, device.workers()));
    OpContext context{device, arena};
    std::vector<float> x = values(1, 0, kTokens, 2 * kHidden), y(x), angles(kTokens * 64),
                       weight(kHidden, 1.0f);
    std::vector<std::int32_t> index(kTokens, 1), row_of(kTokens, 0);
    RouterRule rule;
    rule.experts = 64;
    rule.top_k = 4;
    PlanStore store(kTokens, rule);
    std::vector<float> router = values(2, 0, kTokens, rule.experts),
                       expert_out(kTokens * 4 * kHidden);
    std::vector<float> logits = values(3, 0, 2, kVocabulary);
    std::vector<SamplingNode> nodes(2);
    nodes[0].top_p = nodes[1].top_p = 0.9f;
    nodes[1].top_k = 5000;
    const std::vector<TokenCount> counts = {{5, 2, true}, {39999, 1, false}};
    const std::vector<LogitBias> biases = {{7, -3.0f}};
    const std::vector<std::uint32_t> allowed(kVocabulary / 32, 0xf0f0f0f0u);
    nodes[1].repetition_penalty = 1.2f;
    nodes[1].committed = nodes[1].changed = counts;
    nodes[1].biases = biases;
    nodes[1].banned = index;
    nodes[1].allowed = allowed.data();
    const NodeBatch batch(kVocabulary, nodes, {0, 20});
    std::vector<DraftChild> children(2 * kMaxDrafts);
    const Matrix in = Matrix::of(x.data(), kTokens, kHidden, 2 * kHidden);
    const Matrix out = Matrix::of(y.data(), kTokens, kHidden, 2 * kHidden);
    const Matrix cos_sin = Matrix::of(angles.data(), kTokens, 64);

    RopeRule rope;
    std::copy_n(weight.begin(), rope.inverse_frequency.size(), rope.inverse_frequency.begin());

    const std::int64_t before = allocations_so_far();
    backend->rms_norm(context, in, weight.data(), 1e-6f, out, in);
    backend->swiglu(context, Matrix::of(x.data(), kTokens, 2 * kHidden), out);
    backend->rope_angles(context, index.data(), kTokens, rope, cos_sin);
    backend->rope(context, in, 64, 16, cos_sin, out, 64);
    backend->convert(context, in, 64, 16, 64, out, 64);
    backend->gather_rows(context, in, index.data(), out);
    backend->copy_rows(context, in, {index.data(), index.data(), 1}, out);
    backend->embed(context, index.data(),
                   {reinterpret_cast<const std::byte*>(x.data()), DType::f32, 2, kHidden}, out);
    backend->route(context, Matrix::of(router.data(), kTokens, rule.experts), nullptr, rule,
                   row_of.data(), store.plan());
    backend->add_terms(
        context,
        {.experts = {Matrix::of(expert_out.data(), kTokens * 4, kHidden), 4, store.plan()},
         .segments = {in, 1}},
        out);
    const Matrix rows = Matrix::of(logits.data(), 2, kVocabulary);
    backend->sample_nodes(context, rows, batch.view());
    backend->draft_children(context, rows, batch.view(), {}, {.width = kMaxDrafts},
                            children.data());
    EXPECT_EQ(allocations_so_far() - before, 0);
    for (const Outcome& outcome : batch.outcomes()) EXPECT_EQ(outcome.draw.flag, DrawFlag::fine);
    CpuDevice alone(1);
    OpContext one_worker{alone, arena};  // a task for each node
    const std::int64_t between = allocations_so_far();
    backend->sample_nodes(one_worker, rows, batch.view());
    backend->draft_children(one_worker, rows, batch.view(), {}, {.width = kMaxDrafts},
                            children.data());
    EXPECT_EQ(allocations_so_far() - between, 0);
}

}  // namespace
}  // namespace espalier::ops
