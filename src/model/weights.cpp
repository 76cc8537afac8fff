// SPDX-License-Identifier: Apache-2.0
// Which tensors make a model, by the names DeepSeek publishes.
#include "model/weights.hpp"

#include <string>
#include <utility>

#include "checkpoint/tensor_check.hpp"
#include "model/layer_loader.hpp"
#include "model/weight_reader.hpp"

namespace espalier::model {
namespace {

using checkpoint::ModelConfig;

Expected<MtpWeights> load_mtp(WeightReader& reader, const ModelConfig& config, std::int64_t layer,
                              const Shard& shard) {
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    const std::int64_t hidden = config.hidden_size;
    MtpWeights to;
    ESPALIER_ASSIGN_OR_RETURN(to.embed_norm, reader.vector(name + "enorm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.hidden_norm, reader.vector(name + "hnorm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.eh_proj, reader.matrix(name + "eh_proj", hidden, 2 * hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.layer, load_layer(reader, config, layer, shard));
    ESPALIER_ASSIGN_OR_RETURN(to.head_norm,
                              reader.vector(name + "shared_head.norm.weight", hidden));
    if (reader.has(name + "embed_tokens.weight")) {
        ESPALIER_ASSIGN_OR_RETURN(to.embedding, reader.embedding(name + "embed_tokens.weight",
                                                                 config.vocab_size, hidden));
    }
    if (reader.has_matrix(name + "shared_head.head")) {
        ESPALIER_ASSIGN_OR_RETURN(to.head,
                                  reader.head(name + "shared_head.head", config.vocab_size, hidden,
                                              head_rows(config.vocab_size, shard)));
    }
    return to;
}

}  // namespace

namespace {

// Refusals of several ranks, by name.
Expected<void> check_ranks(const ModelConfig& config, const Device& device,
                           const LoadOptions& options) {
    ESPALIER_RETURN_IF_ERROR(check_shard(config, options.shard));
    if (options.shard.whole()) return {};
    if (!device.reads_host_memory())
        return fail_field(ErrorKind::unsupported, "tensor_parallel_size",
                          "{} ranks on {}: ranks exchange through memory that the host reads",
                          options.shard.count, device.name());
    if (options.mmap_experts)
        return fail_field(ErrorKind::unsupported, "mmap_experts",
                          "experts on disk are those of a packed file, which holds all of a model, "
                          "not the part of one of {} ranks",
                          options.shard.count);
    return {};
}

}  // namespace

Expected<Weights> Weights::load(std::shared_ptr<const checkpoint::Checkpoint> checkpoint,
                                Device& device, const ops::Backend& backend,
                                const LoadOptions& options) {
    const ModelConfig& config = checkpoint->config();
    ESPALIER_RETURN_IF_ERROR(checkpoint::check_tensors(*checkpoint));
    ESPALIER_RETURN_IF_ERROR(check_ranks(config, device, options));
    CHECK(options.shelf == nullptr || (!options.rounding && device.reads_host_memory()),
          "packed weights for {}", options.rounding ? "rounding" : device.name());
    Weights weights;
    if (options.mmap_experts) weights.expert_reads = std::make_shared<ExpertReads>();
    WeightReader reader(*checkpoint, device, backend, options.progress,
                        {.rounding = options.rounding,
                         .head_rounding = options.head_rounding,
                         .activations = options.activations,
                         .shelf = options.shelf.get(),
                         .expert_reads = weights.expert_reads.get()});
    ESPALIER_ASSIGN_OR_RETURN(
        weights.embedding,
        reader.embedding("model.embed_tokens.weight", config.vocab_size, config.hidden_size));
    for (std::int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
        ESPALIER_ASSIGN_OR_RETURN(LayerWeights loaded,
                                  load_layer(reader, config, layer, options.shard));
        weights.layers.push_back(std::move(loaded));
    }
    ESPALIER_ASSIGN_OR_RETURN(weights.final_norm,
                              reader.vector("model.norm.weight", config.hidden_size));
    const std::string head = config.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
    ESPALIER_ASSIGN_OR_RETURN(weights.head,
                              reader.head(head, config.vocab_size, config.hidden_size,
                                          head_rows(config.vocab_size, options.shard)));
    reader.keep_activations();
    for (std::int64_t mtp = 0; options.mtp && mtp < config.num_nextn_predict_layers; ++mtp) {
        // Published checkpoints may announce MTP layers and leave their tensors out (Kimi K2 does).
        const std::int64_t layer = config.num_hidden_layers + mtp;
        if (!checkpoint::has_matrix(*checkpoint,
                                    "model.layers." + std::to_string(layer) + ".eh_proj"))
            break;
        ESPALIER_ASSIGN_OR_RETURN(MtpWeights loaded,
                                  load_mtp(reader, config, layer, options.shard));
        weights.mtp.push_back(std::move(loaded));
    }
    weights.format = weights.layers.front().attention.o.view().format;
    // The embedding and scales were not counted, nor layers that were not asked for.
    if (options.progress) options.progress(checkpoint->total_bytes(), checkpoint->total_bytes());
    weights.shard = options.shard;
    weights.packed_bytes = reader.packed_bytes();
    weights.checkpoint_ = std::move(checkpoint);
    weights.shelf_ = options.shelf;
    return weights;
}

AttentionWeights::UpProjections AttentionWeights::up() const {
    if (up_rows.view().data == nullptr) return {up_key.view(), up_value.view()};
    linalg::WeightView key = up_rows.view();
    linalg::WeightView value = key;
    value.n = up_value.view().n;
    key.n -= value.n;
    value.data += key.format.bytes(key.n * key.k);
    return {key, value};
}

StepFormats Weights::formats() const {
    const LayerWeights& last = layers.back();
    return {.attention = last.attention.o.view().format,
            .kv_b = last.attention.up_value.view().format,
            .feed_forward =
                last.moe ? last.moe->gate_up.view().format : last.dense->gate_up.view().format,
            .head = head.view().format};
}

}  // namespace espalier::model
