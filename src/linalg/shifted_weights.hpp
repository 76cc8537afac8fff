// SPDX-License-Identifier: Apache-2.0
// Integer weights with zero points as checkpoints store them (AWQ, asymmetric compressed-tensors),
// made what a backend packs: a weight is (code − zero point) · scale, and becomes
// code' · scale + z with code' in two's complement and z = (half the codes' range − zero point) ·
// scale in f32, which is exact where scales have 16 bits.
#pragma once

#include <vector>

#include "base/thread_pool.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

struct ShiftedSource {
    enum class Layout : std::uint8_t {
        // AutoAWQ's "gemm": words of eight outputs in its order. Codes [k, n/8], zero points
        // [groups, n/8], scales [groups, n].
        awq,
        // compressed-tensors: codes plus half their range in words, [n, k/per word]; zero points
        // likewise, packed along n: [n/per word, groups]; scales [n, groups].
        packed,
        // Codes I8 [n, k], zero points I8 [n, groups]; scales [n, groups].
        bytes,
    };
    Layout layout = Layout::awq;
    WeightFormat format;  // with zero points, scales in f32
    DType scale_type = DType::f16;
    std::int64_t n = 0, k = 0;
    std::int64_t row_stride = 0;  // weights between stored rows; not of awq
    const std::byte* codes = nullptr;
    const std::byte* scales = nullptr;
    const std::byte* zeros = nullptr;
};

// The place of an output's code in a word of AWQ's, in bits.
constexpr int awq_shift(std::int64_t output) {
    constexpr int kPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    return 4 * kPlace[output % 8];
}

class ShiftedWeights {
  public:
    // The source outlives it: codes that lie by outputs stay where they are.
    static ShiftedWeights make(ThreadPool& pool, const ShiftedSource& source);

    WeightSource source() const;

  private:
    ShiftedSource from_;
    std::vector<std::byte> codes_;  // of awq: [n, k]
    std::vector<float> scales_, zeros_;
};

}  // namespace espalier::linalg
