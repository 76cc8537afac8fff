// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gguf_file.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/gguf.hpp"
#include "checkpoint/gguf_config.hpp"

namespace espalier::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxSplits = 99'999;  // five digits

enum class Kind : std::uint8_t {
    plain,    // as it lies
    stacked,  // [heads, rows, columns] as [heads · rows, columns]
    experts,  // [experts, rows, columns], a tensor each
    gate_up,  // likewise, each with gate's rows and then up's
};
struct Name {
    std::string_view gguf;
    std::string_view published;
    Kind kind = Kind::plain;
};

constexpr std::array<Name, 3> kModelNames = {{
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
}};
// Behind "blk.N." and "model.layers.N.".
constexpr std::array<Name, 31> kBlockNames = {{
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    {"attn_k_b.weight", "self_attn.k_b_proj.weight", Kind::stacked},
    {"attn_v_b.weight", "self_attn.v_b_proj.weight", Kind::stacked},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_exps.weight", "gate_proj.weight", Kind::experts},
    {"ffn_up_exps.weight", "up_proj.weight", Kind::experts},
    {"ffn_down_exps.weight", "down_proj.weight", Kind::experts},
    {"ffn_gate_up_exps.weight", "", Kind::gate_up},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
    {"nextn.eh_proj.weight", "eh_proj.weight"},
    {"nextn.enorm.weight", "enorm.weight"},
    {"nextn.hnorm.weight", "hnorm.weight"},
    {"nextn.embed_tokens.weight", "embed_tokens.weight"},
    {"nextn.shared_head_head.weight", "shared_head.head.weight"},
    {"nextn.shared_head_norm.weight", "shared_head.norm.weight"},
}};

struct Place {
    Name name;
    std::int64_t layer = -1;  // of a block's
};

std::optional<Place> place_of(std::string_view gguf) {
    if (const auto* model = std::ranges::find(kModelNames, gguf, &Name::gguf);
        model != kModelNames.end())
        return Place{.name = *model};
    constexpr std::string_view kBlock = "blk.";
    if (!gguf.starts_with(kBlock)) return std::nullopt;
    gguf.remove_prefix(kBlock.size());
    std::int64_t layer = -1;
    const auto [end, error] = std::from_chars(gguf.data(), gguf.data() + gguf.size(), layer);
    if (error != std::errc() || end == gguf.data() + gguf.size() || *end != '.' || layer < 0)
        return std::nullopt;
    gguf.remove_prefix(static_cast<std::size_t>(end - gguf.data()) + 1);
    const auto* block = std::ranges::find(kBlockNames, gguf, &Name::gguf);
    if (block == kBlockNames.end()) return std::nullopt;
    return Place{.name = *block, .layer = layer};
}

TensorEntry entry_of(const GgufTensor& tensor) {
    TensorEntry entry;
    entry.shape = tensor.shape;
    entry.begin = tensor.begin;
    entry.end = tensor.end;
    if (tensor.type == "F32" || tensor.type == "F16" || tensor.type == "BF16") {
        entry.type = tensor.type == "F32"   ? StoredType::f32
                     : tensor.type == "F16" ? StoredType::f16
                                            : StoredType::bf16;
    } else if (entry.block = block_of(tensor.type); entry.block != BlockCode::none) {
        entry.type = StoredType::blocks;
    } else {
        entry.type = StoredType::other;
        entry.other_type = tensor.type;
    }
    return entry;
}

class Lister {
  public:
    Lister(const ModelConfig& config, std::string_view name) : config_(config), name_(name) {}

    Expected<void> add(const GgufTensor& tensor) {
        const std::optional<Place> place = place_of(tensor.name);
        if (!place) return put(tensor.name, entry_of(tensor), tensor);
        const std::string layer =
            place->layer < 0 ? "" : fmt::format("model.layers.{}.", place->layer);
        if (place->name.kind == Kind::plain)
            return put(fmt::format("{}{}", layer, place->name.published), entry_of(tensor), tensor);
        if (tensor.shape.size() != 3)
            return fail(ErrorKind::invalid, "{}: tensor '{}' has {} dimensions, expected 3", name_,
                        tensor.name, tensor.shape.size());
        if (place->name.kind != Kind::stacked) return add_experts(tensor, *place, layer);
        TensorEntry entry = entry_of(tensor);
        entry.shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]};
        return put(fmt::format("{}{}", layer, place->name.published), std::move(entry), tensor);
    }

    TensorEntries take() { return std::move(entries_); }

  private:
    Expected<void> add_experts(const GgufTensor& tensor, const Place& place,
                               const std::string& layer) {
        const std::int64_t experts = tensor.shape[0], rows = tensor.shape[1];
        if (experts != config_.n_routed_experts)
            return fail(ErrorKind::invalid, "{}: tensor '{}' has {} experts, expert_count is {}",
                        name_, tensor.name, experts, config_.n_routed_experts);
        const bool joined = place.name.kind == Kind::gate_up;
        if (joined && rows % 2 != 0)
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' joins gate and up in {} rows, no even number", name_,
                        tensor.name, rows);
        const std::int64_t parts = joined ? 2 : 1;
        const std::uint64_t bytes =
            (tensor.end - tensor.begin) / static_cast<std::uint64_t>(experts * parts);
        for (std::int64_t i = 0; i < experts * parts; ++i) {
            TensorEntry entry = entry_of(tensor);
            entry.shape = {rows / parts, tensor.shape[2]};
            entry.begin = tensor.begin + static_cast<std::uint64_t>(i) * bytes;
            entry.end = entry.begin + bytes;
            const std::string_view which = !joined      ? place.name.published
                                           : i % 2 == 0 ? std::string_view("gate_proj.weight")
                                                        : std::string_view("up_proj.weight");
            ESPALIER_RETURN_IF_ERROR(
                put(fmt::format("{}mlp.experts.{}.{}", layer, i / parts, which), std::move(entry),
                    tensor));
        }
        return {};
    }

    Expected<void> put(std::string published, TensorEntry entry, const GgufTensor& tensor) {
        if (const auto [at, added] = entries_.emplace(std::move(published), std::move(entry));
            !added)
            return fail(ErrorKind::invalid, "{}: tensor '{}' is another's '{}'", name_, tensor.name,
                        at->first);
        return {};
    }

    const ModelConfig& config_;
    std::string_view name_;
    TensorEntries entries_;
};

