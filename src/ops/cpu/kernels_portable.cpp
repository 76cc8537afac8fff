// SPDX-License-Identifier: Apache-2.0
// The baseline instruction set: what the compiler may assume of every machine.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/numeric.hpp"
#include "base/portable_math.hpp"
#include "ops/draw.hpp"
#include "ops/kernels.hpp"

namespace espalier::ops {
namespace {

void philox(const std::int32_t* tokens, std::int64_t n, std::uint64_t seed, std::int32_t position,
            std::int32_t choice, std::uint32_t* out) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = philox_word(seed, position, tokens[i], choice);
}

#include "ops/cpu/kernels.inc"

}  // namespace
}  // namespace espalier::ops

namespace espalier::ops {

const KernelTable& portable_kernels() { return kTable; }

}  // namespace espalier::ops
