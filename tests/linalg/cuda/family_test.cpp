// SPDX-License-Identifier: Apache-2.0
// The portable family's products have the bits of the GPU's own family: every kind of product and
// of weights, at numbers of tokens that every kernel serves, in one process. A third device has the
// shared memory and multiprocessors of a small card.
#include "linalg/cuda/on_device.hpp"

namespace espalier::linalg {
namespace {

struct Case {
    WeightKind kind;
    std::int64_t n, k;
};

constexpr std::int64_t kTokens[] = {1, 3, 8, 9, 16, 24, 33, 64, 65, 100, 128, 200, 600, 2048};
constexpr std::int64_t kExperts = 24, kTopK = 3;

// A device of the list with all weights of a case.
class Machine {
  public:
    Machine(const DeviceLimits& limits, const Case& c)
        : gpu_(make(limits)),
          case_(c),
          one_(pack_on(*gpu_, {AnyTensor(c.kind, c.n, c.k, 1).view()})),
          other_(pack_on(*gpu_, {AnyTensor(c.kind, kBeside, c.k, 2).view()})),
          tensor_(c.kind, kExperts * c.n, c.k, 3),
          experts_(pack_on(*gpu_, matrices_of(tensor_, kExperts, c.n))),
          heads_(pack_on(*gpu_, matrices_of(tensor_, kHeads, c.n))) {
        if (c.kind.input() != DType::bf16 || c.n % 8 != 0) return;
        gated_ = pack_gated(1);
        gated_experts_ = pack_gated(kExperts / 2);
    }

    // Bytes of every product of that many tokens, one after another.
    std::vector<std::vector<std::byte>> results(std::int64_t tokens) {
        bytes_.clear();
        const std::int64_t step = (case_.k + 15) / 8 * 8;
        const DeviceActivations wide(*gpu_,
                                     wide_random(input(), tokens, kHeads * step, kHeads * step, 5));
        const Matrix x = wide.matrix().columns(0, case_.k);
        for (const DType y : {DType::f32, DType::bf16, DType::f16})
            keep(tokens, case_.n, y, [&](const Matrix& out) {
                cuda::product(stream(), x, one_.view(), out, Store::assign);
            });
        keep(tokens, case_.n, DType::f32, [&](const Matrix& out) {
            cuda::product(stream(), x, one_.view(), out, Store::assign);
            cuda::product(stream(), x, one_.view(), out, Store::accumulate);
        });
        keep(tokens, kHeads * case_.n, DType::f32, [&](const Matrix& out) {
            cuda::stacked_product(stream(), wide.matrix(), step, heads_.view(), out, case_.n);
        });
        multiply_experts(tokens, x);
        if (gated_) multiply_gated(tokens, x);
        return bytes_;
    }

  private:
    static constexpr std::int64_t kHeads = 5, kBeside = 80;

    static std::unique_ptr<Device> make(const DeviceLimits& limits) {
        auto made = make_cuda_device(limits);
        if (!made) throw std::runtime_error(made.error().message);
        return std::move(*made);
    }
    Weight pack_gated(std::int64_t count) {
        std::vector<std::array<WeightSource, 2>> parts;
        for (std::int64_t s = 0; s < count; ++s)
            parts.push_back({tensor_.rows(2 * s * case_.n, case_.n),
                             tensor_.rows((2 * s + 1) * case_.n, case_.n)});
        const std::vector<std::span<const WeightSource>> stack(parts.begin(), parts.end());
        return cuda::pack_gated(*gpu_, stack).value();
    }
    DType input() const { return case_.kind.input(); }
    Stream stream() const { return gpu_->stream(); }