struct MappedGguf {
    MappedFile file;
    GgufHeader header;
};

Expected<MappedGguf> map_gguf(const fs::path& path) {
    MappedGguf mapped;
    ESPALIER_ASSIGN_OR_RETURN(mapped.file, MappedFile::open(path));
    ESPALIER_ASSIGN_OR_RETURN(mapped.header,
                              parse_gguf(mapped.file.bytes(), path.filename().string()));
    return mapped;
}

Expected<std::int64_t> split_number(const GgufHeader& header, const char* key, std::int64_t absent,
                                    std::string_view name) {
    const GgufValue* value = header.find(key);
    if (value == nullptr) return absent;
    const auto number = value->integer();
    if (number && *number >= 0 && *number <= kMaxSplits) return *number;
    return fail(ErrorKind::invalid, "{}: {} is {}, expected 0 to {}", name, key, value->shown(),
                kMaxSplits);
}

std::string split_suffix(std::int64_t index, std::int64_t count) {
    return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count);
}

// Opens the files behind the first one, each held to its number.
Expected<void> open_splits(const fs::path& first, std::vector<MappedGguf>& files) {
    const std::string name = first.filename().string();
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t count,
                              split_number(files.front().header, "split.count", 1, name));
    ESPALIER_ASSIGN_OR_RETURN(const std::int64_t number,
                              split_number(files.front().header, "split.no", 0, name));
    if (count <= 1) return {};
    if (number != 0)
        return fail(ErrorKind::invalid, "{}: part {} of {}; open the first one, '…{}'", name,
                    number + 1, count, split_suffix(0, count));
    if (!name.ends_with(split_suffix(0, count)))
        return fail(ErrorKind::invalid,
                    "{}: the first of {} parts, whose names end with '{}'; this one does not", name,
                    count, split_suffix(0, count));
    const std::string stem = name.substr(0, name.size() - split_suffix(0, count).size());
    for (std::int64_t i = 1; i < count; ++i) {
        const fs::path path = first.parent_path() / (stem + split_suffix(i, count));
        ESPALIER_ASSIGN_OR_RETURN(MappedGguf part, map_gguf(path));
        const std::string part_name = path.filename().string();
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t its_count,
                                  split_number(part.header, "split.count", 1, part_name));
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t its_number,
                                  split_number(part.header, "split.no", 0, part_name));
        if (its_count != count || its_number != i)
            return fail(ErrorKind::invalid, "{}: says it is part {} of {}, expected {} of {}",
                        part_name, its_number + 1, its_count, i + 1, count);
        files.push_back(std::move(part));
    }
    return {};
}

Expected<void> check_tensor_count(const std::vector<MappedGguf>& files, std::string_view name) {
    std::int64_t there = 0;
    for (const MappedGguf& file : files) there += std::ssize(file.header.tensors);
    const GgufValue* value = files.front().header.find("split.tensors.count");
    if (value == nullptr || value->integer() == there) return {};
    return fail(ErrorKind::invalid, "{}: split.tensors.count is {}, but its {} file(s) have {}",
                name, value->shown(), files.size(), there);
}

}  // namespace

Expected<TensorEntries> gguf_entries(const std::vector<GgufTensor>& tensors,
                                     const ModelConfig& config, std::string_view name) {
    Lister lister(config, name);
    for (const GgufTensor& tensor : tensors) ESPALIER_RETURN_IF_ERROR(lister.add(tensor));
    return lister.take();
}

Expected<GgufModel> open_gguf(const fs::path& path) {
    const std::string name = path.filename().string();
    std::vector<MappedGguf> files(1);
    ESPALIER_ASSIGN_OR_RETURN(files.front(), map_gguf(path));
    ESPALIER_RETURN_IF_ERROR(open_splits(path, files));
    ESPALIER_RETURN_IF_ERROR(check_tensor_count(files, name));
    const bool has_head = std::ranges::any_of(files, [](const MappedGguf& file) {
        return std::ranges::find(file.header.tensors, "output.weight", &GgufTensor::name) !=
               file.header.tensors.end();
    });
    GgufModel model;
    const GgufHeader& header = files.front().header;
    ESPALIER_ASSIGN_OR_RETURN(model.config, read_gguf_config(header, has_head, name));
    ESPALIER_ASSIGN_OR_RETURN(model.generation, read_gguf_generation(header, name));
    for (MappedGguf& file : files) {
        ESPALIER_ASSIGN_OR_RETURN(
            TensorEntries entries,
            gguf_entries(file.header.tensors, model.config, file.file.path().filename().string()));
        model.files.emplace_back(std::move(file.file), std::move(entries));
    }
    return model;
}

}  // namespace espalier::checkpoint
