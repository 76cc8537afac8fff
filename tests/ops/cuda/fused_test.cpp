// SPDX-License-Identifier: Apache-2.0
// Operations that a GPU starts as one kernel have the bits of the operations they are made of,
// which other tests hold to the reference.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <utility>

#include "ops/cuda/gpu.hpp"
#include "ops/cuda/joined.hpp"
#include "ops/cuda/kernels.hpp"
#include "ops/layer_program.hpp"
#include "ops/support.hpp"

namespace espalier::ops {
namespace {

std::vector<Bf16> narrow(const std::vector<float>& wide) {
    std::vector<Bf16> values;
    for (const float value : wide) values.push_back(to_bf16(value));
    return values;
}

template <typename T>
void expect_same(const OnGpu<T>& got, const OnGpu<T>& wanted, const std::string& what) {
    const std::vector<T> a = got.values(), b = wanted.values();
    ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)), 0) << what;
}

class GpuFused : public testing::Test {
  protected:
    // Gate and up of `count` matrices, packed both ways.
    struct Gated {
        linalg::Weight apart, dealt;
    };
    Gated pack_gated(const std::vector<Bf16>& stored, std::int64_t count, std::int64_t width,
                     std::int64_t k) {
        std::vector<std::vector<linalg::WeightSource>> sources(static_cast<std::size_t>(count));
        for (std::int64_t part = 0; part < 2 * count; ++part) {
            linalg::WeightSource source;
            source.data = reinterpret_cast<const std::byte*>(stored.data() + part * width * k);
            source.format = {.code = WeightCode::bf16};
            source.n = width;
            source.k = source.row_stride = k;
            sources[static_cast<std::size_t>(part / 2)].push_back(source);
        }
        const std::vector<std::span<const linalg::WeightSource>> stack(sources.begin(),
                                                                       sources.end());
        return {must(gpu.backend->pack(*gpu.device, stack)),
                must(gpu.backend->program().pack_gated(*gpu.device, stack))};
    }

    // A product's terms and norm (what: 0), the experts' (1) and those with a shared expert (2)
    // against their parts. The second row is a pad.
    void compare_sums(std::int64_t rows, std::int32_t top_k, std::int64_t width, int what) {
        std::vector<std::int32_t> pair_of;
        for (std::int64_t i = 0; i < rows * top_k; ++i)
            pair_of.push_back(i / top_k == 1 ? -1 : static_cast<std::int32_t>(i * 5 % 12));
        OnGpu<std::int32_t> pairs(gpu, pair_of);
        OnGpu<float> weight(gpu, values(6, 0, 1, rows * top_k)),
            partial(gpu, values(8, 0, rows, width)), scale(gpu, values(9, 0, 1, width)),
            outputs(gpu, values(10, 0, 12, width)), shared(gpu, values(11, 0, rows, width));
        const ExpertPlan plan{nullptr, weight.data(), nullptr, nullptr, pairs.data()};
        const auto run = [&](bool apart, OnGpu<float>& residual, OnGpu<Bf16>& out,
                             OnGpu<float>& exact) {
            const RowNorm norm{scale.data(), 1e-6f, out.matrix(rows, width),
                               exact.matrix(rows, width)};
            const Matrix sum = residual.matrix(rows, width);
            Terms terms;
            if (what > 0) terms.experts = {outputs.matrix(12, width), top_k, plan};
            if (what != 1) terms.segments = {(what == 2 ? shared : partial).matrix(rows, width), 1};
            const LayerProgram parts(*gpu.backend);
            (apart ? parts : gpu.backend->program()).add(gpu.context, terms, sum, {norm});
        };
        const std::vector<float> start = values(7, 0, rows, width);
        OnGpu<float> residual[2] = {{gpu, start}, {gpu, start}};
        OnGpu<float> exact[2] = {{gpu, start}, {gpu, start}};
        OnGpu<Bf16> out[2] = {{gpu, narrow(start)}, {gpu, narrow(start)}};
        run(false, residual[0], out[0], exact[0]);
        run(true, residual[1], out[1], exact[1]);
        const std::string name = fmt::format("sum {} of {} × {}", what, rows, width);
        ASSERT_NO_FATAL_FAILURE(expect_same(residual[0], residual[1], name));
        ASSERT_NO_FATAL_FAILURE(expect_same(out[0], out[1], name + ": out"));
        ASSERT_NO_FATAL_FAILURE(expect_same(exact[0], exact[1], name + ": exact"));
    }

