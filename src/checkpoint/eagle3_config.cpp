// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/eagle3_config.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/json.hpp"
#include "checkpoint/config_family.hpp"
#include "checkpoint/config_fields.hpp"
#include "checkpoint/quantization.hpp"

namespace espalier::checkpoint {
namespace {

constexpr std::array<std::string_view, 2> kClasses = {"Eagle3DeepseekV2ForCausalLM",
                                                      "Eagle3DeepseekV3ForCausalLM"};
constexpr std::size_t kMaxTaps = 16;
constexpr std::int64_t kMaxTargetLayers = 1024;

void refuse_other_classes(ConfigFields& fields) {
    const std::string name = class_name_of(fields);
    if (std::find(kClasses.begin(), kClasses.end(), name) != kClasses.end()) return;
    const bool grouped = name.find("Llama") != std::string::npos ||
                         name.find("Qwen") != std::string::npos || fields.has("head_dim");
    fields.refuse(ErrorKind::unsupported,
                  "architecture '{}' is {}; supported are EAGLE3 drafts with MLA layers ({})", name,
                  name.starts_with("EagleMistral")
                      ? "Mistral's EAGLE head (several MLA layers behind one product of embedding "
                        "and hidden state)"
                  : grouped
                      ? "a draft of layers with keys and values of their own (grouped heads), "
                        "which do not fit an MLA target's latent pages"
                      : "no EAGLE3 draft for an MLA target",
                  fmt::join(kClasses, ", "));
}

// A switch that publishers put at the top or into eagle_config.
bool read_switch(ConfigFields& top, ConfigFields& inner, const char* key) {
    const bool outside = top.boolean(key, false);
    const bool inside = inner.boolean(key, outside);
    if (top.has(key) && inside != outside)
        top.refuse(ErrorKind::invalid, "{} is {} here and {} in eagle_config", key, outside,
                   inside);
    return inside;
}

std::vector<std::int64_t> read_layer_ids(ConfigFields& top, const ConfigFields& inner) {
    constexpr const char* kKey = "eagle_aux_hidden_state_layer_ids";
    const nlohmann::json* list = inner.has(kKey) ? inner.find(kKey) : top.find(kKey);
    std::vector<std::int64_t> ids;
    if (list == nullptr) return ids;
    if (!list->is_array() || list->empty() || list->size() > kMaxTaps) {
        top.refuse(ErrorKind::invalid, "{} is {}, expected a list of 1 to {} layers", kKey,
                   list->is_array() ? fmt::format("a list of {}", list->size())
                                    : ConfigFields::shown(*list),
                   kMaxTaps);
        return ids;
    }
    for (const nlohmann::json& id : *list) {
        if (!id.is_number_integer() || id.get<std::int64_t>() < 0 ||
            id.get<std::int64_t>() > kMaxTargetLayers) {
            top.refuse(ErrorKind::invalid, "{} has {}, expected layers from 0 to {}", kKey,
                       ConfigFields::shown(id), kMaxTargetLayers);
            return ids;
        }
        ids.push_back(id.get<std::int64_t>());
    }
    return ids;
}

void read_draft(ConfigFields& fields, Eagle3Config& config) {
    const nlohmann::json* object = fields.object("eagle_config");
    const nlohmann::json none = nlohmann::json::object();
    ConfigFields inner(object != nullptr ? *object : none,
                       fmt::format("{}: eagle_config", fields.place()));
    config.aux_layer_ids = read_layer_ids(fields, inner);
    config.norm_before_residual = read_switch(fields, inner, "norm_before_residual");
    config.norm_before_fc = read_switch(fields, inner, "norm_before_fc");
    config.fc_norm = read_switch(fields, inner, "fc_norm");
    config.norm_output = read_switch(fields, inner, "norm_output");
    if (config.norm_before_fc && config.fc_norm)
        fields.refuse(ErrorKind::unsupported,
                      "norm_before_fc and fc_norm are both true; drafts have one of them");
    if (!inner.boolean("use_aux_hidden_state", true))
        fields.refuse(ErrorKind::unsupported,
                      "use_aux_hidden_state is false: a draft without taps is not EAGLE3");
    fields.absorb(inner);
    const ModelConfig& layer = config.layer;
    config.target_hidden_size = fields.integer("target_hidden_size", 1, 1 << 20, layer.hidden_size);
    config.draft_vocab_size =
        fields.integer("draft_vocab_size", 1, layer.vocab_size, layer.vocab_size);
    if (layer.num_hidden_layers != 1)
        fields.refuse(ErrorKind::unsupported, "num_hidden_layers is {}, only 1 is supported",
                      layer.num_hidden_layers);
    if (const double scale = fields.number("logit_scale", -1e6, 1e6, 1.0); scale != 1.0)
        fields.refuse(ErrorKind::unsupported, "logit_scale is {}, only 1 is supported", scale);
}

}  // namespace

Expected<std::vector<std::int32_t>> Eagle3Config::tap_layers(std::int64_t target_layers) const {
    std::vector<std::int64_t> layers = aux_layer_ids;
    if (layers.empty()) layers = {2, target_layers / 2, target_layers - 3};
    if (!aux_layer_ids.empty() && layers.front() == 1)
        for (std::int64_t& id : layers) ++id;
    const bool ascending =
        std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<>()) == layers.end();
    if (!ascending || layers.front() < 0 || layers.back() > target_layers)
        return fail(ErrorKind::invalid,
                    "eagle_aux_hidden_state_layer_ids {}: a target of {} layers would be tapped "
                    "before layers {}, expected ascending ones up to {}",
                    aux_layer_ids.empty() ? std::string("are not given")
                                          : fmt::format("are {}", fmt::join(aux_layer_ids, ", ")),
                    target_layers, fmt::join(layers, ", "), target_layers);
    std::vector<std::int32_t> result;
    for (const std::int64_t id : layers) result.push_back(static_cast<std::int32_t>(id));
    return result;
}

Expected<Eagle3Config> parse_eagle3_config(std::string_view json_text, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(json_text, name));
    ConfigFields fields(document, std::string(name));
    refuse_other_classes(fields);
    ESPALIER_RETURN_IF_ERROR(fields.status());
    Eagle3Config config;
    config.layer.architecture = Architecture::deepseek_v3;
    read_sizes(fields, config.layer);
    read_attention(fields, config.layer);
    read_rope(fields, config.layer);
    read_quantization(fields, config.layer);
    read_draft(fields, config);
    ESPALIER_RETURN_IF_ERROR(fields.status());
    return config;
}

}  // namespace espalier::checkpoint
