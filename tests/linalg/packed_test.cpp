// SPDX-License-Identifier: Apache-2.0
#include "linalg/packed.hpp"

#include "linalg/random_weights.hpp"

namespace espalier::linalg {
namespace {

// Reads the layout as packed.hpp describes it, on its own.
float packed_code(const WeightView& view, std::int64_t n, std::int64_t k) {
    const WeightCode code = view.format.code;
    const bool paired = code == WeightCode::bf16 || code == WeightCode::e4m3;
    const std::int64_t k_padded = paired ? (view.k + 1) / 2 * 2 : view.k;
    const std::int64_t panel = n / 16 * k_padded * 16;
    const std::int64_t inside = paired ? (k / 2 * 16 + n % 16) * 2 + k % 2 : k * 16 + n % 16;
    return load_weight(view.data, code, panel + inside);
}

float packed_scale(const WeightView& view, std::int64_t n, std::int64_t k) {
    return load_element(view.scales, DType::f32,
                        (n / 16 * ((view.k + 127) / 128) + k / 128) * 16 + n % 16);
}

// Output n0 + i, input j of `view` against stored element (row + i, col + j), or (row + j, col + i)
// if transposed.
void expect_block(const WeightView& view, std::int64_t n0, const StoredTensor& tensor,
                  std::int64_t row, std::int64_t col, std::int64_t n, bool transposed) {
    for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < view.k; ++j) {
            const std::int64_t r = row + (transposed ? j : i), c = col + (transposed ? i : j);
            ASSERT_EQ(packed_code(view, n0 + i, j), tensor.code(r, c))
                << "output " << n0 + i << " input " << j;
            if (!view.format.scaled()) continue;
            ASSERT_EQ(packed_scale(view, n0 + i, j), tensor.scale(r, c))
                << "output " << n0 + i << " input " << j;
        }
    }
}

void expect_zero_padding(const WeightView& whole) {
    const PackedView view(whole);
    const std::int64_t lanes = view.panels() * 16, k_padded = view.k_padded();
    for (std::int64_t n = 0; n < lanes; ++n)
        for (std::int64_t k = 0; k < k_padded; ++k)
            if (n >= view.n || k >= view.k) {
                ASSERT_EQ(packed_code(view, n, k), 0.0f) << n << " " << k;
            }
}

class PackedTypes : public testing::TestWithParam<DType> {};

TEST_P(PackedTypes, RoundTripOfPlainAndTransposedSources) {
    const DType dtype = GetParam();
    const std::pair<std::int64_t, std::int64_t> shapes[] = {
        {1, 1}, {16, 2}, {17, 3}, {15, 129}, {130, 257}, {300, 128}, {33, 384}, {64, 2000}};
    for (const int workers : {1, 3}) {
        CpuDevice device(workers);
        for (const auto& [n, k] : shapes) {
            const StoredTensor plain(dtype, n, k, 1, 5), turned(dtype, k, n, 2, 3);
            const Weight a = pack_or_die(device, plain.view());
            expect_block(a.view(), 0, plain, 0, 0, n, false);
            expect_zero_padding(a.view());
            const Weight b = pack_or_die(device, turned.view(true));
            ASSERT_EQ(b.view().n, n);
            ASSERT_EQ(b.view().k, k);
            expect_block(b.view(), 0, turned, 0, 0, n, true);
            expect_zero_padding(b.view());
        }
    }
}

TEST_P(PackedTypes, RoundTripOfJoinedSourcesAndStacks) {
    const DType dtype = GetParam();
    CpuDevice device(2);
    // kv_b of three heads, each with 128 + 40 rows, cut into head views joined the other way round,
    // and a transposed source in between: no join falls on a multiple of 16.
    const StoredTensor big(dtype, 3 * 168, 130, 3, 1), other(dtype, 130, 9, 4);
    std::vector<std::vector<WeightSource>> lists;
    for (std::int64_t head = 0; head < 3; ++head)
        lists.push_back({big.view(head * 168 + 128, 0, 40, 130), other.view(true),
                         big.view(head * 168, 0, 128, 130)});
    std::vector<std::span<const WeightSource>> stack(lists.begin(), lists.end());
    auto packed = pack_panels(device, stack);
    ASSERT_TRUE(packed) << packed.error().message;
    ASSERT_EQ(packed->view().count, 3);
    ASSERT_EQ(packed->view().n, 177);
    for (std::int64_t head = 0; head < 3; ++head) {
        const WeightView view = packed->view().at(head);
        expect_block(view, 0, big, head * 168 + 128, 0, 40, false);
        expect_block(view, 40, other, 0, 0, 9, true);
        expect_block(view, 49, big, head * 168, 0, 128, false);
        expect_zero_padding(view);
    }
}

INSTANTIATE_TEST_SUITE_P(All, PackedTypes, testing::ValuesIn(kWeightTypes),
                         [](const auto& param) { return std::string(name_of(param.param)); });

