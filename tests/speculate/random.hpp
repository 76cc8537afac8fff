// SPDX-License-Identifier: Apache-2.0
// Random numbers and trees for the tests of src/speculate. SplitMix64: the same everywhere.
#pragma once

#include <cstdint>

#include "speculate/tree.hpp"

namespace espalier::speculate {

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
    std::int32_t between(std::int32_t low, std::int32_t high) {
        return low + static_cast<std::int32_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
    }
    double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    bool chance(double p) { return unit() < p; }

  private:
    static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ull;
    std::uint64_t state_;
};

// A tree of at most `nodes` nodes over `vocabulary` tokens; deep or bushy as it comes.
inline Tree random_tree(Random& random, std::int32_t nodes, std::int32_t vocabulary) {
    Tree tree(random.between(0, vocabulary - 1));
    const bool deep = random.chance(0.3);
    for (std::int32_t tries = 0; tries < 4 * nodes && tree.size() < nodes; ++tries) {
        const std::int32_t low = deep ? tree.size() - 1 : 0;
        tree.add(random.between(low, tree.size() - 1), random.between(0, vocabulary - 1));
    }
    return tree;
}

}  // namespace espalier::speculate
