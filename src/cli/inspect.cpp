// SPDX-License-Identifier: Apache-2.0
// espalier inspect: what a checkpoint is, and whether it fits this machine. Reads headers only.
#include <fmt/format.h>

#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_features.hpp"
#include "cache/kv_storage.hpp"
#include "checkpoint/known_models.hpp"
#include "checkpoint/quantization.hpp"
#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "model/cost.hpp"
#include "runtime/sizes.hpp"

namespace espalier::cli {
namespace {

struct InspectOptions {
    std::string model;
    bool json = false;
};

std::string attention_text(const checkpoint::ModelConfig& c) {
    const std::string query =
        c.q_lora_rank > 0 ? fmt::format("q_lora {}", c.q_lora_rank) : "no q_lora";
    return fmt::format("{} heads of {} + {} and {}, {}, kv_lora {}", c.num_attention_heads,
                       c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, query, c.kv_lora_rank);
}

std::string experts_text(const checkpoint::ModelConfig& c) {
    if (c.n_routed_experts == 0) return "none (dense)";
    return fmt::format("{} routed, {} per token, {} shared, width {}", c.n_routed_experts,
                       c.num_experts_per_tok, c.n_shared_experts, c.moe_intermediate_size);
}

// "Kimi K2.5 or K2.6 (Kimi K2)", or the architecture alone.
std::string architecture_text(const checkpoint::ModelConfig& c) {
    const std::string_view known = checkpoint::published_name(c);
    if (known.empty()) return std::string(checkpoint::name_of(c.architecture));
    return fmt::format("{} ({})", known, checkpoint::name_of(c.architecture));
}

// What the files hold of a model's eyes; a list of the prefixes that are there.
std::string left_out_text(const std::vector<checkpoint::LeftOut>& parts) {
    std::string text;
    for (const checkpoint::LeftOut& part : parts) {
        if (part.tensors == 0) continue;
        fmt::format_to(std::back_inserter(text), "{}{}* ({} tensor{}, {})",
                       text.empty() ? "" : ", ", part.prefix, part.tensors,
                       part.tensors == 1 ? "" : "s", bytes_text(static_cast<double>(part.bytes)));
    }
    return text;
}

nlohmann::ordered_json left_out_json(const std::vector<checkpoint::LeftOut>& parts) {
    auto list = nlohmann::ordered_json::array();
    for (const checkpoint::LeftOut& part : parts)
        if (part.tensors > 0)
            list.push_back(
                {{"prefix", part.prefix}, {"tensors", part.tensors}, {"bytes", part.bytes}});
    return list;
}

std::string fits_text(double weights, double kv_per_token, double memory) {
    // A tenth of the memory is left to the system and to activations.
    const double left = 0.9 * memory - weights;
    if (left <= 0)
        return fmt::format("no: {} of weights, {} of memory", bytes_text(weights),
                           bytes_text(memory));
    return fmt::format("yes: {} of weights in {}, room for {} tokens of KV", bytes_text(weights),
                       bytes_text(memory), count_text(left / kv_per_token));
}

Expected<void> run(const InspectOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Checkpoint opened,
                              checkpoint::Checkpoint::open(options.model));
    const checkpoint::ModelConfig& c = opened.config();
    const model::ParameterCount count = model::count_parameters(c);
    ESPALIER_ASSIGN_OR_RETURN(
        const checkpoint::StoredWeight projection,
        checkpoint::find_weight(opened, "model.layers.0.self_attn.o_proj", c.hidden_size,
                                c.num_attention_heads * c.v_head_dim));
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat format, runtime::kv_format_of(opened));
    const auto kv_bytes =
        static_cast<double>(cache::make_layout(c.num_hidden_layers, format).bytes_per_token());
    const auto weight_bytes = static_cast<double>(opened.total_bytes());
    const auto memory = static_cast<double>(runtime::memory_bytes());

    if (options.json) {
        const nlohmann::ordered_json report = {
            {"architecture", checkpoint::name_of(c.architecture)},
            {"published_name", checkpoint::published_name(c)},
            {"layers", c.num_hidden_layers},
            {"mtp_layers", c.num_nextn_predict_layers},
            {"hidden_size", c.hidden_size},
            {"heads", c.num_attention_heads},
            {"vocabulary", c.vocab_size},
            {"context", c.max_position_embeddings},
            {"weight_dtype", checkpoint::name_of(projection.weights.type)},
            {"parameters", count.total},
            {"active_parameters", count.active},
            {"mtp_parameters", count.mtp},
            {"weight_bytes", opened.total_bytes()},
            {"left_out", left_out_json(opened.left_out())},
            {"kv_bytes_per_token", kv_bytes},
            {"files", opened.files().size()},
            {"memory_bytes", memory}};
        fmt::print("{}\n", report.dump(2));
        return {};
    }
    std::vector<std::pair<std::string, std::string>> lines = {
        {"model", opened.directory().string()},
        {"architecture", architecture_text(c)},
        {"layers",
         fmt::format("{} ({} dense first), {} MTP", c.num_hidden_layers,
                     c.n_routed_experts > 0 ? c.first_k_dense_replace : c.num_hidden_layers,
                     c.num_nextn_predict_layers)},
        {"hidden", std::to_string(c.hidden_size)},
        {"attention", attention_text(c)},
        {"experts", experts_text(c)},
        {"vocabulary",
         fmt::format("{}{}", c.vocab_size, c.tie_word_embeddings ? ", tied head" : "")},
        {"context", std::to_string(c.max_position_embeddings)},
        {"parameters",
         fmt::format("{}, {} active per token", count_text(static_cast<double>(count.total)),
                     count_text(static_cast<double>(count.active)))},
        {"weights", fmt::format("{} in {} file{}, {}", bytes_text(weight_bytes),
                                opened.files().size(), opened.files().size() == 1 ? "" : "s",
                                checkpoint::name_of(projection.weights.type))},
        {"KV cache", fmt::format("{} per token ({})", bytes_text(kv_bytes), mla::name_of(format))},
        {"kernels", std::string(name_of(best_cpu_variant()))},
        {"fits here", fits_text(weight_bytes, kv_bytes, memory)},
    };
    if (const std::string text = left_out_text(opened.left_out()); !text.empty())
        lines.emplace_back("left out", text);
    for (const auto& [key, value] : lines) fmt::print("{:<13} {}\n", key, value);
    return {};
}

}  // namespace

Run add_inspect(CLI::App& app) {
    const auto options = std::make_shared<InspectOptions>();
    CLI::App* command =
        app.add_subcommand("inspect", "Say what a checkpoint is and whether it fits this machine");
    command
        ->add_option("model", options->model, "Model directory or ORG/NAME in the local hub cache")
        ->required();
    command->add_flag("--json", options->json, "One JSON object");
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
