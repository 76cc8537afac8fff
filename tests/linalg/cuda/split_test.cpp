// SPDX-License-Identifier: Apache-2.0
// Products of 17 … 64 tokens whose tiles the blocks of a cluster share by segments of k
// (many_split.cuh), in every format: shapes that are too few tiles for a device's multiprocessors
// and long enough that sharing them pays.
#include "linalg/cuda/clusters.hpp"
#include "linalg/cuda/on_device.hpp"

namespace espalier::linalg {
namespace {

struct Case {
    WeightKind kind;
    std::int64_t n, k;
};

class CudaSplitCases : public testing::TestWithParam<Case> {};

TEST_P(CudaSplitCases, EveryTokenHasTheBitsOfItselfAlone) {
    constexpr std::int64_t kMost = 64;
    const auto& [kind, n, k] = GetParam();
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    const AnyTensor w(kind, n, k, 1);
    const Weight packed = pack_on(*gpu, {w.view()});
    const DeviceActivations x(*gpu, wide_random(DType::bf16, kMost, k, k, 2));
    Activations alone(DType::f32, kMost, n, n);
    const DeviceActivations each(*gpu, alone);
    for (std::int64_t row = 0; row < kMost; ++row)
        cuda::product(gpu->stream(), x.matrix().slice(row, 1), packed.view(),
                      each.matrix().slice(row, 1), Store::assign);
    each.download(alone);
    for (const std::int64_t tokens : {17, 25, 32, 33, 61, 64}) {
        Activations together(DType::f32, tokens, n, n);
        together.fill(std::byte{0xff});
        const DeviceActivations y(*gpu, together);
        const std::int64_t first = kMost - tokens;
        cuda::product(gpu->stream(), x.matrix().slice(first, tokens), packed.view(), y.matrix(),
                      Store::assign);
        y.download(together);
        for (std::int64_t row = 0; row < tokens; ++row)
            ASSERT_TRUE(same_row(together, row, alone, first + row, n)) << row << " of " << tokens;
    }
}

// Bits do not depend on the number of multiprocessors, though plans do: one device has them all,
// another of the same process a tenth.
TEST(CudaSplit, TwoDevicesOfAProcessGiveTheSameBits) {
    constexpr std::int64_t kTokens = 48, kN = 2104, kK = 7168;
    const std::unique_ptr<Device> whole = gpu_or_throw();
    const auto part = make_cuda_device({.multiprocessors = 13});
    ASSERT_TRUE(part);
    const AnyTensor w(DType::bf16, kN, kK, 1);
    std::vector<Activations> results;
    for (Device* gpu : {whole.get(), part->get(), whole.get()}) {
        const Weight packed = pack_on(*gpu, {w.view()});
        const DeviceActivations x(*gpu, wide_random(DType::bf16, kTokens, kK, kK, 2));
        Activations y(DType::f32, kTokens, kN, kN);
        const DeviceActivations on_gpu(*gpu, y);
        cuda::product(gpu->stream(), x.matrix(), packed.view(), on_gpu.matrix(), Store::assign);
        on_gpu.download(y);
        results.push_back(std::move(y));
    }
    for (std::int64_t row = 0; row < kTokens; ++row) {
        ASSERT_TRUE(same_row(results[1], row, results[0], row, kN)) << row;
        ASSERT_TRUE(same_row(results[2], row, results[0], row, kN)) << row;
    }
}

// Plans count on the device's facts, which know no kernel of products.
TEST(CudaSplit, FactsCountTheClustersThatProductsGet) {
    const std::unique_ptr<Device> gpu = gpu_or_throw();
    for (int blocks = 2; blocks <= kMostClusterBlocks; ++blocks)
        EXPECT_EQ(gpu->facts().clusters[static_cast<std::size_t>(blocks)],
                  cuda::clusters_of_split_product(blocks))
            << blocks;
}

// Eight segments by two blocks and by three, 14 by five, the last with fewer; n that ends inside a
// tile, k inside a chunk.
std::vector<Case> cases() {
    return {{DType::bf16, 5624, 2040},
            {DType::e4m3, 2104, 7160},
            {DType::e4m3, 7160, 8184},
            {grouped_kind("int8_32"), 2104, 7168},
            {grouped_kind("int4_32"), 7160, 8192},
            {grouped_kind("nvfp4"), 7160, 8192}};
}
INSTANTIATE_TEST_SUITE_P(All, CudaSplitCases, testing::ValuesIn(cases()), [](const auto& param) {
    return param.param.kind.name() + "_" + std::to_string(param.param.n) + "x" +
           std::to_string(param.param.k);
});

}  // namespace
}  // namespace espalier::linalg
