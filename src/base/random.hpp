// SPDX-License-Identifier: Apache-2.0
// Pseudo-random numbers for tests, workloads and benchmarks: the same everywhere for the same seed.
#pragma once

#include <cstdint>

namespace espalier {

// SplitMix64.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed * kStep + 1) {}
    std::uint64_t bits() {
        state_ += kStep;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    // Both ends included.
    int between(int low, int high) {
        return low + static_cast<int>(bits() % static_cast<std::uint64_t>(high - low + 1));
    }
    double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // in [0, 1)
    bool chance(double p) { return unit() < p; }
    template <typename T, std::size_t N>
    T one_of(const T (&values)[N]) {
        return values[bits() % N];
    }
    // Nearly normal: the sum of four uniforms, scaled to variance 1.
    float normal() {
        const std::uint64_t z = bits();
        std::int64_t sum = 0;
        for (int part = 0; part < 4; ++part)
            sum += static_cast<std::int64_t>((z >> (16 * part)) & 0xffff);
        return (static_cast<float>(sum) / 65536.0f - 2.0f) * 1.7320508f;
    }

  private:
    static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ull;
    std::uint64_t state_;
};

}  // namespace espalier
