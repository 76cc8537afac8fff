// SPDX-License-Identifier: Apache-2.0
// Which tensors a checkpoint of a given configuration holds: the one source of names and shapes,
// for the writer of synthetic models, for counting parameters, and for tests that a loader asks for
// exactly these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/eagle3_config.hpp"
#include "checkpoint/model_config.hpp"
#include "checkpoint/tensor_file.hpp"

namespace espalier::checkpoint {

enum class TensorRole : std::uint8_t {
    embedding,    // embed_tokens, also the one an MTP layer may repeat
    head,         // lm_head, shared_head.head
    norm,         // 1-D weights of norms
    norm_bias,    // indexer.k_norm.bias
    router,       // mlp.gate.weight and indexer.weights_proj.weight: products in f32
    router_bias,  // mlp.gate.e_score_correction_bias, always f32
    projection,   // every other matrix; the only role stored as FP8 or as quantized codes
    scale,        // weight_scale_inv of an FP8 projection, weight_scale of integers, weight_scale_2
    block_scale,  // weight_scale of NVFP4
    stored_shape,  // weight_shape: a packed matrix's own [n, k]
    draft_offset,  // d2t: target id − draft id, for each token of a draft
    draft_member,  // t2d: whether a draft has the target's token
};

struct TensorSpec {
    std::string name;  // as in the file, tensor_prefix included
    TensorRole role = TensorRole::projection;
    StoredType type = StoredType::f32;
    std::vector<std::int64_t> shape;
    // Width k of the matrix a value belongs to (a scale's own matrix, not the scale's shape); 0 for
    // 1-D, but for a draft's vocabulary the size of the other one.
    std::int64_t inputs = 0;
    // Index of the expert of a routed projection, −1 elsewhere: active parameters count only the
    // chosen ones.
    std::int64_t expert = -1;
    std::int64_t largest_code = 448;  // of a scale's matrix
    std::int64_t outputs = 0;         // of a stored_shape's matrix

    std::uint64_t elements() const;
    std::uint64_t bytes() const { return elements() * bytes_of(type); }
};

struct TensorListOptions {
    // e4m3: FP8 projections with 128×128 scales, all else bf16. What config.quantization announces
    // is stored so, but for kv_b, which is read along both axes.
    DType dtype = DType::bf16;
    // MTP layers repeat embed_tokens and shared_head.head (DeepSeek-V3 does; a reader must accept
    // both).
    bool repeat_mtp_embeddings = false;
};

// In the order of the layers. `config` must be one that parse_model_config would accept.
std::vector<TensorSpec> list_tensors(const ModelConfig& config, const TensorListOptions& options);

struct Eagle3ListOptions {
    DType dtype = DType::bf16;
    std::string layer = "midlayer.";  // what its layer is called; "layers.0." is published too
    bool embedding = false;           // it has one of its own
};
// Tensors of an EAGLE3 draft; d2t and t2d only where its vocabulary is not the target's.
std::vector<TensorSpec> list_eagle3_tensors(const Eagle3Config& config,
                                            const Eagle3ListOptions& options);

}  // namespace espalier::checkpoint
