// SPDX-License-Identifier: Apache-2.0
// Experts of a layer that lie in one tensor, as transformers 5 writes some classes: gate_up_proj
// [experts, 2 · width, hidden] and down_proj [experts, hidden, width] with their FP8 scales beside
// them. They are read by the names of single experts, so that nothing else knows of it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

// True for "….mlp.experts.gate_up_proj" and its kin.
bool is_joined_experts(std::string_view name);
// One expert's tensors after another, each a part of `entry`. `place` opens messages.
Expected<std::vector<std::pair<std::string, TensorEntry>>> split_joined_experts(
    std::string_view name, const TensorEntry& entry, std::string_view place);

}  // namespace espalier::checkpoint