    template <typename Launch>
    void keep(std::int64_t rows, std::int64_t cols, DType dtype, const Launch& launch) {
        Activations host(dtype, rows, cols, cols);
        DeviceActivations out(*gpu_, host);
        out.fill(std::byte{0xff});
        launch(out.matrix());
        out.download(host);
        bytes_.emplace_back(host.bytes().begin(), host.bytes().end());
    }
    void multiply_experts(std::int64_t tokens, const Matrix& x) {
        const Routing routing(tokens, kExperts, kTopK, static_cast<std::uint32_t>(tokens));
        const DeviceInts indptr(*gpu_, routing.indptr), source(*gpu_, routing.source);
        keep(tokens * kTopK, case_.n, DType::f32, [&](const Matrix& out) {
            cuda::expert_product(stream(), x, source.data(), indptr.data(), experts_.view(), out);
        });
    }
    void multiply_gated(std::int64_t tokens, const Matrix& x) {
        const Routing routing(tokens, kExperts / 2, kTopK, static_cast<std::uint32_t>(tokens));
        const DeviceInts indptr(*gpu_, routing.indptr), source(*gpu_, routing.source);
        keep(tokens, case_.n, DType::bf16,
             [&](const Matrix& out) { cuda::gated_product(stream(), x, gated_->view(), out); });
        keep(tokens * kTopK, case_.n, DType::bf16, [&](const Matrix& out) {
            cuda::gated_expert_product(stream(), x, source.data(), indptr.data(),
                                       gated_experts_->view(), out);
        });
        // Joined launches: families may join at other numbers of tokens.
        keep(tokens, kBeside, DType::f32, [&](const Matrix& out) {
            const DeviceActivations first(*gpu_, Activations(DType::f32, tokens, case_.n, case_.n));
            if (!cuda::joint_product(stream(), x, one_.view(), first.matrix(), {other_.view(), out},
                                     nullptr))
                cuda::product(stream(), x, other_.view(), out, Store::assign);
            expect_done(gpu_->synchronize(stream()));
        });
        if (tokens > 8 || case_.k % 128 != 0) return;
        const DeviceActivations shared(*gpu_, Activations(DType::bf16, tokens, case_.n, case_.n));
        keep(tokens * kTopK, case_.n, DType::bf16, [&](const Matrix& out) {
            EXPECT_TRUE(cuda::joint_expert_product(stream(), {x, gated_->view(), shared.matrix()},
                                                   x, source.data(), indptr.data(),
                                                   gated_experts_->view(), out));
        });
        keep(tokens, case_.n, DType::bf16, [&](const Matrix& out) {
            expect_done(gpu_->copy(stream(), out.data, shared.matrix().data,
                                   static_cast<std::size_t>(tokens * case_.n * 2)));
        });
    }

    std::unique_ptr<Device> gpu_;
    Case case_;
    Weight one_, other_;
    AnyTensor tensor_;
    Weight experts_, heads_;
    std::optional<Weight> gated_, gated_experts_;
    std::vector<std::vector<std::byte>> bytes_;
};

class CudaFamily : public testing::TestWithParam<Case> {};

TEST_P(CudaFamily, PortableProductsHaveTheBitsOfTheGpusOwn) {
    Machine own({}, GetParam()), portable({.portable_kernels = true}, GetParam());
    Machine small(
        {.multiprocessors = 82, .block_shared_bytes = 99 * 1024, .portable_kernels = true},
        GetParam());
    for (const std::int64_t tokens : kTokens) {
        const auto expected = own.results(tokens), got = portable.results(tokens),
                   limited = small.results(tokens);
        ASSERT_EQ(expected.size(), got.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_TRUE(expected[i] == got[i]) << tokens << " tokens, product " << i;
            ASSERT_TRUE(expected[i] == limited[i]) << tokens << " tokens, product " << i;
        }
    }
}

TEST(CudaFamilies, IsAFactOfTheDevice) {
    const auto own = make_cuda_device().value();
    const auto portable = make_cuda_device({.portable_kernels = true}).value();
    EXPECT_EQ(portable->facts().family(), GpuFamily::portable);
    EXPECT_EQ(portable->facts().clusters[2], 0);
    EXPECT_EQ(own->facts().multiprocessors, portable->facts().multiprocessors);
    if (own->facts().major == 9 && own->facts().minor == 0) {
        EXPECT_EQ(own->facts().family(), GpuFamily::hopper);
    }
}

// Segments of every number; n of one tile and a bit, of several blocks; k that ends inside a chunk.
std::vector<Case> cases() {
    std::vector<Case> all;
    std::vector<WeightKind> kinds = {DType::bf16, DType::e4m3};
    for (const GroupedKind& kind : kGroupedKinds) kinds.emplace_back(kind);
    for (const WeightKind& kind : kinds)
        for (const auto& [n, k] : {std::pair{200, 128}, {136, 1408}, {152, 2048}, {40, 3400}})
            all.push_back({kind, n, k});
    for (const DType dtype : {DType::bf16, DType::e4m3}) {
        all.push_back({dtype, 24, 7168});
        all.push_back({dtype, 53, 563});  // x cannot be read 16 bytes at a time
    }
    all.push_back({DType::f32, 37, 520});
    return all;
}
INSTANTIATE_TEST_SUITE_P(All, CudaFamily, testing::ValuesIn(cases()), [](const auto& param) {
    return param.param.kind.name() + "_" + std::to_string(param.param.n) + "x" +
           std::to_string(param.param.k);
});

}  // namespace
}  // namespace espalier::linalg
