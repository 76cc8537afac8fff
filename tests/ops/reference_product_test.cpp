// SPDX-License-Identifier: Apache-2.0
// The reference backend's products over plain rows have the bits of the portable CPU variant over
// its panels: two layouts, two programs, one definition.
#include "ops/reference_product.hpp"

#include <gtest/gtest.h>

#include <tuple>

#include "linalg/packed.hpp"
#include "linalg/product.hpp"
#include "linalg/random_weights.hpp"
#include "linalg/rows.hpp"
#include "linalg/weight_at.hpp"

namespace espalier::ops {
namespace {

using linalg::Activations;
using linalg::StoredTensor;
using linalg::WeightSource;

class Layouts : public testing::TestWithParam<DType> {};

TEST_P(Layouts, HoldTheSameNumbers) {
    CpuDevice device(1);
    // Views that begin inside the grid of scales, one of them transposed, joined and stacked.
    const StoredTensor big(GetParam(), 300, 260, 1, 3), other(GetParam(), 260, 9, 2);
    const std::vector<std::vector<WeightSource>> lists = {
        {big.view(100, 0, 40, 260), other.view(true)}, {big.view(7, 0, 49, 260)}};
    const std::vector<std::span<const WeightSource>> stack(lists.begin(), lists.end());
    const linalg::Weight rows = linalg::pack_rows(device, stack).value();
    const linalg::Weight panels = linalg::pack_panels(device, stack).value();
    EXPECT_EQ(rows.view().layout, linalg::WeightLayout::rows);
    for (std::int64_t matrix = 0; matrix < 2; ++matrix)
        for (std::int64_t n = 0; n < 49; ++n)
            for (std::int64_t k = 0; k < 260; ++k)
                ASSERT_EQ(linalg::weight_at(rows.view(), matrix, n, k),
                          linalg::weight_at(panels.view(), matrix, n, k))
                    << matrix << ": " << n << ", " << k;
}

TEST_P(Layouts, MultiplyToTheSameBits) {
    CpuDevice device(2);
    const linalg::Products products(CpuVariant::portable);
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 1}, {17, 33}, {64, 128}, {30, 300}, {5, 1025}}) {
        const StoredTensor w(GetParam(), n, k, 3, 1);
        const WeightSource source = w.view();
        const std::span<const WeightSource> one(&source, 1);
        const linalg::Weight rows = linalg::pack_rows(device, {&one, 1}).value();
        const linalg::Weight panels = linalg::pack_panels(device, {&one, 1}).value();
        const DType input = source.format.input();
        Activations x = Activations::random(input, 7, k, k + 3, 4);
        for (const DType out : {DType::f32, DType::bf16, DType::f16}) {
            Activations got(out, 7, n, n + 1), wanted(out, 7, n, n + 1);
            ops::reference_product(x.matrix(), rows.view(), got.matrix(), Store::assign);
            products.product(device.pool(), x.matrix(), panels.view(), wanted.matrix());
            EXPECT_EQ(got.bytes(), wanted.bytes()) << n << " × " << k << " to " << name_of(out);
        }
        Activations got = Activations::random(DType::f32, 7, n, n, 5);
        Activations wanted = Activations::random(DType::f32, 7, n, n, 5);
        ops::reference_product(x.matrix(), rows.view(), got.matrix(), Store::accumulate);
        products.product(device.pool(), x.matrix(), panels.view(), wanted.matrix(),
                         Store::accumulate);
        EXPECT_EQ(got.bytes(), wanted.bytes()) << n << " × " << k << ", accumulated";
    }
}

// Weights cut into segments, as one rank adds them and as ranks exchange them.
TEST_P(Layouts, AddSegmentsInOneOrder) {
    CpuDevice device(2);
    const linalg::Products products(CpuVariant::portable);
    for (const auto& [n, k, each] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{5, 256, 128},
          {33, 1025, 128},
          {17, 1025, 384}}) {
        const StoredTensor stored(GetParam(), n, k, 3, 1);
        const WeightSource source = stored.view();
        const std::span<const WeightSource> one(&source, 1);
        linalg::Weight rows = linalg::pack_rows(device, {&one, 1}).value();
        linalg::Weight panels = linalg::pack_panels(device, {&one, 1}).value();
        const auto count = static_cast<std::int32_t>((k + each - 1) / each);
        rows.cut({count, 0, count, each});
        panels.cut({count, 0, count, each});
        Activations x = Activations::random(source.format.input(), 7, k, k + 3, 4);
        Activations got(DType::f32, 7, n, n + 1), wanted(DType::f32, 7, n, n + 1);
        ops::reference_product(x.matrix(), rows.view(), got.matrix(), Store::assign);
        products.product(device.pool(), x.matrix(), panels.view(), wanted.matrix());
        EXPECT_EQ(got.bytes(), wanted.bytes()) << n << " × " << k << " by " << each;
        Activations apart(DType::f32, 7 * count, n, n + 1), sums(DType::f32, 7 * count, n, n + 1);
        ops::reference_segment_sums(x.matrix(), rows.view(), apart.matrix());
        products.segment_sums(device.pool(), x.matrix(), panels.view(), sums.matrix());
        EXPECT_EQ(apart.bytes(), sums.bytes()) << n << " × " << k << " by " << each << ", apart";
    }
}

INSTANTIATE_TEST_SUITE_P(All, Layouts, testing::ValuesIn(linalg::kWeightTypes),
                         [](const auto& param) { return std::string(name_of(param.param)); });

}  // namespace
}  // namespace espalier::ops
