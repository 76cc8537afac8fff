// SPDX-License-Identifier: Apache-2.0
// The noise of a draw is the same number on both sides: at both ends of the words, where logarithms
// are steepest, and at every 1021st of all 2³².
#include "ops/cuda/noise.hpp"

#include <cstring>

#include "ops/cuda/gpu.hpp"
#include "ops/draw.hpp"

namespace espalier::ops {
namespace {

void compare(Gpu& gpu, std::uint32_t first, std::uint32_t step, std::int64_t count) {
    OnGpu<double> out(gpu, std::vector<double>(static_cast<std::size_t>(count)));
    noise_on_gpu(gpu.device->stream(), first, step, count, out.data());
    const std::vector<double> got = out.values();
    std::int64_t different = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        const double wanted = gumbel_of(first + static_cast<std::uint32_t>(i) * step);
        different += std::memcmp(&got[static_cast<std::size_t>(i)], &wanted, sizeof wanted) != 0;
    }
    EXPECT_EQ(different, 0) << "of " << count << " words from " << first;
}

TEST(GpuNoise, HasTheBitsOfTheCpu) {
    Gpu gpu;
    compare(gpu, 0, 1, 1 << 18);
    compare(gpu, 0u - (1u << 18), 1, 1 << 18);
    compare(gpu, 0x80000000u - (1u << 17), 1, 1 << 18);
    compare(gpu, 0, 1021, (std::int64_t{1} << 32) / 1021);
}

}  // namespace
}  // namespace espalier::ops
