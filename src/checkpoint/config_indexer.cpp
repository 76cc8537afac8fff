// SPDX-License-Identifier: Apache-2.0
// config.json's fields of sparse attention. A schedule of layers that share an indexer is published
// in three ways, of which the first that is there holds, as in configuration_glm_moe_dsa.py: a list
// of kinds, a pattern of letters, or a period and an offset.
#include <algorithm>
#include <optional>
#include <string>

#include "checkpoint/config_family.hpp"
#include "checkpoint/config_fields.hpp"
#include "checkpoint/config_words.hpp"

namespace espalier::checkpoint {
namespace {

// A word of a schedule; null: it is none.
std::optional<bool> is_shared(const nlohmann::json& word) {
    if (word == "full" || word == "F") return false;
    if (word == "shared" || word == "S") return true;
    return std::nullopt;
}

// The list under `key`, or the letters of a text.
void read_schedule(ConfigFields& fields, const char* key, ModelConfig& config) {
    nlohmann::json list = *fields.find(key);
    if (list.is_string()) {
        const std::string letters = list.get<std::string>();
        list = nlohmann::json::array();
        for (const char letter : letters) list.push_back(std::string(1, letter));
    }
    const auto layers = static_cast<std::size_t>(config.num_hidden_layers);
    if (!list.is_array() || list.size() != layers)
        return fields.refuse(
            ErrorKind::invalid, "{} is {}, expected the kinds of num_hidden_layers {}", key,
            list.is_array() ? fmt::format("a list of {}", list.size()) : ConfigFields::shown(list),
            layers);
    std::vector<bool>& shared = config.indexer->shared;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        const std::optional<bool> kind = is_shared(list[layer]);
        if (!kind)
            return fields.refuse(ErrorKind::unsupported,
                                 "{}[{}] is {}: only 'full' and 'shared' are supported", key, layer,
                                 ConfigFields::shown(list[layer]));
        shared.push_back(*kind);
    }
    if (shared.front())
        fields.refuse(ErrorKind::invalid, "{}[0] is 'shared': no layer before it has chosen keys",
                      key);
}

void read_shared_layers(ConfigFields& fields, ModelConfig& config) {
    std::vector<bool>& shared = config.indexer->shared;
    if (fields.has("indexer_types")) {
        read_schedule(fields, "indexer_types", config);
    } else if (fields.has("index_topk_pattern")) {
        read_schedule(fields, "index_topk_pattern", config);
    } else {
        const std::int64_t period = fields.integer("index_topk_freq", 0, 1024, 1);
        const std::int64_t offset = fields.integer("index_skip_topk_offset", 1, 1024, 2);
        for (std::int64_t layer = 0; period > 1 && layer < config.num_hidden_layers; ++layer)
            shared.push_back(std::max<std::int64_t>(layer - offset + 1, 0) % period != 0);
    }
    if (std::ranges::find(shared, true) == shared.end()) shared.clear();
}

}  // namespace

void read_indexer(ConfigFields& fields, ModelConfig& config) {
    if (!has_indexer(config.architecture)) return;
    const bool glm = config.architecture == Architecture::glm_moe_dsa;
    IndexerConfig& indexer = config.indexer.emplace();
    indexer.heads = fields.integer("index_n_heads", 1, 128, glm ? 32 : 64);
    indexer.head_dim = fields.integer("index_head_dim", 1, 1 << 20, 128);
    indexer.top_k = fields.integer("index_topk", 1, 1 << 20, 2048);
    // GLM-5's files say true; vLLM reads the field, transformers goes by the class alone.
    indexer.interleaved = fields.boolean("indexer_rope_interleave", glm);
    if (indexer.head_dim < config.qk_rope_head_dim || indexer.head_dim > 256)
        fields.refuse(ErrorKind::unsupported,
                      "index_head_dim is {}: {} to 256 are supported, of which the first {} are "
                      "rotated",
                      indexer.head_dim, config.qk_rope_head_dim, config.qk_rope_head_dim);
    if (config.q_lora_rank == 0)
        fields.refuse(ErrorKind::unsupported,
                      "q_lora_rank is null: the indexer's queries come from the low-rank ones");
    read_shared_layers(fields, config);
}

}  // namespace espalier::checkpoint
