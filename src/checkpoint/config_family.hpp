// SPDX-License-Identifier: Apache-2.0
// The parts of config.json that decide whether we can run the model at all: its class, its sizes,
// its attention and its rotary scaling (its quantisation: quantization.hpp). Each refuses by name
// what it does not know. For model_config.cpp and eagle3_config.cpp.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::checkpoint {

class ConfigFields;

struct ConfigFamily {
    Architecture architecture;
    Wrapper wrapper = Wrapper::none;
    // The object that describes the language model: the document, or what its wrapper has.
    const nlohmann::json* text = nullptr;
    std::string place;  // for messages
};

Expected<ConfigFamily> find_family(const nlohmann::json& document, std::string_view name);

// The first of "architectures"; empty: none is named.
std::string class_name_of(ConfigFields& fields);

// Vocabulary, widths, layers, positions, epsilon, tied head.
void read_sizes(ConfigFields& fields, ModelConfig& config);
// Heads, ranks and head dimensions.
void read_attention(ConfigFields& fields, ModelConfig& config);
// The indexer of sparse attention, and the layers that have one, for families that do.
void read_indexer(ConfigFields& fields, ModelConfig& config);
// rope_theta and yarn, from rope_scaling or from the newer rope_parameters.
void read_rope(ConfigFields& fields, ModelConfig& config);

}  // namespace espalier::checkpoint
