// SPDX-License-Identifier: Apache-2.0
// Products of prompts that share what is arranged: two of one x, and a gated one whose results go
// straight to where the next reads them. Bits are those of the products one by one, which without
// scratch memory another kernel computes.
#include <array>

#include "linalg/cuda/gates.hpp"
#include "linalg/cuda/on_device.hpp"

namespace espalier::linalg {
namespace {

Weight pack_gates(Device& device, const AnyTensor& tensor, std::int64_t count, std::int64_t width) {
    std::vector<std::array<WeightSource, 2>> parts;
    for (std::int64_t s = 0; s < count; ++s)
        parts.push_back(
            {tensor.rows(2 * s * width, width), tensor.rows((2 * s + 1) * width, width)});
    const std::vector<std::span<const WeightSource>> stack(parts.begin(), parts.end());
    return cuda::pack_gated(device, stack).value();
}

class CudaArranged : public testing::Test {
  protected:
    // NaN in every element.
    cuda::Scratch scratch(Buffer& memory, std::int64_t rows, std::int64_t k) {
        memory = gpu_->allocate(cuda::scratch_bytes(rows, k)).value();
        expect_done(gpu_->fill(stream_, memory.data(), std::byte{0xff}, memory.bytes()));
        return {memory.data(), memory.bytes()};
    }

    std::unique_ptr<Device> gpu_ = gpu_or_throw();
    Stream stream_ = gpu_->stream();
    Buffer first_, second_;
};

// Widths of 128 are one stage and a half in the gated product's tiles; 1,408 has eleven segments.
constexpr std::array<std::array<std::int64_t, 2>, 4> kLayers = {
    {{256, 128}, {520, 384}, {2048, 1408}, {2048, 2816}}};  // hidden, width

class CudaArrangedDense : public CudaArranged, public testing::WithParamInterface<WeightKind> {
  protected:
    WeightKind kind_ = GetParam();
};

class CudaArrangedExperts : public CudaArranged, public testing::WithParamInterface<WeightKind> {
  protected:
    void expect_experts(const Routing& routing, std::int64_t tokens, std::int64_t hidden,
                        std::int64_t width);

