// SPDX-License-Identifier: Apache-2.0
// A GGUF file's metadata as the configuration that its checkpoint had: keys of the `deepseek2`
// architecture become config.json's fields, whose reader checks them. Other architectures, and keys
// that would change what is computed and are not known, are refused by name.
#pragma once

#include <string_view>

#include "base/error.hpp"
#include "base/gguf.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::checkpoint {

// header: of the model's first file; its tensors say whether the head is the embedding's.
Expected<ModelConfig> read_gguf_config(const GgufHeader& header, bool has_head,
                                       std::string_view name);
Expected<GenerationDefaults> read_gguf_generation(const GgufHeader& header, std::string_view name);

}  // namespace espalier::checkpoint
