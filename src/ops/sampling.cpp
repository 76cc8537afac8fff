// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling.hpp"

#include "ops/draw.hpp"

namespace espalier::ops {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::uint64_t key) {
    auto k0 = static_cast<std::uint32_t>(key);
    auto k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t first = std::uint64_t{0xD2511F53u} * counter[0];
        const std::uint64_t second = std::uint64_t{0xCD9E8D57u} * counter[2];
        counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ k0,
                   static_cast<std::uint32_t>(second),
                   static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ k1,
                   static_cast<std::uint32_t>(first)};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return counter;
}

double gumbel(std::uint64_t seed, std::int32_t position, std::int32_t token, std::int32_t choice) {
    const std::array<std::uint32_t, 4> counter = {static_cast<std::uint32_t>(position),
                                                  static_cast<std::uint32_t>(token),
                                                  static_cast<std::uint32_t>(choice), 0u};
    return gumbel_of(philox4x32(counter, seed)[0]);
}

}  // namespace espalier::ops