TEST(PackedScales, ViewsBeginAnywhereAlongOutputs) {
    CpuDevice device(1);
    const StoredTensor tensor(DType::e4m3, 500, 400, 5);
    for (const std::int64_t first : {0, 1, 100, 127, 128, 200}) {
        const Weight plain = pack_or_die(device, tensor.view(first, 128, 150, 260));
        expect_block(plain.view(), 0, tensor, first, 128, 150, false);
        const Weight turned = pack_or_die(device, tensor.view(256, first, 200, 150, true));
        expect_block(turned.view(), 0, tensor, 256, first, 150, true);
    }
    // Along k a view may begin anywhere as long as it stays in one block of scales.
    const Weight inside = pack_or_die(device, tensor.view(3, 140, 20, 116));
    expect_block(inside.view(), 0, tensor, 3, 140, 20, false);
}

std::string error_of(std::vector<std::vector<WeightSource>> lists) {
    CpuDevice device(1);
    const std::vector<std::span<const WeightSource>> stack(lists.begin(), lists.end());
    const auto packed = pack_panels(device, stack);
    return packed ? "" : packed.error().message;
}

TEST(PackedErrors, NameTheTwoNumbers) {
    const StoredTensor bf16(DType::bf16, 32, 64, 1), f32(DType::f32, 32, 64, 1),
        e4m3(DType::e4m3, 300, 300, 1);
    const WeightSource good = bf16.view();
    EXPECT_EQ(error_of({{good}}), "");
    EXPECT_EQ(error_of({}), "nothing to pack");
    EXPECT_EQ(error_of({{}}), "nothing to pack");
    EXPECT_EQ(error_of({{good, bf16.view(0, 0, 32, 62)}}),
              "joined weights disagree: 64 inputs and 62");
    EXPECT_EQ(error_of({{good, f32.view()}}), "joined weights disagree: bf16 and f32");
    EXPECT_EQ(error_of({{good}, {good, good}}),
              "matrix 1 of the stack has 64 outputs, the first has 32");
    EXPECT_EQ(error_of({{good}, {}}), "matrix 1 of the stack has 0 outputs, the first has 32");

    WeightSource bad = good;
    bad.row_stride = 63;
    EXPECT_EQ(error_of({{bad}}), "weights with 64 stored columns have a row stride of 63");
    bad = good;
    bad.n = -1;
    EXPECT_EQ(error_of({{bad}}), "weights of shape [-1, 64] cannot be packed");
    bad = good;
    bad.data = nullptr;
    EXPECT_EQ(error_of({{bad}}), "weights [32, 64] without data");
    bad = e4m3.view();
    bad.scales = nullptr;
    EXPECT_EQ(error_of({{bad}}), "e4m3 weights [300, 300] without scales");
    bad = e4m3.view();
    bad.scale_stride = 2;
    EXPECT_EQ(error_of({{bad}}),
              "e4m3 weights end at column 300 but a row of scales has 2 blocks of 128");
    EXPECT_EQ(
        error_of({{e4m3.view(0, 64, 100, 200)}}),
        "e4m3 weights with 200 inputs begin at input 64 of their scale grid, no multiple of 128");
}

// Wherever the one NaN is, and not where it lies beside the view.
TEST(PackedErrors, NanAmongE4m3WeightsIsRefused) {
    for (const std::size_t at : {0, 17, 299, 300 * 150 + 7, 300 * 300 - 1}) {
        for (const std::byte code : {std::byte{0x7f}, std::byte{0xff}}) {
            StoredTensor w(DType::e4m3, 300, 300, 1);
            w.bytes()[1 + at] = code;
            for (const bool transposed : {false, true})
                EXPECT_EQ(error_of({{w.view(transposed)}}),
                          "e4m3 weights [300, 300] with NaN among them")
                    << at;
        }
    }
    StoredTensor beside(DType::e4m3, 40, 40, 1);
    beside.bytes()[1 + 40 * 3 + 39] = std::byte{0x7f};
    EXPECT_EQ(error_of({{beside.view(0, 0, 40, 39)}}), "");
    EXPECT_EQ(error_of({{beside.view(0, 0, 40, 39, true)}}), "");
    EXPECT_EQ(error_of({{beside.view(4, 0, 36, 40)}}), "");
}

TEST(PackedErrors, SizesAreMultipliedWithOverflowChecks) {
    const StoredTensor tensor(DType::f32, 1, 1, 1);
    WeightSource huge = tensor.view();
    huge.n = std::int64_t{1} << 40;
    huge.k = huge.row_stride = std::int64_t{1} << 40;
    EXPECT_NE(error_of({{huge}}).find("does not fit 64 bits"), std::string::npos)
        << error_of({{huge}});
    huge.n = 1;  // one stored row fits, sixteen lanes of it do not
    huge.k = huge.row_stride = std::int64_t{1} << 60;
    EXPECT_NE(error_of({{huge}}).find("does not fit 64 bits"), std::string::npos)
        << error_of({{huge}});
    huge.k = huge.row_stride = std::numeric_limits<std::int64_t>::max();
    EXPECT_NE(error_of({{huge}}), "");
    huge.k = huge.row_stride = std::int64_t{1} << 45;  // fits 64 bits, not this machine
    EXPECT_NE(error_of({{huge}}).find("cannot allocate"), std::string::npos) << error_of({{huge}});
}

}  // namespace
}  // namespace espalier::linalg
