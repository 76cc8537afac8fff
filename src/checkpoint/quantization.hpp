// SPDX-License-Identifier: Apache-2.0
// How checkpoints store weights: what config.json may announce, and which tensors make one matrix.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/weight_format.hpp"
#include "checkpoint/checkpoint.hpp"

namespace espalier::checkpoint {

class ConfigFields;

// Fills fp8_block or quantization from config.json; refuses what neither can express.
void read_quantization(ConfigFields& fields, ModelConfig& config);
// The same from hf_quant_config.json, for ModelOpt checkpoints whose config.json does not say it.
Expected<void> read_modelopt_file(std::string_view json_text, std::string_view name,
                                  ModelConfig& config);

// The tensors of one matrix [n, k] in their mapped files.
struct StoredWeight {
    Tensor weights = {};
    WeightFormat format = {};
    BlockCode block = BlockCode::none;  // of GGUF: `format` is what blocks are unpacked to
    std::optional<Tensor> scales = {};  // [groups of n, groups of k]; not necessarily aligned
    // The same grid in memory, where the file has one scale for the whole matrix.
    std::shared_ptr<const std::vector<float>> repeated_scale = {};
    std::int64_t row_stride = 0;  // weights between stored rows
    float tensor_scale = 1.0f;    // where the format has one
    bool offset_codes = false;    // see linalg::WeightSource
    // Zero points, as the layout has them (linalg::ShiftedSource); `format` is what they become.
    std::optional<Tensor> zeros = {};
    QuantizedLayout layout = QuantizedLayout::none;

    // The grid of scales, row by row; null without one.
    const std::byte* scale_data() const {
        if (repeated_scale) return reinterpret_cast<const std::byte*>(repeated_scale->data());
        return scales ? scales->bytes.data() : nullptr;
    }
    std::int64_t scale_stride(std::int64_t k) const {
        return (k + format.group_k - 1) / format.group_k;
    }
};

// `name` without ".weight", here and below. Errors as Checkpoint::find's; a tensor that belongs to
// a matrix and is not there is named with it.
Expected<StoredWeight> find_weight(const Checkpoint& checkpoint, const std::string& name,
                                   std::int64_t n, std::int64_t k);

// `none`: as the type of ".weight" says.
// The halves of kv_b where they are stored apart (GGUF): of each head k_b [latent, nope], which is
// the transpose of its rows in kv_b, and v_b [value, latent]. attention:
// "model.layers.N.self_attn.".
struct KvHalves {
    StoredWeight key;    // [heads · latent, nope]
    StoredWeight value;  // [heads · value, latent]
};
Expected<std::optional<KvHalves>> find_kv_halves(const Checkpoint& checkpoint,
                                                 const std::string& attention);

QuantizedLayout stored_as(const Checkpoint& checkpoint, std::string_view name);
bool has_matrix(const Checkpoint& checkpoint, std::string_view name);
// Suffixes of the tensors that may belong to this matrix in the layout it is stored in. input_scale
// and input_global_scale are among them although nothing reads them: activations stay bf16.
std::span<const std::string_view> tensors_of(const Checkpoint& checkpoint, std::string_view name);

// Scale of a layer's keys in an FP8 cache, as a calibration has measured it; none: the checkpoint
// has none. attention: "model.layers.N.self_attn.". Its v_scale is checked and not used: a latent
// cache stores values within the keys.
Expected<std::optional<float>> kv_scale_of(const Checkpoint& checkpoint,
                                           const std::string& attention);
// True if `name`, the part behind "self_attn.", is one of its tensors.
bool is_kv_scale(std::string_view name);

}  // namespace espalier::checkpoint