    // Queries split by single operations.
    void split_apart(const cuda::QueryPlaces& to) {
        const std::int64_t step = to.q.cols / to.heads, apart = to.rope_to.rows;
        const auto rotate = [&](std::int64_t first, std::int64_t rows, const Matrix& rope_to,
                                std::int64_t to_step) {
            const Matrix q = to.q.slice(first, rows).columns(to.width, to.q.cols - to.width);
            gpu.backend->rope(gpu.context, q, step, to.heads, to.cos_sin.slice(first, rows),
                              rope_to, to_step);
        };
        gpu.backend->convert(gpu.context, to.q, step, to.heads, to.width, to.q_act, step);
        rotate(0, apart, to.rope_to, to.rope_step);
        const Matrix rest = to.q_act.slice(apart, to.q.rows - apart);
        rotate(apart, rest.rows, rest.columns(to.width, rest.cols - to.width), step);
    }

    Gpu gpu;
};

TEST_F(GpuFused, GatedProductsAreProductsThenSwiglu) {
    struct Shape {
        std::int64_t width, k;
        bool dealt;
    };
    // One segment, several, unequal ones; fewer outputs than a tile of 128, more; 20 are no eights.
    // 520 gates and ups of 1,600 tokens leave room to arrange x in.
    for (const Shape& shape :
         {Shape{8, 128, true}, Shape{72, 520, true}, Shape{520, 2048, true}, Shape{136, 1408, true},
          Shape{40, 3400, true}, Shape{24, 563, true}, Shape{20, 256, false}}) {
        const auto [width, k, dealt] = shape;
        const Gated w = pack_gated(narrow(values(1, 0, 2 * width, k)), 1, width, k);
        EXPECT_EQ(w.dealt.view().layout == linalg::WeightLayout::gated_fragments, dealt);
        for (const std::int64_t tokens : {1, 2, 8, 9, 17, 40, 64, 65, 128, 300, 1100, 1600}) {
            OnGpu<Bf16> x(gpu, narrow(values(2, 0, tokens, k)));
            OnGpu<float> gate_up(gpu,
                                 std::vector<float>(static_cast<std::size_t>(2 * tokens * width)));
            const std::vector<Bf16> poison(static_cast<std::size_t>(tokens * width), Bf16{0xffff});
            OnGpu<Bf16> wanted(gpu, poison), got(gpu, poison);
            gpu.backend->product(gpu.context, x.matrix(tokens, k), w.apart.view(),
                                 gate_up.matrix(tokens, 2 * width), Store::assign);
            gpu.backend->swiglu(gpu.context, gate_up.matrix(tokens, 2 * width),
                                wanted.matrix(tokens, width));
            cuda::gated_product(gpu.context, x.matrix(tokens, k), w.dealt.view(),
                                gate_up.matrix(tokens, 2 * width), got.matrix(tokens, width));
            ASSERT_NO_FATAL_FAILURE(
                expect_same(got, wanted, fmt::format("{} tokens of {} × {}", tokens, width, k)));
        }
    }
}

