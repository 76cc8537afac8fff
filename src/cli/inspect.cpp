// SPDX-License-Identifier: Apache-2.0
// espalier inspect: what a checkpoint is, whether it fits this machine, and how fast it can be
// here. Reads no tensor but with --hash.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/cpu_device.hpp"
#include "base/cpu_features.hpp"
#include "base/user_cache.hpp"
#include "checkpoint/known_models.hpp"
#include "checkpoint/quantization.hpp"
#include "cli/command.hpp"
#include "cli/expectation.hpp"
#include "cli/identity_text.hpp"
#include "cli/inspect_ranks.hpp"
#include "cli/terminal.hpp"
#include "linalg/machine_peaks.hpp"
#include "model/cost.hpp"
#include "model/kv_layout.hpp"
#include "model/mapped_experts.hpp"
#include "model/packed_cache.hpp"
#include "runtime/identity.hpp"
#include "runtime/running_engine.hpp"
#include "runtime/sizes.hpp"

namespace espalier::cli {
namespace {

struct InspectOptions {
    std::string model;
    bool json = false;
    bool hash = false;
    int ranks = 1;
};

std::string attention_text(const checkpoint::ModelConfig& c) {
    const std::string query =
        c.q_lora_rank > 0 ? fmt::format("q_lora {}", c.q_lora_rank) : "no q_lora";
    const std::string chosen =
        c.indexer ? fmt::format("; the {} keys that {} index heads of {} choose", c.indexer->top_k,
                                c.indexer->heads, c.indexer->head_dim)
                  : "";
    return fmt::format("{} heads, keys of {} + {} with rope, values of {}; {}, kv_lora {}{}",
                       c.num_attention_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim,
                       query, c.kv_lora_rank, chosen);
}

std::string layers_text(const checkpoint::ModelConfig& c) {
    const std::string dense = c.n_routed_experts > 0
                                  ? fmt::format("the first {} dense", c.first_k_dense_replace)
                                  : "all dense";
    return fmt::format("{} ({}), {} for MTP", c.num_hidden_layers, dense,
                       c.num_nextn_predict_layers);
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

// The files' parts for a model's eyes; a list of the prefixes that are there.
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

// Tensors and their bytes by the format that they are stored in, most bytes first.
struct FormatShare {
    std::string_view format;
    std::int64_t tensors = 0;
    std::uint64_t bytes = 0;
};
std::vector<FormatShare> formats_of(const checkpoint::Checkpoint& opened) {
    std::vector<FormatShare> shares;
    for (const std::string& name : opened.names()) {
        const checkpoint::Tensor tensor = *opened.stored(name);
        auto share = std::ranges::find(shares, tensor.type_name(), &FormatShare::format);
        if (share == shares.end())
            share = shares.insert(shares.end(), FormatShare{.format = tensor.type_name()});
        ++share->tensors;
        share->bytes += tensor.bytes.size();
    }
    std::ranges::sort(shares, std::greater(), &FormatShare::bytes);
    return shares;
}

std::string formats_text(const checkpoint::Checkpoint& opened) {
    std::string text;
    for (const FormatShare& share : formats_of(opened))
        fmt::format_to(std::back_inserter(text), "{}{} ({} tensor{}, {})", text.empty() ? "" : ", ",
                       share.format, share.tensors, share.tensors == 1 ? "" : "s",
                       bytes_text(static_cast<double>(share.bytes)));
    return text;
}

nlohmann::ordered_json formats_json(const checkpoint::Checkpoint& opened) {
    auto list = nlohmann::ordered_json::array();
    for (const FormatShare& share : formats_of(opened))
        list.push_back(
            {{"format", share.format}, {"tensors", share.tensors}, {"bytes", share.bytes}});
    return list;
}

// The file of packed weights that is there, beside the model or in the user's weight cache.
std::string packed_file_of(const checkpoint::Checkpoint& opened) {
    std::error_code error;
    std::filesystem::path file = model::packed_weights_path(opened);
    if (std::filesystem::exists(file, error)) return file.string();
    const std::filesystem::path cache = user_cache("weights");
    if (cache.empty()) return {};
    file = model::PackedCache(cache).file_of(opened);
    return std::filesystem::exists(file, error) ? file.string() : "";
}

std::string fits_text(const ModelFacts& model, double memory) {
    const bool all = model.weight_bytes <= 0.9 * memory;
    const bool fixed = model.weight_bytes - model.expert_bytes <= 0.9 * memory;
    return fmt::format("{}: {} of weights, {} of memory",
                       all ? "yes"
                       : fixed && model.expert_bytes > 0
                           ? "not whole; with --mmap-experts, its experts on disk"
                           : "no",
                       bytes_text(model.weight_bytes), bytes_text(memory));
}

Expected<WeightFormat> format_of(const checkpoint::Checkpoint& opened, const std::string& name,
                                 std::int64_t n, std::int64_t k) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::StoredWeight found,
                              checkpoint::find_weight(opened, name, n, k));
    return found.format;
}

// Formats of the matrices that a step reads, by one of each kind.
Expected<model::StepFormats> step_formats(const checkpoint::Checkpoint& opened) {
    const checkpoint::ModelConfig& c = opened.config();
    const std::int64_t last = c.num_hidden_layers - 1;
    const std::string layer = fmt::format("model.layers.{}.", last);
    const bool moe = c.layer_is_moe(last);
    const std::int64_t width = moe ? c.moe_intermediate_size : c.intermediate_size;
    model::StepFormats formats;
    ESPALIER_ASSIGN_OR_RETURN(formats.attention,
                              format_of(opened, layer + "self_attn.o_proj", c.hidden_size,
                                        c.num_attention_heads * c.v_head_dim));
    ESPALIER_ASSIGN_OR_RETURN(const auto halves,
                              checkpoint::find_kv_halves(opened, layer + "self_attn."));
    if (halves) {
        formats.kv_b = halves->key.format;
    } else {
        ESPALIER_ASSIGN_OR_RETURN(
            formats.kv_b,
            format_of(opened, layer + "self_attn.kv_b_proj",
                      c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank));
    }
    // Groups along one axis become bf16 at load.
    if (formats.kv_b.scaled() && formats.kv_b.group_n == 1) formats.kv_b = {WeightCode::bf16};
    ESPALIER_ASSIGN_OR_RETURN(
        formats.feed_forward,
        format_of(opened, layer + (moe ? "mlp.experts.0.gate_proj" : "mlp.gate_proj"), width,
                  c.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(
        formats.head, format_of(opened, c.tie_word_embeddings ? "model.embed_tokens" : "lm_head",
                                c.vocab_size, c.hidden_size));
    return formats;
}

Expected<ModelFacts> model_facts(const checkpoint::Checkpoint& opened, double kv_bytes) {
    const checkpoint::ModelConfig& c = opened.config();
    ESPALIER_ASSIGN_OR_RETURN(const model::StepFormats formats, step_formats(opened));
    ModelFacts facts;
    facts.weight_bytes = static_cast<double>(opened.loaded_bytes());
    facts.expert_bytes = static_cast<double>(model::expert_bytes(opened));
    facts.step_bytes = model::step_cost(c, formats, {}).weight_bytes;
    checkpoint::ModelConfig without = c;
    without.num_experts_per_tok = 0;
    facts.step_expert_bytes =
        facts.step_bytes - model::step_cost(without, formats, {}).weight_bytes;
    facts.kv_bytes = kv_bytes;
    facts.context = static_cast<double>(c.max_position_embeddings);
    return facts;
}

// The speed of memory on all cores, and where it matters that of the disk.
Expected<MachineFacts> machine_facts(const checkpoint::Checkpoint& opened,
                                     const ModelFacts& model) {
    MachineFacts machine;
    machine.memory_bytes = static_cast<double>(runtime::memory_bytes());
    ESPALIER_ASSIGN_OR_RETURN(const int threads, runtime::thread_count(0));
    ESPALIER_ASSIGN_OR_RETURN(const CpuVariant variant, chosen_cpu_variant());
    constexpr std::size_t kReadBytes = std::size_t{128} << 20;
    CpuDevice device(threads);
    ESPALIER_ASSIGN_OR_RETURN(Buffer data, device.allocate(kReadBytes));
    // Fresh memory is one page of zeros for all, which caches hold.
    std::memset(data.data(), 1, data.bytes());
    machine.memory_rate =
        linalg::measured_read_bandwidth(device.pool(), variant, {data.data(), data.bytes()}, 5);
    if (model.weight_bytes > 0.9 * machine.memory_bytes && !opened.files().empty())
        machine.disk_rate = measured_disk_rate(opened.files().back()->file().path());
    return machine;
}

struct Inspection {
    checkpoint::StoredWeight projection;  // its type stands for the checkpoint's
    model::ParameterCount parameters;
    std::string kv_formats;
    TextIdentity identity;
    std::vector<float> kv_scales;  // of the layers that have one
    ModelFacts model;
    MachineFacts machine;
    Expectation expected;
    std::optional<RankFacts> ranks = {};  // with --tp
};

Expected<Inspection> inspect(const checkpoint::Checkpoint& opened, bool hash) {
    const checkpoint::ModelConfig& c = opened.config();
    ESPALIER_ASSIGN_OR_RETURN(
        const checkpoint::StoredWeight projection,
        checkpoint::find_weight(opened, "model.layers.0.self_attn.o_proj", c.hidden_size,
                                c.num_attention_heads * c.v_head_dim));
    ESPALIER_ASSIGN_OR_RETURN(const mla::KvFormat format, runtime::kv_format_of(opened));
    const cache::KvLayout layout = model::kv_layout(c, format);
    const auto kv_bytes = static_cast<double>(layout.bytes_per_token());
    std::vector<float> kv_scales;
    for (std::int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
        ESPALIER_ASSIGN_OR_RETURN(
            const std::optional<float> scale,
            checkpoint::kv_scale_of(opened, fmt::format("model.layers.{}.self_attn.", layer)));
        if (scale) kv_scales.push_back(*scale);
    }
    ESPALIER_ASSIGN_OR_RETURN(const ModelFacts model, model_facts(opened, kv_bytes));
    ESPALIER_ASSIGN_OR_RETURN(const MachineFacts machine, machine_facts(opened, model));
    const auto identify = hash ? runtime::text_identity : runtime::identity_without_model;
    ESPALIER_ASSIGN_OR_RETURN(TextIdentity identity,
                              identify(opened, {}, runtime::EngineOptions().prefill_segment));
    return Inspection{.projection = projection,
                      .parameters = model::count_parameters(c),
                      .kv_formats = layout.formats(),
                      .identity = std::move(identity),
                      .kv_scales = std::move(kv_scales),
                      .model = model,
                      .machine = machine,
                      .expected = expect(model, machine)};
}

nlohmann::ordered_json report_json(const checkpoint::Checkpoint& opened, const Inspection& found) {
    const checkpoint::ModelConfig& c = opened.config();
    return {{"architecture", checkpoint::name_of(c.architecture)},
            {"published_name", checkpoint::published_name(c)},
            {"layers", c.num_hidden_layers},
            {"mtp_layers", c.num_nextn_predict_layers},
            {"hidden_size", c.hidden_size},
            {"heads", c.num_attention_heads},
            {"vocabulary", c.vocab_size},
            {"context", c.max_position_embeddings},
            {"weight_dtype", found.projection.weights.type_name()},
            {"formats", formats_json(opened)},
            {"parameters", found.parameters.total},
            {"active_parameters", found.parameters.active},
            {"mtp_parameters", found.parameters.mtp},
            {"weight_bytes", opened.total_bytes()},
            {"left_out", left_out_json(opened.left_out())},
            {"kv_bytes_per_token", found.model.kv_bytes},
            {"kv_scales", found.kv_scales},
            {"unused_generation_config", opened.generation().unused},
            {"files", opened.files().size()},
            {"memory_bytes", found.machine.memory_bytes},
            {"memory_bytes_per_second", found.machine.memory_rate},
            {"disk_bytes_per_second", found.machine.disk_rate},
            {"expert_bytes", found.model.expert_bytes},
            {"bytes_per_token", found.model.step_bytes},
            {"expert_bytes_per_token", found.model.step_expert_bytes},
            {"bound", name_of(found.expected.bound)},
            {"tokens_per_second", found.expected.tokens_per_second},
            {"experts_in_memory", found.expected.experts_in_memory},
            {"room_tokens", found.expected.room_tokens},
            {"text_identity", identity_json(found.identity)}};
}

void print_report(const checkpoint::Checkpoint& opened, const Inspection& found) {
    const checkpoint::ModelConfig& c = opened.config();
    const auto line = [](const char* key, const std::string& value) {
        fmt::print("{:<13} {}\n", key, value);
    };
    line("model", opened.directory().string());
    line("architecture", architecture_text(c));
    line("layers", layers_text(c));
    line("hidden", std::to_string(c.hidden_size));
    line("attention", attention_text(c));
    line("experts", experts_text(c));
    line("vocabulary",
         fmt::format("{}{}", c.vocab_size, c.tie_word_embeddings ? ", tied head" : ""));
    line("context", context_text(found.expected, found.model));
    line("parameters", fmt::format("{}, {} active per token",
                                   count_text(static_cast<double>(found.parameters.total)),
                                   count_text(static_cast<double>(found.parameters.active))));
    line("weights",
         fmt::format("{} in {} file{}, {}", bytes_text(static_cast<double>(opened.total_bytes())),
                     opened.files().size(), opened.files().size() == 1 ? "" : "s",
                     found.projection.weights.type_name()));
    if (opened.is_gguf()) line("formats", formats_text(opened));
    line("KV cache",
         fmt::format("{} per token ({})", bytes_text(found.model.kv_bytes), found.kv_formats));
    if (!found.kv_scales.empty()) {
        const auto [least, most] = std::ranges::minmax(found.kv_scales);
        line("KV scales", fmt::format("{} to {} in {} layers, for --kv-format fp8_tensor", least,
                                      most, found.kv_scales.size()));
    }
    line("kernels", std::string(name_of(best_cpu_variant())));
    if (const std::string file = packed_file_of(opened); !file.empty()) line("packed in", file);
    line("fits here", fits_text(found.model, found.machine.memory_bytes));
    if (found.ranks) line("ranks", ranks_text(*found.ranks));
    line("speed here", speed_text(found.expected, found.model, found.machine));
    if (const std::string text = left_out_text(opened.left_out()); !text.empty())
        line("left out", text);
    fmt::print("{}", identity_text(found.identity));
    if (const auto& unused = opened.generation().unused; !unused.empty())
        line("not honoured", fmt::format("{} of generation_config.json", fmt::join(unused, ", ")));
}

Expected<void> run(const InspectOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint checkpoint,
                              checkpoint::Checkpoint::open(options.model));
    const auto opened = std::make_shared<const checkpoint::Checkpoint>(std::move(checkpoint));
    ESPALIER_RETURN_IF_ERROR(
        model::check_shard(opened->config(), {.rank = 0, .count = options.ranks}));
    ESPALIER_ASSIGN_OR_RETURN(Inspection found, inspect(*opened, options.hash));
    if (options.ranks > 1) {
        ESPALIER_ASSIGN_OR_RETURN(
            found.ranks,
            rank_facts(opened, options.ranks, found.model.kv_bytes, found.machine.memory_bytes));
    }
    if (!options.json) {
        print_report(*opened, found);
        return {};
    }
    nlohmann::ordered_json report = report_json(*opened, found);
    if (found.ranks) report["tensor_parallel"] = ranks_json(*found.ranks);
    fmt::print("{}\n", report.dump(2));
    return {};
}

}  // namespace

Run add_inspect(CLI::App& app) {
    const auto options = std::make_shared<InspectOptions>();
    CLI::App* command =
        app.add_subcommand("inspect", "Say what a checkpoint is and whether it fits this machine");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    command->add_flag("--hash", options->hash,
                      "Model hash too, for which 1.6 % of the weights are read");
    command->add_flag("--json", options->json, "One JSON object");
    command
        ->add_option("--tensor-parallel-size,--tp", options->ranks,
                     "Ranks; also prints what each would hold")
        ->capture_default_str();
    return [options] { return run(*options); };
}

}  // namespace espalier::cli
