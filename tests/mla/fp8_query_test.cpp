// SPDX-License-Identifier: Apache-2.0
// fp8 caches take queries of several types. The other tests use bf16 ones; here are fp16 (which
// bf16 dot products take in two terms) and e4m3 with a scale: accuracy, and guarantees 2 and 5.
#include "mla/implementation.hpp"

namespace espalier::mla {
namespace {

struct QueryCase {
    Implementation implementation;
    DType query = DType::f16;
};

std::vector<QueryCase> query_cases() {
    std::vector<QueryCase> cases;
    for (const Implementation& implementation : cpu_implementations()) {
        const KvFormat format = implementation.format;
        if (format == KvFormat::fp8_tensor || format == KvFormat::fp8_token)
            cases.push_back({implementation, DType::f16});
        if (format == KvFormat::fp8_tensor) cases.push_back({implementation, DType::e4m3});
    }
    return cases;
}

class MlaFp8Query : public testing::TestWithParam<QueryCase> {
  protected:
    static constexpr float kQueryScale = 0.013f;

    Result run(const Kernels& with, const std::vector<Row>& rows, int heads,
               const Layout& layout = {}, int threads = 1) const {
        Batch batch(GetParam().implementation.format, heads, rows, layout);
        const DType dtype = GetParam().query;
        std::vector<float> query;
        for (const Row& row : rows) query.insert(query.end(), row.query.begin(), row.query.end());
        if (dtype == DType::e4m3)
            for (float& x : query) x /= kQueryScale;
        query.resize(static_cast<std::size_t>(batch.tokens() * heads * kKey),
                     std::numeric_limits<float>::quiet_NaN());
        const std::vector<std::byte> stored = narrowed(query, dtype);
        Result result{kLatent, heads, {}, {}};
        result.out.assign(static_cast<std::size_t>(batch.tokens() * heads * kLatent), -123.0f);
        result.lse.assign(static_cast<std::size_t>(batch.tokens() * heads), -123.0f);
        AbsorbedCall call;
        call.rows = batch.view();
        call.heads = heads;
        call.q = stored.data();
        call.q_dtype = dtype;
        call.q_scale = kQueryScale;
        call.kv = batch.kv();
        call.scale = 0.0721687836f;
        call.out = reinterpret_cast<std::byte*>(result.out.data());
        call.out_dtype = DType::f32;
        call.lse = result.lse.data();
        ThreadPool pool(threads);
        Arena arena = exact_arena(with.scratch_bytes(capacities(call.rows, heads, threads)));
        OpContext context{pool, arena};
        const Expected<void> done = with.absorbed(context, call);
        EXPECT_TRUE(done) << (done ? "" : done.error().message);
        return result;
    }

    std::unique_ptr<Kernels> kernels = GetParam().implementation.make();
};
std::string case_name(const testing::TestParamInfo<QueryCase>& info) {
    return info.param.implementation.name() + "_" +
           std::string(espalier::name_of(info.param.query));
}
INSTANTIATE_TEST_SUITE_P(Cpu, MlaFp8Query, testing::ValuesIn(query_cases()), case_name);

TEST_P(MlaFp8Query, Accuracy) {
    const auto oracle = make_reference_kernels();
    for (const int heads : {1, 5, 16, 40}) {
        Random random(static_cast<std::uint64_t>(heads));
        const std::vector<Row> rows =
            hostile_rows(random, heads, 3000, heads == 5 ? Spread::peaked : Spread::normal);
        EXPECT_TRUE(close_to(run(*kernels, rows, heads, {}, 2), run(*oracle, rows, heads),
                             accuracy_bound(GetParam().implementation.format), 60))
            << heads << " heads";
    }
}

TEST_P(MlaFp8Query, EveryTokenEqualsItsCompactedRowAndGarbageDoesNotLeak) {
    for (const int heads : {1, 3, 16}) {
        Random random(61);
        std::vector<Row> rows;
        rows.push_back(make_row(random, MaskKind::tree, heads, 9, 150));
        grow_tree(random, rows.back(), Shape::random);
        rows.push_back(make_row(random, MaskKind::dense, heads, 2, 70));
        punch_holes(random, rows.back(), 0.6);
        rows.push_back(make_row(random, MaskKind::causal, heads, 7, 300));
        std::vector<Row> alone;
        for (const Row& row : rows)
            for (int i = 0; i < row.tokens; ++i) alone.push_back(compacted(row, heads, i));
        const Result expected = run(*kernels, alone, heads, {.poison = 0});
        ASSERT_TRUE(all_same_bits(run(*kernels, rows, heads, {.page_tokens = 32}, 2), expected))
            << heads << " heads";
    }
}

}  // namespace
}  // namespace espalier::mla