TEST_F(GpuFused, GatedExpertsAreProductsThenSwiglu) {
    constexpr std::int64_t kExperts = 12, kWidth = 264, kInputs = 1024, kTopK = 3;
    const Gated w =
        pack_gated(narrow(values(3, 0, 2 * kExperts * kWidth, kInputs)), kExperts, kWidth, kInputs);
    std::mt19937 random(4);
    // Gates and ups of 2,000 tokens leave room to arrange x in.
    for (const std::int64_t tokens : {1, 7, 60, 500, 2000}) {
        const std::int64_t pairs = tokens * kTopK;
        std::vector<std::int32_t> expert, source, indptr(kExperts + 1);
        for (std::int64_t pair = 0; pair < pairs; ++pair) {
            expert.push_back(static_cast<std::int32_t>(random() % (kExperts - 1)));  // one has none
            source.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(tokens)));
        }
        std::sort(expert.begin(), expert.end());
        for (std::size_t e = 0; e <= kExperts; ++e)
            indptr[e] = static_cast<std::int32_t>(
                std::lower_bound(expert.begin(), expert.end(), static_cast<std::int32_t>(e)) -
                expert.begin());
        OnGpu<std::int32_t> sources(gpu, source), bounds(gpu, indptr);
        OnGpu<Bf16> x(gpu, narrow(values(5, 0, tokens, kInputs)));
        OnGpu<float> gate_up(gpu, std::vector<float>(static_cast<std::size_t>(2 * pairs * kWidth)));
        const std::vector<Bf16> poison(static_cast<std::size_t>(pairs * kWidth), Bf16{0xffff});
        OnGpu<Bf16> wanted(gpu, poison), got(gpu, poison);
        gpu.backend->expert_product(gpu.context, x.matrix(tokens, kInputs), sources.data(),
                                    bounds.data(), w.apart.view(),
                                    gate_up.matrix(pairs, 2 * kWidth));
        gpu.backend->swiglu(gpu.context, gate_up.matrix(pairs, 2 * kWidth),
                            wanted.matrix(pairs, kWidth));
        cuda::gated_expert_product(gpu.context, x.matrix(tokens, kInputs), sources.data(),
                                   bounds.data(), w.dealt.view(), gate_up.matrix(pairs, 2 * kWidth),
                                   got.matrix(pairs, kWidth));
        ASSERT_NO_FATAL_FAILURE(expect_same(got, wanted, fmt::format("{} tokens", tokens)));
    }
}

// Rows that a cluster sums, up to 8,192 columns in fours, with whole and broken rounds of 256; and
// those that one block does. Of up to eight tokens the plan is read before the kernel in front
// ends.
TEST_F(GpuFused, SumsAndTheirNormsAreOneAfterAnother) {
    for (const auto& [rows, top_k] : {std::pair<std::int64_t, std::int32_t>{1, 8}, {5, 3}, {9, 9}})
        for (const std::int64_t width : {1, 4, 65, 260, 1536, 2048, 2049, 7168, 8192, 9000})
            for (const int what : {0, 1, 2})
                ASSERT_NO_FATAL_FAILURE(compare_sums(rows, top_k, width, what));
}

