// SPDX-License-Identifier: Apache-2.0
// Segments of a weight: the cut by shape and by heads, and that products of parts of a weight, cut
// at segment borders, are the terms of the whole weight's product, for every kernel and format.
#include "linalg/segments.hpp"

#include <gtest/gtest.h>

#include "linalg/grouped_weights.hpp"
#include "linalg/product.hpp"
#include "linalg/random_weights.hpp"

namespace espalier::linalg {
namespace {

TEST(Segments, CoverAllInputsOnce) {
    for (const std::int64_t n : {16, 576, 1536, 2048, 7168})
        for (std::int64_t k = 1; k <= 20000; k += k < 600 ? 1 : 61) {
            const InputSegments cut = input_segments(n, k);
            ASSERT_EQ(cut.count, segments_of(n, k).count);
            ASSERT_EQ(cut.inputs % kChunkInputs, 0);
            ASSERT_LT((cut.count - 1) * cut.inputs, k) << n << " × " << k;
            ASSERT_GE(cut.count * cut.inputs, k) << n << " × " << k;
        }
}

TEST(Segments, OfHeadsAreWholeHeads) {
    const auto segments = [](std::int64_t n, std::int64_t heads, std::int64_t width) {
        const InputSegments cut = head_segments(n, heads, width);
        return std::pair(std::int64_t{cut.count}, cut.inputs);
    };
    using Cut = std::pair<std::int64_t, std::int64_t>;
    EXPECT_EQ(segments(7168, 128, 128), Cut(8, 2048));  // DeepSeek-V3
    EXPECT_EQ(segments(7168, 64, 128), Cut(8, 1024));   // Kimi K2
    EXPECT_EQ(segments(2048, 16, 128), Cut(8, 256));    // DeepSeek-V2-Lite
    EXPECT_EQ(segments(2048, 20, 256), Cut(4, 1280));   // GLM-4.7-Flash: 14 × 384 by shape
    EXPECT_EQ(segments(128, 5, 256), Cut(5, 256));      // tiny-glm: 10 × 128 by shape
    EXPECT_EQ(segments(128, 4, 128), Cut(4, 128));      // tiny-v2, tiny-v3
    EXPECT_EQ(segments(128, 3, 96), Cut(3, 128));       // heads narrower than a chunk: by shape
}

TEST(Segments, AreDealtInRunsWithNoneLeftOver) {
    for (std::int32_t whole = 0; whole <= 20; ++whole)
        for (int ranks = 1; ranks <= 9; ++ranks) {
            std::int64_t next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const InputSegments part =
                    part_of(InputSegments{whole, 0, whole, 128}, rank, ranks);
                EXPECT_EQ(part.first, next);
                EXPECT_LE(part.count, (whole + ranks - 1) / ranks);
                next += part.count;
            }
            EXPECT_EQ(next, whole);
        }
}

// Columns [first, first + count) of a stored source.
WeightSource columns(WeightSource source, std::int64_t first, std::int64_t count) {
    source.data += source.format.bytes(first);
    source.first_col += first;
    source.k = count;
    return source;
}

// Terms of parts, one product after the other, and their ascending sum.
void check_parts(CpuVariant variant, const WeightSource& source, std::int64_t each) {
    const Products products(variant);
    if (!products.check_format(source.format)) return;
    CpuDevice device(2);
    const std::int64_t n = source.n, k = source.k;
    const auto count = static_cast<std::int32_t>(divide_up(k, each));
    Weight whole = pack_or_die(device, source);
    whole.cut({count, 0, count, each});
    for (const std::int64_t rows : {1, 2, 5, 31, 200}) {
        Activations x = Activations::random(source.format.input(), rows, k, k + 3, 4);
        Activations total(DType::f32, rows, n, n), apart(DType::f32, rows * count, n, n + 2),
            sum(DType::f32, rows, n, n);
        products.product(device.pool(), x.matrix(), whole.view(), total.matrix());
        products.segment_sums(device.pool(), x.matrix(), whole.view(), apart.matrix());
        for (std::int32_t s = 0; s < count; ++s) {
            const std::int64_t first = s * each, some = std::min(each, k - first);
            const Weight part = pack_or_die(device, columns(source, first, some));
            Activations term(DType::f32, rows, n, n);
            products.product(device.pool(), x.matrix().columns(first, some), part.view(),
                             term.matrix());
            for (std::int64_t row = 0; row < rows; ++row) {
                ASSERT_TRUE(same_row(apart, s * rows + row, term, row, n))
                    << "segment " << s << ", row " << row << " of " << rows;
                for (std::int64_t column = 0; column < n; ++column) {
                    float& to = sum.matrix().row<float>(row)[column];
                    const float one = term.matrix().row<float>(row)[column];
                    to = s == 0 ? one : to + one;
                }
            }
        }
        for (std::int64_t row = 0; row < rows; ++row)
            ASSERT_TRUE(same_row(total, row, sum, row, n)) << "row " << row << " of " << rows;
    }
}

class SegmentSums : public testing::TestWithParam<CpuVariant> {};

TEST_P(SegmentSums, OfPartsAreThoseOfTheWholeWeight) {
    for (const DType dtype : kWeightTypes)
        for (const auto& [k, each] :
             {std::pair<std::int64_t, std::int64_t>{300, 128}, {1027, 384}}) {
            SCOPED_TRACE(fmt::format("{}, {} by {}", name_of(dtype), k, each));
            ASSERT_NO_FATAL_FAILURE(
                check_parts(GetParam(), StoredTensor(dtype, 53, k, 1, 1).view(), each));
        }
    for (const GroupedKind& kind : cpu_kinds()) {
        if (kind.format.group_k == 256) continue;  // a part may begin inside a group: refused
        SCOPED_TRACE(kind.name);
        ASSERT_NO_FATAL_FAILURE(
            check_parts(GetParam(), GroupedTensor(kind, 53, 640, 2).view(), 256));
    }
}

// Parts of packed weights, which ranks copy, are what packing those parts of the sources gives.
TEST(PanelParts, HaveTheBytesOfPartsThatArePacked) {
    CpuDevice device(2);
    std::vector<std::pair<std::string, std::vector<WeightSource>>> kinds;
    std::vector<StoredTensor> stored;
    std::vector<GroupedTensor> grouped;
    for (const DType dtype : kWeightTypes) stored.emplace_back(dtype, 3 * 80, 515, 1, 1);
    for (const GroupedKind& kind : cpu_kinds())
        if (kind.format.group_k <= 128) grouped.emplace_back(kind, 3 * 80, 512, 2);
    for (const StoredTensor& tensor : stored) kinds.push_back({"stored", {tensor.view()}});
    for (const GroupedTensor& tensor : grouped) kinds.push_back({"grouped", {tensor.view()}});
    const auto rows = [](WeightSource source, std::int64_t first, std::int64_t count) {
        source.data += source.format.bytes(first * source.row_stride);
        source.first_row += first;
        source.n = count;
        return source;
    };
    for (const auto& [name, sources] : kinds) {
        const WeightSource& all = sources.front();
        SCOPED_TRACE(fmt::format("{} {}", name, name_of(all.format.code)));
        // Three matrices of gate and up, 48 and 32 rows; of each the second half, or the last.
        std::vector<std::vector<WeightSource>> whole, wanted;
        const std::int64_t first_k = 128, count_k = all.k - first_k;
        for (std::int64_t i = 0; i < 3; ++i)
            whole.push_back({rows(all, i * 80, 48), rows(all, i * 80 + 48, 32)});
        for (const std::int64_t i : {0, 2})
            wanted.push_back({columns(rows(all, i * 80 + 16, 32), first_k, count_k),
                              columns(rows(all, i * 80 + 64, 16), first_k, count_k)});
        const auto packed = [&](const std::vector<std::vector<WeightSource>>& lists) {
            const std::vector<std::span<const WeightSource>> stack(lists.begin(), lists.end());
            return pack_panels(device, stack).value();
        };
        const Weight from = packed(whole), expected = packed(wanted);
        const StackPart part{{0, 2}, {{16, 32}, {64, 16}}, {first_k, count_k}};
        ASSERT_TRUE(in_panels(from.view(), part));
        const auto copied = copy_panels(device, from.view(), part);
        ASSERT_TRUE(copied) << copied.error().message;
        const WeightView &a = copied->view(), &b = expected.view();
        ASSERT_EQ(copied->bytes(), expected.bytes());
        EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(b.count * b.matrix_bytes)),
                  0);
        if (b.format.scaled()) {
            EXPECT_EQ(
                std::memcmp(a.scales, b.scales, static_cast<std::size_t>(b.count * b.scale_bytes)),
                0);
        }
        EXPECT_FALSE(in_panels(from.view(), {{0}, {{8, 16}}, {0, all.k}}));
        EXPECT_FALSE(in_panels(from.view(), {{0}, {{0, 8}, {48, 16}}, {0, all.k}}));
        EXPECT_FALSE(in_panels(from.view(), {{0}, {{0, 16}}, {64, 128}}));
        EXPECT_FALSE(in_panels(from.view(), {{0}, {{0, 16}}, {0, 64}}));
    }
}

INSTANTIATE_TEST_SUITE_P(Of, SegmentSums, testing::ValuesIn(variants_here()),
                         [](const auto& given) { return std::string(name_of(given.param)); });

}  // namespace
}  // namespace espalier::linalg
