// SPDX-License-Identifier: Apache-2.0
#include "runtime/identity.hpp"

#include <fmt/format.h>

#include <string>

#include "base/cpu_features.hpp"
#include "checkpoint/model_hash.hpp"
#include "checkpoint/quantization.hpp"
#include "model/kv_layout.hpp"
#include "ops/sampling.hpp"
#include "runtime/sizes.hpp"

namespace espalier::runtime {
namespace {

constexpr const char* kOwn = "own";  // as the checkpoint has it

}  // namespace

std::string_view family_of(DeviceKind device) {
    return device == DeviceKind::cpu ? "cpu" : "hopper";
}

Expected<NumberMode> number_mode_of(const checkpoint::Checkpoint& checkpoint,
                                    const LoadOptions& options) {
    if (options.rounding)
        return resolve_number_mode(options.activations, family_of(options.device),
                                   *options.rounding);
    const checkpoint::ModelConfig& c = checkpoint.config();
    const std::int64_t last = c.num_hidden_layers - 1;
    const bool moe = c.layer_is_moe(last);
    const std::int64_t width = moe ? c.moe_intermediate_size : c.intermediate_size;
    const std::string layer = fmt::format("model.layers.{}.", last);
    const std::string mlp = layer + (moe ? "mlp.experts.0." : "mlp.");
    const struct {
        std::string name;
        std::int64_t n, k;
    } matrices[] = {
        {layer + "self_attn.o_proj", c.hidden_size, c.num_attention_heads * c.v_head_dim},
        {mlp + "gate_proj", width, c.hidden_size},
        {mlp + "down_proj", c.hidden_size, width}};
    WeightCode code = WeightCode::f32;
    for (const auto& [name, n, k] : matrices) {
        ESPALIER_ASSIGN_OR_RETURN(const checkpoint::StoredWeight stored,
                                  checkpoint::find_weight(checkpoint, name, n, k));
        code = stored.format.code;
        if (takes_number_mode(code)) break;
    }
    return resolve_number_mode(options.activations, family_of(options.device), code);
}

Expected<TextIdentity> identity_without_model(const checkpoint::Checkpoint& checkpoint,
                                              const LoadOptions& options,
                                              std::int64_t prefill_segment) {
    const bool cpu = options.device == DeviceKind::cpu;
    TextIdentity identity;
    ESPALIER_ASSIGN_OR_RETURN(identity.tokenizer,
                              checkpoint::tokenizer_hash(checkpoint.directory()));
    identity.weights = options.rounding ? name_of(*options.rounding) : kOwn;
    ESPALIER_ASSIGN_OR_RETURN(const NumberMode activations, number_mode_of(checkpoint, options));
    identity.activations = name_of(activations);
    identity.head = options.head_rounding ? name_of(*options.head_rounding) : kOwn;
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat own, kv_format_of(checkpoint));
    identity.kv_format =
        model::kv_layout(checkpoint.config(), options.kv_format.value_or(own)).formats();
    identity.prefill_segment = prefill_segment;
    identity.backend = cpu ? "cpu" : "cuda";
    identity.family = family_of(options.device);
    identity.variant = "sm_90a";
    if (cpu) {
        ESPALIER_ASSIGN_OR_RETURN(const CpuVariant variant, chosen_cpu_variant());
        identity.variant = name_of(variant);
    }
    identity.products_version = cpu ? kCpuProductsVersion : kCudaProductsVersion;
    identity.sampling_version = ops::kSamplingVersion;
    return identity;
}

Expected<TextIdentity> text_identity(const checkpoint::Checkpoint& checkpoint,
                                     const LoadOptions& options, std::int64_t prefill_segment) {
    ESPALIER_ASSIGN_OR_RETURN(TextIdentity identity,
                              identity_without_model(checkpoint, options, prefill_segment));
    ESPALIER_ASSIGN_OR_RETURN(identity.model, checkpoint::model_hash(checkpoint));
    return identity;
}

LoadOptions load_options_of(const TextIdentity& identity) {
    // The first format is that of the latents, from which other planes' follow.
    return {
        .kv_format = parse_kv_format(identity.kv_format.substr(0, identity.kv_format.find(','))),
        .rounding = parse_rounding(identity.weights),
        .head_rounding = parse_head_rounding(identity.head),
        .activations = parse_number_mode(identity.activations).value_or(NumberMode::own)};
}

}  // namespace espalier::runtime