// Rows of prompts, which another kernel sums, against a few of them at a time.
TEST_F(GpuFused, NormsOfManyRowsAreThoseOfAFew) {
    constexpr std::int64_t kRows = 1030, kAtOnce = 103, kWidth = 2048;
    OnGpu<float> scale(gpu, values(31, 0, 1, kWidth)), shared(gpu, values(32, 0, kRows, kWidth));
    for (const std::int32_t top_k : {1, 6, 8}) {
        std::vector<std::int32_t> pair_of;
        for (std::int64_t i = 0; i < kRows * top_k; ++i)  // some are pads
            pair_of.push_back(i / top_k % 9 == 4 ? -1 : static_cast<std::int32_t>(i * 7 % 100));
        OnGpu<std::int32_t> pairs(gpu, pair_of);
        OnGpu<float> weight(gpu, values(33, 0, 1, kRows * top_k)),
            outputs(gpu, values(34, 0, 100, kWidth)), partial(gpu, values(35, 0, kRows, kWidth));
        for (const int what : {0, 1, 2}) {
            const auto run = [&](std::int64_t at_once, OnGpu<float>& residual, OnGpu<Bf16>& out,
                                 OnGpu<float>& exact) {
                for (std::int64_t first = 0; first < kRows; first += at_once) {
                    const auto part = [&](const Matrix& all) { return all.slice(first, at_once); };
                    const RowNorm norm{scale.data(), 1e-6f, part(out.matrix(kRows, kWidth)),
                                       what == 1 ? Matrix{} : part(exact.matrix(kRows, kWidth))};
                    const Matrix sum = part(residual.matrix(kRows, kWidth));
                    const ExpertPlan plan{nullptr, weight.data() + first * top_k, nullptr, nullptr,
                                          pairs.data() + first * top_k};
                    Terms terms;
                    if (what > 0) terms.experts = {outputs.matrix(100, kWidth), top_k, plan};
                    if (what != 1)
                        terms.segments = {
                            part((what == 2 ? shared : partial).matrix(kRows, kWidth)), 1};
                    gpu.backend->program().add(gpu.context, terms, sum, {norm});
                }
            };
            const std::vector<float> start = values(36, 0, kRows, kWidth);
            OnGpu<float> residual[2] = {{gpu, start}, {gpu, start}};
            OnGpu<float> exact[2] = {{gpu, start}, {gpu, start}};
            OnGpu<Bf16> out[2] = {{gpu, narrow(start)}, {gpu, narrow(start)}};
            run(kRows, residual[0], out[0], exact[0]);
            run(kAtOnce, residual[1], out[1], exact[1]);
            const std::string name = fmt::format("sum {} of {} experts", what, top_k);
            ASSERT_NO_FATAL_FAILURE(expect_same(residual[0], residual[1], name));
            ASSERT_NO_FATAL_FAILURE(expect_same(out[0], out[1], name + ": out"));
            ASSERT_NO_FATAL_FAILURE(expect_same(exact[0], exact[1], name + ": exact"));
        }
    }
}

TEST_F(GpuFused, QueriesAreSplitAsByTheirParts) {
    constexpr std::int64_t kLatent = 512, kRope = 64, kStep = 576;
    for (const std::int32_t heads : {1, 16})
        for (const auto& [tokens, width] : {std::pair{1, 128}, {3, 128}, {130, 128}, {5, 126}}) {
            const std::int64_t query = heads * (width + kRope);
            OnGpu<float> angles(gpu, values(14, 0, tokens, kRope)),
                q(gpu, values(15, 0, tokens, query));
            const auto room = [&, rows = tokens](std::int64_t cols) {
                return std::vector<float>(static_cast<std::size_t>(rows * cols), -1.0f);
            };
            OnGpu<Bf16> act[2] = {{gpu, narrow(room(query))}, {gpu, narrow(room(query))}};
            OnGpu<Bf16> absorbed[2] = {{gpu, narrow(room(heads * kStep))},
                                       {gpu, narrow(room(heads * kStep))}};
            const Backend& backend = *gpu.backend;
            for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
                const Matrix rope_to = absorbed[i]
                                           .matrix(tokens, heads * kStep)
                                           .columns(kLatent, heads * kStep - kLatent);
                const Matrix cos_sin = angles.matrix(tokens, kRope);
                const Matrix queries = q.matrix(tokens, query);
                const Matrix nope = act[i].matrix(tokens, query);
                const std::int64_t step = width + kRope;
                if (i == 0) {
                    cuda::split_queries(gpu.context.stream, queries, heads, width, cos_sin, nope,
                                        rope_to, kStep);
                } else {
                    backend.convert(gpu.context, queries, step, heads, width, nope, step);
                    backend.rope(gpu.context, queries.columns(width, query - width), step, heads,
                                 cos_sin, rope_to, kStep);
                }
            }
            ASSERT_NO_FATAL_FAILURE(expect_same(act[0], act[1], "q_act"));
            ASSERT_NO_FATAL_FAILURE(expect_same(absorbed[0], absorbed[1], "q_absorbed"));
        }
}

