// SPDX-License-Identifier: Apache-2.0
// Published models by their sizes, so that a checkpoint can be called what people call it. Only for
// people: nothing goes by it.
#pragma once

#include <string_view>

#include "checkpoint/model_config.hpp"

namespace espalier::checkpoint {

// Empty: a model of other sizes.
std::string_view published_name(const ModelConfig& config);

}  // namespace espalier::checkpoint
