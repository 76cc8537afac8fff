// SPDX-License-Identifier: Apache-2.0
// config.json of an EAGLE3 draft for an MLA target: one dense decoder layer of MLA over the
// target's hidden states at a few layers. Accepts EAGLE3 and EAGLE3.1 (norm_output, fc_norm) of
// class Eagle3DeepseekV2ForCausalLM; refuses drafts of other layers (Llama's, Qwen's) by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/model_config.hpp"

namespace espalier::checkpoint {

struct Eagle3Config {
    ModelConfig layer;  // dense, one layer; vocab_size is the target's
    std::int64_t target_hidden_size = 0;
    std::int64_t draft_vocab_size = 0;
    std::vector<std::int64_t> aux_layer_ids;  // as written; empty: not given
    bool norm_before_residual = false;        // the residual is the normed state
    bool norm_before_fc = false;              // one norm over all taps side by side
    bool fc_norm = false;                     // a norm of its own for each tap
    bool norm_output = false;  // a drafted token's state is taken behind the last norm

    // Number of taps that fc joins.
    std::int64_t taps() const {
        return aux_layer_ids.empty() ? 3 : static_cast<std::int64_t>(aux_layer_ids.size());
    }
    // Which layers of a target are tapped, by the residual stream that enters them. Two conventions
    // are published: id i is the stream that enters layer i, or, where the first id is 1, the one
    // that leaves it. Not given: 2, half of the layers, and the last but two, as all publishers do.
    Expected<std::vector<std::int32_t>> tap_layers(std::int64_t target_layers) const;

    bool operator==(const Eagle3Config&) const = default;
};

Expected<Eagle3Config> parse_eagle3_config(std::string_view json_text, std::string_view name);

}  // namespace espalier::checkpoint
