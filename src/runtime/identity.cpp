// SPDX-License-Identifier: Apache-2.0
#include "runtime/identity.hpp"

#include <string>

#include "base/cpu_features.hpp"
#include "checkpoint/model_hash.hpp"
#include "model/kv_layout.hpp"
#include "ops/sampling.hpp"
#include "runtime/sizes.hpp"

namespace espalier::runtime {
namespace {

constexpr const char* kOwn = "own";  // as the checkpoint has it

}  // namespace

Expected<TextIdentity> identity_without_model(const checkpoint::Checkpoint& checkpoint,
                                              const LoadOptions& options,
                                              std::int64_t prefill_segment) {
    const bool cpu = options.device == DeviceKind::cpu;
    TextIdentity identity;
    ESPALIER_ASSIGN_OR_RETURN(identity.tokenizer,
                              checkpoint::tokenizer_hash(checkpoint.directory()));
    identity.weights = options.rounding ? name_of(*options.rounding) : kOwn;
    identity.activations = kOwn;
    identity.head = options.head_rounding ? name_of(*options.head_rounding) : kOwn;
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat own, kv_format_of(checkpoint));
    identity.kv_format =
        model::kv_layout(checkpoint.config(), options.kv_format.value_or(own)).formats();
    identity.prefill_segment = prefill_segment;
    identity.backend = cpu ? "cpu" : "cuda";
    identity.family = cpu ? "cpu" : "hopper";
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
    return {.kv_format = parse_kv_format(identity.kv_format),
            .rounding = parse_rounding(identity.weights),
            .head_rounding = parse_head_rounding(identity.head)};
}

}  // namespace espalier::runtime
