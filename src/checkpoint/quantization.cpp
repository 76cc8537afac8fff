// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantization.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/check.hpp"
#include "checkpoint/config_fields.hpp"

namespace espalier::checkpoint {
namespace {

WeightFormat format_of(StoredType type) {
    switch (type) {
        case StoredType::f32:
            return {.code = WeightCode::f32};
        case StoredType::f16:
            return {.code = WeightCode::f16};
        case StoredType::bf16:
            return {.code = WeightCode::bf16};
        case StoredType::e4m3:
            return kFp8Blocks;
        default:
            break;
    }
    CHECK(false, "{} is no weight dtype", name_of(type));
}

}  // namespace

void read_quantization(ConfigFields& fields, ModelConfig& config) {
    for (const char* key : {"quantization_config", "compression_config"}) {
        const nlohmann::json* object = fields.object(key);
        if (object == nullptr) continue;
        ConfigFields quantization(*object, fmt::format("{}: {}", fields.place(), key));
        const std::string method = quantization.text("quant_method", "compressed-tensors");
        if (method != "fp8") {
            const std::string format = quantization.text("format", "");
            quantization.refuse(
                ErrorKind::unsupported,
                "quant_method '{}'{} is not supported; supported are f32, f16, bf16 and 'fp8' in "
                "128×128 blocks",
                method, format.empty() ? "" : fmt::format(" with format '{}'", format));
        }
        if (const std::string format = quantization.text("fmt", "e4m3"); format != "e4m3")
            quantization.refuse(ErrorKind::unsupported, "fmt is '{}', only 'e4m3' is supported",
                                format);
        if (const std::string scheme = quantization.text("activation_scheme", "dynamic");
            scheme != "dynamic")
            quantization.refuse(ErrorKind::unsupported,
                                "activation_scheme is '{}', only 'dynamic' is supported", scheme);
        const nlohmann::json* block = quantization.find("weight_block_size");
        if (block == nullptr || *block != nlohmann::json({128, 128}))
            quantization.refuse(ErrorKind::unsupported,
                                "weight_block_size is {}, only [128, 128] is supported",
                                block == nullptr ? "missing" : block->dump().substr(0, 60));
        config.fp8_block = 128;
        fields.absorb(quantization);
    }
}

Expected<StoredWeight> find_weight(const Checkpoint& checkpoint, const std::string& name,
                                   std::int64_t n, std::int64_t k) {
    StoredWeight stored;
    ESPALIER_ASSIGN_OR_RETURN(stored.weights, checkpoint.find(name + ".weight", {n, k},
                                                              {StoredType::bf16, StoredType::e4m3,
                                                               StoredType::f32, StoredType::f16}));
    stored.format = format_of(stored.weights.type);
    if (!stored.format.scaled()) return stored;
    const auto groups = [](std::int64_t length, std::int64_t group) {
        return (length + group - 1) / group;
    };
    ESPALIER_ASSIGN_OR_RETURN(stored.scales, checkpoint.find(name + ".weight_scale_inv",
                                                             {groups(n, stored.format.group_n),
                                                              groups(k, stored.format.group_k)},
                                                             {StoredType::f32}));
    return stored;
}

}  // namespace espalier::checkpoint