// The numbers of tokens at which one launch serves both products, those at which two do, and those
// at which x is arranged for both; of all, some and none the rotated columns lie apart.
TEST_F(GpuFused, ProductsOfQueriesAreProductsThenSplit) {
    constexpr std::int64_t kInputs = 2048, kRope = 64, kNope = 128, kStep = 576, kBeside = 576;
    constexpr std::int32_t kHeads = 4;
    constexpr std::int64_t kQuery = kHeads * (kNope + kRope);
    const auto weight = [&](std::uint32_t seed, std::int64_t n) {
        const std::vector<Bf16> stored = narrow(values(seed, 0, n, kInputs));
        linalg::WeightSource source;
        source.data = reinterpret_cast<const std::byte*>(stored.data());
        source.format = {.code = WeightCode::bf16};
        source.n = n;
        source.k = source.row_stride = kInputs;
        const std::span<const linalg::WeightSource> one(&source, 1);
        return must(gpu.backend->pack(*gpu.device, linalg::WeightStack(&one, 1)));
    };
    const linalg::Weight w = weight(16, kQuery), other = weight(17, kBeside);
    const std::pair<std::int64_t, std::int64_t> sizes[] = {
        {1, 1},  {3, 3},     {8, 8},       {20, 20},    {64, 64},   {130, 130}, {700, 700},
        {20, 7}, {700, 256}, {1700, 1700}, {1700, 256}, {1537, 37}, {1536, 0}};
    for (const auto& [tokens, apart] : sizes) {
        const auto room = [&](std::int64_t cols) {
            return std::vector<float>(static_cast<std::size_t>(tokens * cols), -1.0f);
        };
        OnGpu<Bf16> x(gpu, narrow(values(18, 0, tokens, kInputs)));
        OnGpu<float> q(gpu, room(kQuery)), angles(gpu, values(19, 0, tokens, kRope));
        OnGpu<float> beside[2] = {{gpu, room(kBeside)}, {gpu, room(kBeside)}};
        OnGpu<Bf16> act[2] = {{gpu, narrow(room(kQuery))}, {gpu, narrow(room(kQuery))}};
        OnGpu<Bf16> absorbed[2] = {{gpu, narrow(room(kHeads * kStep))},
                                   {gpu, narrow(room(kHeads * kStep))}};
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
            const Matrix query = absorbed[i].matrix(tokens, kHeads * kStep).slice(0, apart);
            const Matrix in = x.matrix(tokens, kInputs), all = q.matrix(tokens, kQuery);
            const cuda::QueryPlaces to{.q = all,
                                       .heads = kHeads,
                                       .width = kNope,
                                       .cos_sin = angles.matrix(tokens, kRope),
                                       .q_act = act[i].matrix(tokens, kQuery),
                                       .rope_to = query.columns(512, query.cols - 512),
                                       .rope_step = kStep};
            const Matrix second = beside[i].matrix(tokens, kBeside);
            if (i == 0) {
                cuda::query_product(gpu.context, in, w.view(), to, {other.view(), second}, {});
                continue;
            }
            gpu.backend->product(gpu.context, in, w.view(), all, Store::assign);
            gpu.backend->product(gpu.context, in, other.view(), second, Store::assign);
            split_apart(to);
        }
        const std::string name = fmt::format("{} tokens, {} apart", tokens, apart);
        // Rope columns of act are nobody's: those of the composed form keep what was there, too.
        ASSERT_NO_FATAL_FAILURE(expect_same(act[0], act[1], name + ": act"));
        ASSERT_NO_FATAL_FAILURE(expect_same(absorbed[0], absorbed[1], name + ": rope"));
        ASSERT_NO_FATAL_FAILURE(expect_same(beside[0], beside[1], name + ": beside"));
    }
}

}  // namespace
}  // namespace espalier::ops
