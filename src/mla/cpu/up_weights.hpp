// SPDX-License-Identifier: Apache-2.0
// One head's up-projection in the elements that the tile kernels multiply: in place where the
// checkpoint's type is theirs, widened into scratch otherwise.
#pragma once

#include "linalg/packed.hpp"
#include "mla/cpu/tile_kernels.hpp"

namespace espalier::mla::cpu {

inline constexpr std::int64_t kUpScaleGroup = 128;  // inputs that share a scale, in bf16 kernels

// True if these kernels multiply latents of their elements by such weights without rounding either
// first. bf16 kernels take bf16 and e4m3 weights; f32 kernels take all.
bool multiplies(const TileKernels& kernels, const WeightFormat& format);

// scratch: as many elements of the kernels as a head's matrix has. e4m3 becomes bf16 exactly and
// keeps its scales, or f32 times its scale.
UpWeights prepare_up_weights(const TileKernels& kernels, const linalg::WeightView& weights,
                             std::int64_t head, std::byte* scratch);

}  // namespace espalier::mla::cpu
