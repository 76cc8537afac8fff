// SPDX-License-Identifier: Apache-2.0
// The number formats are one header for host and device: conversions must agree bit for bit on
// both.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/numeric.hpp"

namespace espalier {
namespace {

struct Narrowed {
    std::uint16_t bf16, fp16;
    std::uint8_t e4m3;
    bool operator==(const Narrowed&) const = default;
};

__host__ __device__ Narrowed narrow(float value) {
    return {to_bf16(value).bits, to_fp16(value).bits, to_e4m3(value).bits};
}

__host__ __device__ std::uint32_t widen(std::uint32_t code, int format) {
    const float value = format == 0   ? to_float(Bf16{static_cast<std::uint16_t>(code)})
                        : format == 1 ? to_float(Fp16{static_cast<std::uint16_t>(code)})
                                      : to_float(E4m3{static_cast<std::uint8_t>(code)});
    return value == value ? std::bit_cast<std::uint32_t>(value) : 0x7fc00000u;  // one NaN for all
}

__global__ void narrow_all(std::uint32_t first, std::uint32_t step, int count, Narrowed* out) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count)
        out[i] = narrow(std::bit_cast<float>(first + static_cast<std::uint32_t>(i) * step));
}

__global__ void widen_all(int format, int count, std::uint32_t* out) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) out[i] = widen(static_cast<std::uint32_t>(i), format);
}

template <typename T, typename Launch>
std::vector<T> on_device(int count, Launch launch) {
    T* device = nullptr;
    EXPECT_EQ(cudaMalloc(&device, sizeof(T) * static_cast<std::size_t>(count)), cudaSuccess);
    launch(device);
    std::vector<T> result(static_cast<std::size_t>(count));
    EXPECT_EQ(cudaMemcpy(result.data(), device, sizeof(T) * result.size(), cudaMemcpyDeviceToHost),
              cudaSuccess);
    cudaFree(device);
    return result;
}

TEST(NumericCuda, NarrowingAgreesWithTheHost) {
    constexpr int kCount = 1 << 22;
    constexpr std::uint32_t kStep =
        1021;  // a prime: 2^32 / 1021 samples over all floats, special ones included
    const auto device = on_device<Narrowed>(
        kCount, [](Narrowed* out) { narrow_all<<<kCount / 256, 256>>>(0, kStep, kCount, out); });
    for (int i = 0; i < kCount; ++i) {
        const float value = std::bit_cast<float>(static_cast<std::uint32_t>(i) * kStep);
        ASSERT_EQ(device[static_cast<std::size_t>(i)], narrow(value)) << value;
    }
}

TEST(NumericCuda, WideningAgreesWithTheHost) {
    for (const int format : {0, 1, 2}) {
        const int count = format == 2 ? 256 : 65536;
        const auto device = on_device<std::uint32_t>(
            count, [&](std::uint32_t* out) { widen_all<<<256, 256>>>(format, count, out); });
        for (int code = 0; code < count; ++code)
            ASSERT_EQ(device[static_cast<std::size_t>(code)],
                      widen(static_cast<std::uint32_t>(code), format))
                << code;
    }
}

}  // namespace
}  // namespace espalier
