// SPDX-License-Identifier: Apache-2.0
// The portable variant has the reference backend's bits for every kind of quantized weight.
#include <gtest/gtest.h>

#include "base/cpu_device.hpp"
#include "linalg/grouped_weights.hpp"
#include "ops/ops.hpp"

namespace espalier::ops {
namespace {

TEST(QuantizedProducts, PortableHasTheReferencesBits) {
    CpuDevice device(2);
    Buffer memory = device.allocate(1 << 16).value();
    Arena arena(std::move(memory));
    OpContext context{device, arena};
    const auto reference = make_reference_backend(),
               portable = make_cpu_backend(CpuVariant::portable);
    for (const linalg::GroupedKind& kind : linalg::cpu_kinds())
        for (const auto& [rows, n, k] :
             {std::array<std::int64_t, 3>{1, 17, 64}, {6, 40, 130}, {30, 33, 512}, {3, 20, 1002}}) {
            SCOPED_TRACE(fmt::format("{} {} × {} × {}", kind.name, rows, n, k));
            const linalg::GroupedTensor w(kind, n, k, 5);
            const linalg::WeightSource source = w.view();
            const std::span<const linalg::WeightSource> one(&source, 1);
            const auto panels = portable->pack(device, {&one, 1});
            ASSERT_TRUE(panels) << panels.error().message;
            const auto plain = reference->pack(device, {&one, 1});
            ASSERT_TRUE(plain) << plain.error().message;
            std::mt19937 engine(6);
            std::normal_distribution<float> normal;
            std::vector<Bf16> x(static_cast<std::size_t>(rows * k));
            for (Bf16& value : x) value = to_bf16(normal(engine));
            std::vector<float> a(static_cast<std::size_t>(rows * n)), b(a);
            const Matrix in{reinterpret_cast<std::byte*>(x.data()), DType::bf16, rows, k, k};
            portable->product(context, in, panels->view(), Matrix::of(a.data(), rows, n),
                              Store::assign);
            reference->product(context, in, plain->view(), Matrix::of(b.data(), rows, n),
                               Store::assign);
            ASSERT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
        }
}

}  // namespace
}  // namespace espalier::ops
