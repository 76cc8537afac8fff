// SPDX-License-Identifier: Apache-2.0
// How checkpoints store weights: what config.json may announce, and which tensors make one matrix.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "base/weight_format.hpp"
#include "checkpoint/checkpoint.hpp"

namespace espalier::checkpoint {

class ConfigFields;

// fp8_block; refuses every other quantisation.
void read_quantization(ConfigFields& fields, ModelConfig& config);

// The tensors of one matrix [n, k] in their mapped files.
struct StoredWeight {
    Tensor weights;
    WeightFormat format;
    std::optional<Tensor> scales;  // [groups of n, groups of k] f32; not necessarily aligned
};

// `name` without ".weight". Errors as Checkpoint::find's.
Expected<StoredWeight> find_weight(const Checkpoint& checkpoint, const std::string& name,
                                   std::int64_t n, std::int64_t k);

}  // namespace espalier::checkpoint
