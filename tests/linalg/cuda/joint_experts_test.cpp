// SPDX-License-Identifier: Apache-2.0
// A shared expert's products in front of the routed experts' in one launch: the bits of both by
// themselves, whatever is routed where, and in a graph that was recorded over another routing.
#include "linalg/cuda/on_device.hpp"

namespace espalier::linalg {
namespace {

struct Layer {
    WeightKind kind;
    std::int64_t hidden, shared, width;  // of the shared expert and of each routed one
};

// V2-Lite's (segments of one length in the first products, of one and two chunks in the second),
// V3's long rows, and small ones.
std::vector<Layer> layers() {
    std::vector<Layer> all;
    std::vector<WeightKind> kinds = {DType::bf16, DType::e4m3};
    for (const char* name : {"int8_32", "int4_32", "int8_128", "nvfp4"})
        kinds.emplace_back(grouped_kind(name));
    for (const WeightKind& kind : kinds)
        for (const auto& [hidden, shared, width] :
             {std::array{2048, 2816, 1408}, {7168, 256, 256}, {1024, 384, 384}, {256, 2048, 2048}})
            all.push_back({kind, hidden, shared, width});
    return all;
}

constexpr std::int64_t kExperts = 12, kTopK = 3, kMostTokens = 8;

Weight pack_gate_up(Device& device, const AnyTensor& tensor, std::int64_t count,
                    std::int64_t width) {
    std::vector<std::array<WeightSource, 2>> parts;
    for (std::int64_t s = 0; s < count; ++s)
        parts.push_back(
            {tensor.rows(2 * s * width, width), tensor.rows((2 * s + 1) * width, width)});
    std::vector<std::span<const WeightSource>> stack(parts.begin(), parts.end());
    auto packed = cuda::pack_gated(device, stack);
    EXPECT_TRUE(packed) << (packed ? "" : packed.error().message);
    return std::move(packed.value());
}

class CudaJointExperts : public testing::TestWithParam<Layer> {
  protected:
    const Layer& layer_ = GetParam();
    std::unique_ptr<Device> gpu_ = gpu_or_throw();
    Stream stream_ = gpu_->stream();
    const Weight shared_gate_ = pack_gate_up(
        *gpu_, AnyTensor(layer_.kind, 2 * layer_.shared, layer_.hidden, 1), 1, layer_.shared);
    const Weight gate_ =
        pack_gate_up(*gpu_, AnyTensor(layer_.kind, 2 * kExperts * layer_.width, layer_.hidden, 2),
                     kExperts, layer_.width);
    const Weight shared_down_ =
        pack_on(*gpu_, {AnyTensor(layer_.kind, layer_.hidden, layer_.shared, 3).view()});
    const AnyTensor down_rows_{layer_.kind, kExperts* layer_.hidden, layer_.width, 4};
    const Weight down_ = pack_on(*gpu_, matrices_of(down_rows_, kExperts, layer_.hidden));
};

// Results that a layer's products leave behind, NaN where nothing was written.
struct Results {
    Activations shared_gated, gated, shared_out, out;
    DeviceActivations on_shared_gated, on_gated, on_shared_out, on_out;

