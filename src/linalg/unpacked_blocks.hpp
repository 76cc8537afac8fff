// SPDX-License-Identifier: Apache-2.0
// Blocks of a GGUF tensor as codes, scales and zero points apart, as a backend packs them: the
// numbers of base/block_format.hpp. Four-bit codes from zero become two's complement, so their zero
// point is 8 · scale more: exact where scale and minimum lie within 2⁶ of each other, elsewhere
// rounded to f32.
#pragma once

#include <vector>

#include "base/block_format.hpp"
#include "base/thread_pool.hpp"
#include "linalg/weight.hpp"

namespace espalier::linalg {

class UnpackedBlocks {
  public:
    // blocks: of [n, k], row after row; k is a multiple of a block's weights. Of each row the
    // columns `some` are the source, and the blocks that hold them are read.
    static UnpackedBlocks unpack(ThreadPool& pool, BlockCode code, const std::byte* blocks,
                                 std::int64_t n, std::int64_t k, const Part& some);
    static UnpackedBlocks unpack(ThreadPool& pool, BlockCode code, const std::byte* blocks,
                                 std::int64_t n, std::int64_t k) {
        return unpack(pool, code, blocks, n, k, {0, k});
    }

    WeightSource source() const;

  private:
    WeightFormat format_;
    std::int64_t n_ = 0, k_ = 0;  // of what was unpacked
    Part some_;                   // columns of it
    std::vector<std::byte> codes_;
    std::vector<float> scales_, zeros_;  // [n, groups]; without zero points none of them
};

}  // namespace espalier::linalg
