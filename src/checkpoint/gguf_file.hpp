// SPDX-License-Identifier: Apache-2.0
// A model in one GGUF file or several, with its tensors under the names of published checkpoints:
// "blk.3.ffn_gate_exps.weight" of 64 experts is 64 tensors "model.layers.3.mlp.experts.0.gate_proj
// .weight" and so on. So those who read weights see no difference but a tensor's format, and kv_b
// in two halves (self_attn.k_b_proj and self_attn.v_b_proj).
#pragma once

#include <filesystem>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

struct GgufModel {
    ModelConfig config;
    GenerationDefaults generation;
    std::vector<TensorFile> files;
};

// path: of a model in several files ("NAME-00001-of-00003.gguf") the first one's.
Expected<GgufModel> open_gguf(const std::filesystem::path& path);

// A GGUF tensor as the published tensors that it holds: entries of one file. A name that is not
// known stays, so that it is refused as a tensor that nothing reads.
Expected<TensorEntries> gguf_entries(const std::vector<GgufTensor>& tensors,
                                     const ModelConfig& config, std::string_view name);

}  // namespace espalier::checkpoint