    Results(Device& gpu, const Layer& layer, std::int64_t tokens, std::int64_t pairs)
        : shared_gated(DType::bf16, tokens, layer.shared, layer.shared),
          gated(DType::bf16, pairs, layer.width, layer.width),
          shared_out(DType::f32, tokens, layer.hidden, layer.hidden + 4),
          out(DType::f32, pairs, layer.hidden, layer.hidden),
          on_shared_gated(gpu, shared_gated),
          on_gated(gpu, gated),
          on_shared_out(gpu, shared_out),
          on_out(gpu, out) {}
    void clear() {
        for (DeviceActivations* one : {&on_shared_gated, &on_gated, &on_shared_out, &on_out})
            one->fill(std::byte{0xff});
    }
    void download() {
        on_shared_gated.download(shared_gated);
        on_gated.download(gated);
        on_shared_out.download(shared_out);
        on_out.download(out);
    }
    void expect_equal(const Results& other, std::int64_t tokens) const {
        EXPECT_EQ(shared_gated.bytes(), other.shared_gated.bytes()) << tokens;
        EXPECT_EQ(gated.bytes(), other.gated.bytes()) << tokens;
        EXPECT_EQ(shared_out.bytes(), other.shared_out.bytes()) << tokens;
        EXPECT_EQ(out.bytes(), other.out.bytes()) << tokens;
    }
};

TEST_P(CudaJointExperts, HaveTheBitsOfEachProductByItself) {
    for (const std::int64_t tokens : {1, 2, 3, 5, 8}) {
        const std::int64_t room = kMostTokens * kTopK + 2;
        const Routing first(tokens, kExperts, kTopK, static_cast<std::uint32_t>(tokens));
        std::vector<std::int32_t> sources = first.source;
        sources.resize(static_cast<std::size_t>(room));
        DeviceInts indptr(*gpu_, first.indptr), source(*gpu_, sources);
        Activations host_x = wide_random(DType::bf16, tokens, layer_.hidden, layer_.hidden, 5);
        DeviceActivations x(*gpu_, host_x);
        Results apart(*gpu_, layer_, tokens, room), joint(*gpu_, layer_, tokens, room);
        const auto run_apart = [&] {
            apart.clear();
            cuda::gated_product(stream_, x.matrix(), shared_gate_.view(),
                                apart.on_shared_gated.matrix());
            cuda::product(stream_, apart.on_shared_gated.matrix(), shared_down_.view(),
                          apart.on_shared_out.matrix(), Store::assign);
            cuda::gated_expert_product(stream_, x.matrix(), source.data(), indptr.data(),
                                       gate_.view(), apart.on_gated.matrix());
            cuda::expert_product(stream_, apart.on_gated.matrix(), nullptr, indptr.data(),
                                 down_.view(), apart.on_out.matrix());
            apart.download();
        };
        const auto run_joint = [&]() -> Expected<void> {
            EXPECT_TRUE(cuda::joint_expert_product(
                stream_, {x.matrix(), shared_gate_.view(), joint.on_shared_gated.matrix()},
                x.matrix(), source.data(), indptr.data(), gate_.view(), joint.on_gated.matrix()));
            EXPECT_TRUE(cuda::joint_expert_product(
                stream_,
                {joint.on_shared_gated.matrix(), shared_down_.view(), joint.on_shared_out.matrix()},
                joint.on_gated.matrix(), nullptr, indptr.data(), down_.view(),
                joint.on_out.matrix()));
            return {};
        };
        run_apart();
        joint.clear();
        expect_done(run_joint());
        joint.download();
        joint.expect_equal(apart, tokens);
        ASSERT_FALSE(std::isnan(joint.out.value(tokens * kTopK - 1, layer_.hidden - 1)));
        ASSERT_FALSE(std::isnan(joint.shared_out.value(tokens - 1, layer_.hidden - 1)));

        auto graph = gpu_->record(stream_, run_joint);
        ASSERT_TRUE(graph) << graph.error().message;
        for (std::int64_t used = 0; used <= tokens; used += 1 + tokens / 3) {
            const Routing other(used, kExperts, kTopK, static_cast<std::uint32_t>(used + 40));
            indptr.upload(other.indptr);
            source.upload(other.source);
            x.upload(wide_random(DType::bf16, tokens, layer_.hidden, layer_.hidden,
                                 static_cast<std::uint32_t>(used + 6)));
            run_apart();
            joint.clear();
            expect_done((*graph)->play());
            joint.download();
            joint.expect_equal(apart, used);
        }
    }
}

TEST_P(CudaJointExperts, AreNotForMoreTokensThanATileHolds) {
    const std::int64_t tokens = kMostTokens + 1;
    const Routing routing(tokens, kExperts, kTopK, 1);
    const DeviceInts indptr(*gpu_, routing.indptr), source(*gpu_, routing.source);
    const DeviceActivations x(*gpu_,
                              wide_random(DType::bf16, tokens, layer_.hidden, layer_.hidden, 5));
    const Results results(*gpu_, layer_, tokens, tokens * kTopK);
    EXPECT_FALSE(cuda::joint_expert_product(
        stream_, {x.matrix(), shared_gate_.view(), results.on_shared_gated.matrix()}, x.matrix(),
        source.data(), indptr.data(), gate_.view(), results.on_gated.matrix()));
}

INSTANTIATE_TEST_SUITE_P(All, CudaJointExperts, testing::ValuesIn(layers()), [](const auto& param) {
    const Layer& layer = param.param;
    return layer.kind.name() + "_" + std::to_string(layer.hidden) + "_" +
           std::to_string(layer.shared) + "_" + std::to_string(layer.width);
});

}  // namespace
}  // namespace espalier::linalg
