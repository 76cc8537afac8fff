// SPDX-License-Identifier: Apache-2.0
// What config.json says of quantized weights: DeepSeek's FP8, compressed-tensors (as its library's
// QuantizationConfig and QuantizationArgs define it), and ModelOpt's NVFP4, there or in
// hf_quant_config.json.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "base/json.hpp"
#include "checkpoint/config_fields.hpp"
#include "checkpoint/quantization.hpp"

namespace espalier::checkpoint {
namespace {

constexpr std::int64_t kNvfp4Group = 16;
constexpr std::int64_t kMaxGroup = 1 << 20;
constexpr std::size_t kMaxGroups = 64;  // of a config

void read_fp8(ConfigFields& fields, ModelConfig& config) {
    if (const std::string format = fields.text("fmt", "e4m3"); format != "e4m3")
        fields.refuse(ErrorKind::unsupported, "fmt is '{}', only 'e4m3' is supported", format);
    // Activations stay bf16 here, whatever scales a checkpoint has for them.
    const std::string scheme = fields.text("activation_scheme", "dynamic");
    const bool one_scale = fields.is_null("weight_block_size");
    if (scheme != "dynamic" && !(one_scale && scheme == "static"))
        fields.refuse(ErrorKind::unsupported,
                      "activation_scheme is '{}', only 'dynamic' is supported{}", scheme,
                      one_scale ? ", and 'static'" : " beside blocks");
    const nlohmann::json* block = fields.find("weight_block_size");
    if (!one_scale && (block == nullptr || *block != nlohmann::json({128, 128})))
        fields.refuse(ErrorKind::unsupported,
                      "weight_block_size is {}, only [128, 128] is supported, and null",
                      block == nullptr ? "missing" : block->dump().substr(0, 60));
    config.fp8_block = one_scale ? 0 : 128;
}

// bits and group of one group's "weights"; what is stored otherwise than in order and symmetric is
// refused.
Quantization read_weights(ConfigFields& weights, QuantizedLayout layout) {
    const bool nvfp4 = layout == QuantizedLayout::packed_nvfp4;
    Quantization found{.layout = layout};
    found.bits = weights.integer("num_bits", 1, 32, 8);
    const std::string type = weights.text("type", "int");
    if (type != (nvfp4 ? "float" : "int"))
        weights.refuse(ErrorKind::unsupported, "type is '{}', expected '{}'", type,
                       nvfp4 ? "float" : "int");
    const bool bits_fit = nvfp4                             ? found.bits == 4
                          : layout == QuantizedLayout::int8 ? found.bits == 8
                                                            : found.bits == 4 || found.bits == 8;
    if (!bits_fit)
        weights.refuse(ErrorKind::unsupported, "num_bits is {}, supported are {}", found.bits,
                       nvfp4                             ? "4"
                       : layout == QuantizedLayout::int8 ? "8"
                                                         : "4 and 8");
    found.zero_points = !weights.boolean("symmetric", true);
    if (found.zero_points && nvfp4)
        weights.refuse(ErrorKind::unsupported,
                       "symmetric is false: NVFP4 weights have no zero points");
    const nlohmann::json* order = weights.find("actorder");
    if (order != nullptr && *order != nlohmann::json(false))
        weights.refuse(ErrorKind::unsupported,
                       "actorder is {}: inputs reordered by activation are not supported",
                       ConfigFields::shown(*order));
    const std::int64_t size = weights.integer("group_size", -1, kMaxGroup, -1);
    const std::string strategy = weights.text("strategy", size > 0 ? "group" : "channel");
    if (strategy != (nvfp4 ? "tensor_group" : "group") && (nvfp4 || strategy != "channel"))
        weights.refuse(ErrorKind::unsupported, "strategy is '{}', supported {}", strategy,
                       nvfp4 ? "is 'tensor_group'" : "are 'group' and 'channel'");
    if (strategy == "channel") return found;
    found.group = size;
    const bool fits = nvfp4
                          ? size == kNvfp4Group
                          : size == 16 || size == 32 || size == 64 || (size > 0 && size % 128 == 0);
    if (!fits)
        weights.refuse(ErrorKind::unsupported, "group_size is {}, supported {}", size,
                       nvfp4 ? "is 16" : "are 16, 32, 64 and multiples of 128");
    return found;
}

constexpr std::string_view kMixed = "mixed-precision";  // every group says its own format

QuantizedLayout read_format(ConfigFields& fields, const std::string& format) {
    if (format == "pack-quantized") return QuantizedLayout::packed_integers;
    if (format == "int-quantized" || format == "naive-quantized") return QuantizedLayout::int8;
    if (format == "nvfp4-pack-quantized") return QuantizedLayout::packed_nvfp4;
    fields.refuse(ErrorKind::unsupported,
                  "format '{}' is not supported; supported are 'pack-quantized', "
                  "'int-quantized', 'naive-quantized' and 'nvfp4-pack-quantized'",
                  format);
    return QuantizedLayout::none;
}

// True for a list of nothing but heads, plain or as patterns: "lm_head", "re:.*lm_head$".
bool targets_heads(const nlohmann::json& group) {
    const auto targets = group.find("targets");
    if (targets == group.end() || !targets->is_array() || targets->empty()) return false;
    return std::ranges::all_of(*targets, [](const nlohmann::json& target) {
        if (!target.is_string()) return false;
        std::string name = target.get<std::string>();
        if (name.starts_with("re:")) {
            if (name.ends_with('$')) name.pop_back();
            std::erase(name, '\\');
        }
        return names_head(name);
    });
}

// One group; a second one of the same matrices says the same.
void read_group(ConfigFields& fields, const std::string& name, const nlohmann::json& group,
                const std::string& format, ModelConfig& config) {
    ConfigFields scheme(group, fmt::format("{}: config_groups: {}", fields.place(), name));
    const std::string own = scheme.text("format", format);
    const QuantizedLayout layout = read_format(scheme, format == kMixed ? own : format);
    const nlohmann::json* object = scheme.object("weights");
    if (object == nullptr) scheme.refuse(ErrorKind::not_found, "weights is missing");
    fields.absorb(scheme);
    if (!fields.ok()) return;
    ConfigFields weights(*object, fmt::format("{}: weights", scheme.place()));
    const Quantization found = read_weights(weights, layout);
    fields.absorb(weights);
    if (targets_heads(group)) {
        if (config.head_quantization && found != *config.head_quantization)
            fields.refuse(ErrorKind::unsupported,
                          "config_groups: '{}' stores heads otherwise than another group", name);
        config.head_quantization = found;
        return;
    }
    if (config.quantization.layout != QuantizedLayout::none && found != config.quantization)
        fields.refuse(ErrorKind::unsupported,
                      "config_groups: '{}' stores weights otherwise than another group; one "
                      "kind is supported, and another one of heads",
                      name);
    config.quantization = found;
}

void read_compressed_tensors(ConfigFields& fields, ModelConfig& config) {
    const std::string format = fields.text("format", "");
    if (format != kMixed) read_format(fields, format);
    if (!fields.ok()) return;
    if (const std::string status = fields.text("quantization_status", "compressed");
        status != "compressed")
        fields.refuse(ErrorKind::unsupported,
                      "quantization_status is '{}', only 'compressed' is supported", status);
    if (const nlohmann::json* sparsity = fields.object("sparsity_config");
        sparsity != nullptr && !sparsity->empty() &&
        sparsity->value("format", nlohmann::json("dense")) != nlohmann::json("dense"))
        fields.refuse(ErrorKind::unsupported, "sparsity_config: sparse weights are not supported");
    const nlohmann::json* groups = fields.object("config_groups");
    if (groups == nullptr || groups->empty() || groups->size() > kMaxGroups)
        return fields.refuse(ErrorKind::invalid, "config_groups has {} groups, expected 1 to {}",
                             groups == nullptr ? 0 : groups->size(), kMaxGroups);
    for (const auto& [name, group] : groups->items()) {
        read_group(fields, name, group, format, config);
        if (!fields.ok()) return;
    }
}

void read_modelopt(ConfigFields& fields, ModelConfig& config) {
    const std::string algorithm = fields.text("quant_algo", "");
    if (algorithm != "NVFP4" && algorithm != "W4A16_NVFP4")
        fields.refuse(ErrorKind::unsupported,
                      "quant_algo is '{}', supported are 'NVFP4' and 'W4A16_NVFP4'", algorithm);
    if (const std::int64_t group = fields.integer("group_size", 1, kMaxGroup, kNvfp4Group);
        group != kNvfp4Group)
        fields.refuse(ErrorKind::unsupported, "group_size is {}, only {} is supported", group,
                      kNvfp4Group);
    config.quantization = {.layout = QuantizedLayout::nvfp4, .bits = 4, .group = kNvfp4Group};
}

// AutoAWQ's description.
void read_awq(ConfigFields& fields, ModelConfig& config) {
    if (const std::int64_t bits = fields.integer(fields.has("bits") ? "bits" : "w_bit", 1, 32, 4);
        bits != 4)
        fields.refuse(ErrorKind::unsupported, "bits is {}, only 4 is supported", bits);
    std::string version = fields.text("version", "gemm");
    std::ranges::transform(version, version.begin(),
                           [](unsigned char letter) { return std::tolower(letter); });
    if (version != "gemm")
        fields.refuse(ErrorKind::unsupported, "version is '{}', only 'gemm' is supported", version);
    if (!fields.boolean("zero_point", true))
        fields.refuse(ErrorKind::unsupported,
                      "zero_point is false: AWQ without zero points is not supported");
    const std::int64_t group = fields.integer(
        fields.has("group_size") ? "group_size" : "q_group_size", -1, kMaxGroup, 128);
    if (group != -1 && group != 16 && group != 32 && group != 64 &&
        (group <= 0 || group % 128 != 0))
        fields.refuse(ErrorKind::unsupported,
                      "group_size is {}, supported are 16, 32, 64 and multiples of 128", group);
    config.quantization = {.layout = QuantizedLayout::awq,
                           .bits = 4,
                           .group = std::max<std::int64_t>(group, 0),
                           .zero_points = true};
}

}  // namespace

void read_quantization(ConfigFields& fields, ModelConfig& config) {
    for (const char* key : {"quantization_config", "compression_config"}) {
        const nlohmann::json* object = fields.object(key);
        if (object == nullptr) continue;
        ConfigFields quantization(*object, fmt::format("{}: {}", fields.place(), key));
        const std::string method = quantization.text("quant_method", "compressed-tensors");
        if (config.fp8_block || config.quantization.layout != QuantizedLayout::none)
            quantization.refuse(ErrorKind::invalid, "a second description of the weights");
        else if (method == "fp8")
            read_fp8(quantization, config);
        else if (method == "compressed-tensors")
            read_compressed_tensors(quantization, config);
        else if (method == "awq")
            read_awq(quantization, config);
        else if (method == "modelopt" || method == "modelopt_fp4")
            read_modelopt(quantization, config);
        else
            quantization.refuse(
                ErrorKind::unsupported,
                "quant_method '{}' is not supported; supported are f32, f16, bf16, "
                "'fp8' in 128×128 blocks, 'compressed-tensors', 'awq' and 'modelopt'",
                method);
        fields.absorb(quantization);
    }
}

Expected<void> read_modelopt_file(std::string_view json_text, std::string_view name,
                                  ModelConfig& config) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(json_text, name));
    ConfigFields outer(document, std::string(name));
    const nlohmann::json* object = outer.object("quantization");
    if (object == nullptr) outer.refuse(ErrorKind::not_found, "quantization is missing");
    ESPALIER_RETURN_IF_ERROR(outer.status());
    ConfigFields fields(*object, fmt::format("{}: quantization", name));
    read_modelopt(fields, config);
    return fields.status();
}

}  // namespace espalier::checkpoint