    WeightKind kind_ = GetParam();
};

TEST_P(CudaArrangedDense, FeedForwardIsOneProductAfterTheOther) {
    for (const auto& [hidden, width] : kLayers) {
        const Weight gate = pack_gates(*gpu_, AnyTensor(kind_, 2 * width, hidden, 1), 1, width);
        const AnyTensor rows(kind_, hidden, width, 2);
        const Weight down = pack_on(*gpu_, {rows.view()});
        for (const std::int64_t tokens : {1536, 1537, 2048, 3001}) {
            const DeviceActivations x(*gpu_, wide_random(DType::bf16, tokens, hidden, hidden, 3));
            Activations wanted(DType::f32, tokens, hidden, hidden),
                got(DType::f32, tokens, hidden, hidden);
            const DeviceActivations between(*gpu_, Activations(DType::bf16, tokens, width, width)),
                alone(*gpu_, wanted);
            DeviceActivations together(*gpu_, got);
            together.fill(std::byte{0xff});
            cuda::gated_product(stream_, x.matrix(), gate.view(), between.matrix());
            cuda::product(stream_, between.matrix(), down.view(), alone.matrix(), Store::assign);
            const cuda::FeedForwardScratch room{scratch(first_, tokens, hidden),
                                                scratch(second_, tokens, width)};
            ASSERT_TRUE(cuda::feed_forward(stream_, x.matrix(), gate.view(), down.view(),
                                           between.matrix(), together.matrix(), room));
            alone.download(wanted);
            together.download(got);
            for (std::int64_t row = 0; row < tokens; ++row)
                ASSERT_TRUE(same_row(got, row, wanted, row, hidden))
                    << row << " of " << tokens << ", width " << width;
        }
        const DeviceActivations few(*gpu_, wide_random(DType::bf16, 100, hidden, hidden, 4)),
            none(*gpu_, Activations(DType::bf16, 100, width, width)),
            out(*gpu_, Activations(DType::f32, 100, hidden, hidden));
        EXPECT_FALSE(cuda::feed_forward(
            stream_, few.matrix(), gate.view(), down.view(), none.matrix(), out.matrix(),
            {scratch(first_, 100, hidden), scratch(second_, 100, width)}));
    }
}

// An expert's tokens lie in the order of the routing, with room for more behind the last.
void CudaArrangedExperts::expect_experts(const Routing& routing, std::int64_t tokens,
                                         std::int64_t hidden, std::int64_t width) {
    constexpr std::int64_t kSpare = 5;
    const auto experts = static_cast<std::int64_t>(routing.indptr.size()) - 1;
    const std::int64_t pairs = routing.indptr.back() + kSpare;
    const Weight gate =
        pack_gates(*gpu_, AnyTensor(kind_, 2 * experts * width, hidden, 5), experts, width);
    const AnyTensor rows(kind_, experts * hidden, width, 6);
    const Weight down = pack_on(*gpu_, matrices_of(rows, experts, hidden));
    const DeviceInts indptr(*gpu_, routing.indptr), source(*gpu_, routing.source);
    const DeviceActivations x(*gpu_, wide_random(DType::bf16, tokens, hidden, hidden, 7));
    Activations wanted(DType::f32, pairs, hidden, hidden), got(DType::f32, pairs, hidden, hidden);
    const DeviceActivations between(*gpu_, Activations(DType::bf16, pairs, width, width));
    DeviceActivations alone(*gpu_, wanted), together(*gpu_, got);
    for (DeviceActivations* one : {&alone, &together}) one->fill(std::byte{0xff});
    cuda::gated_expert_product(stream_, x.matrix(), source.data(), indptr.data(), gate.view(),
                               between.matrix());
    cuda::expert_product(stream_, between.matrix(), nullptr, indptr.data(), down.view(),
                         alone.matrix());
    const cuda::FeedForwardScratch room{scratch(first_, pairs, hidden),
                                        scratch(second_, pairs, width)};
    const bool arranged =
        cuda::expert_feed_forward(stream_, x.matrix(), source.data(), indptr.data(), gate.view(),
                                  down.view(), between.matrix(), together.matrix(), room);
    ASSERT_TRUE(arranged || pairs < 96 * experts);
    if (!arranged) return;
    alone.download(wanted);
    together.download(got);
    for (std::int64_t row = 0; row < pairs; ++row)
        ASSERT_TRUE(same_row(got, row, wanted, row, hidden))
            << row << " of " << tokens << " tokens, width " << width;
}

TEST_P(CudaArrangedExperts, ExpertFeedForwardIsOneProductAfterTheOther) {
    constexpr std::int64_t kExperts = 13, kTopK = 3;
    for (const auto& [hidden, width] : kLayers) {
        if (width > 1408) continue;
        for (const std::int64_t tokens : {500, 2048, 3001})
            expect_experts(Routing(tokens, kExperts, kTopK, static_cast<std::uint32_t>(tokens)),
                           tokens, hidden, width);
    }
}

// Tiles of every number of tokens: none, one, about a step of 16 and about a whole tile.
TEST_P(CudaArrangedExperts, ExpertsOfAnyNumberOfTokens) {
    constexpr std::int64_t kTokens = 500;
    Routing routing(0, 0, 0, 0);
    for (const std::int64_t count : {0, 1, 15, 16, 17, 64, 129, 300, 128, 112, 500, 0, 97}) {
        for (std::int64_t i = 0; i < count; ++i)
            routing.source.push_back(static_cast<std::int32_t>((i * 7 + count) % kTokens));
        routing.indptr.push_back(static_cast<std::int32_t>(routing.source.size()));
    }
    for (const auto& [hidden, width] : kLayers) expect_experts(routing, kTokens, hidden, width);
}

// Values that a gated product rounds to bf16 come from approximations wherever they decide it.
TEST_F(CudaArranged, EveryGateGivesTheBitsOfThePlainWay) {
    for (const bool mixed : {false, true}) {
        unsigned long long found = 0;
        first_ = gpu_->allocate(sizeof(found)).value();
        expect_done(gpu_->fill(stream_, first_.data(), std::byte{0}, sizeof(found)));
        count_other_gates(stream_, mixed, reinterpret_cast<unsigned long long*>(first_.data()));
        expect_done(gpu_->download(stream_, &found, first_.data(), sizeof(found)));
        EXPECT_EQ(found, 0u) << (mixed ? "mixed" : "up is 1");
    }
}

TEST_P(CudaArrangedDense, TwoProductsOfOneXHaveTheBitsOfEach) {
    constexpr std::int64_t kInputs = 2048, kFirst = 3072, kSecond = 576;
    const AnyTensor w(kind_, kFirst, kInputs, 8), other(kind_, kSecond, kInputs, 9);
    const Weight one = pack_on(*gpu_, {w.view()}), two = pack_on(*gpu_, {other.view()});
    for (const std::int64_t tokens : {1536, 2048, 2500}) {
        const DeviceActivations x(*gpu_, wide_random(DType::bf16, tokens, kInputs, kInputs, 10));
        Activations wanted(DType::f32, tokens, kFirst, kFirst),
            got(DType::f32, tokens, kFirst, kFirst),
            wanted_second(DType::f32, tokens, kSecond, kSecond),
            got_second(DType::f32, tokens, kSecond, kSecond);
        const DeviceActivations y(*gpu_, wanted), z(*gpu_, wanted_second);
        DeviceActivations joint_y(*gpu_, got), joint_z(*gpu_, got_second);
        for (DeviceActivations* out : {&joint_y, &joint_z}) out->fill(std::byte{0xff});
        cuda::product(stream_, x.matrix(), one.view(), y.matrix(), Store::assign);
        cuda::product(stream_, x.matrix(), two.view(), z.matrix(), Store::assign);
        ASSERT_TRUE(cuda::joint_product(stream_, x.matrix(), one.view(), joint_y.matrix(),
                                        {two.view(), joint_z.matrix()}, nullptr,
                                        scratch(first_, tokens, kInputs)));
        y.download(wanted);
        z.download(wanted_second);
        joint_y.download(got);
        joint_z.download(got_second);
        ASSERT_EQ(got.bytes(), wanted.bytes()) << tokens;
        ASSERT_EQ(got_second.bytes(), wanted_second.bytes()) << tokens;
    }
}

std::vector<WeightKind> kinds(std::initializer_list<const char*> grouped) {
    std::vector<WeightKind> all = {DType::bf16, DType::e4m3};
    for (const char* name : grouped) all.emplace_back(grouped_kind(name));
    return all;
}
const auto kName = [](const auto& param) { return param.param.name(); };
INSTANTIATE_TEST_SUITE_P(All, CudaArrangedDense, testing::ValuesIn(kinds({"int4_32", "nvfp4"})),
                         kName);
INSTANTIATE_TEST_SUITE_P(All, CudaArrangedExperts,
                         testing::ValuesIn(kinds({"int8_32", "int8_128", "int4_32", "nvfp4"})),
                         kName);

}  // namespace
}  // namespace espalier::linalg
