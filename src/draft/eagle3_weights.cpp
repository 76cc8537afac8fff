// SPDX-License-Identifier: Apache-2.0
#include "draft/eagle3_weights.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "checkpoint/tensor_list.hpp"
#include "model/layer_loader.hpp"
#include "model/weight_reader.hpp"

namespace espalier::draft {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Eagle3Config;
using checkpoint::ModelConfig;
using checkpoint::StoredType;
using model::WeightReader;

// Publishers name the one layer in two ways.
std::string layer_name(const Checkpoint& draft) {
    return draft.has("layers.0.self_attn.o_proj.weight") ? "layers.0." : "midlayer.";
}

Expected<void> check_fits(const Eagle3Config& draft, const ModelConfig& target,
                          bool own_embedding) {
    const auto equal = [](const char* what, std::int64_t has,
                          std::int64_t needs) -> Expected<void> {
        if (has == needs) return {};
        return fail(ErrorKind::invalid, "the draft's {} is {}, but the model's is {}", what, has,
                    needs);
    };
    ESPALIER_RETURN_IF_ERROR(equal("vocab_size", draft.layer.vocab_size, target.vocab_size));
    ESPALIER_RETURN_IF_ERROR(
        equal("target_hidden_size", draft.target_hidden_size, target.hidden_size));
    // Their keys lie in the target's pages.
    ESPALIER_RETURN_IF_ERROR(equal("kv_lora_rank", draft.layer.kv_lora_rank, target.kv_lora_rank));
    if (own_embedding) return {};
    return equal("hidden_size (it has no embed_tokens of its own)", draft.layer.hidden_size,
                 target.hidden_size);
}

// A tensor that nothing reads would change the drafts, and nothing would tell.
Expected<void> check_nothing_unread(const Checkpoint& draft) {
    std::set<std::string, std::less<>> known = {"d2t", "t2d"};
    for (const checkpoint::TensorSpec& spec : checkpoint::list_eagle3_tensors(
             *draft.eagle3(),
             {.dtype = DType::bf16, .layer = layer_name(draft), .embedding = true})) {
        known.insert(spec.name);
        const auto stored = draft.stored(spec.name);
        if (stored && stored->type == StoredType::e4m3) known.insert(spec.name + "_scale_inv");
    }
    std::vector<std::string> unread;
    for (std::string& name : draft.names())
        if (!known.contains(name)) unread.push_back(std::move(name));
    if (unread.empty()) return {};
    constexpr std::size_t kShown = 3;
    const std::size_t shown = std::min(kShown, unread.size());
    return fail(ErrorKind::unsupported,
                "{}: {} tensor(s) that are no part of the draft config.json describes: {}{}",
                draft.directory().string(), unread.size(),
                fmt::join(std::span(unread).first(shown), ", "),
                unread.size() > shown ? ", …" : "");
}

struct TokenMaps {
    std::vector<std::int32_t> target_of, draft_of;
};

// d2t holds offsets: target = draft + d2t[draft]. Each target id once.
Expected<TokenMaps> read_offsets(const checkpoint::Tensor& d2t, std::int64_t vocabulary) {
    TokenMaps maps;
    const std::size_t width = d2t.type == StoredType::i64 ? 8 : 4;
    const std::size_t count = d2t.bytes.size() / width;
    maps.draft_of.assign(static_cast<std::size_t>(vocabulary), -1);
    for (std::size_t i = 0; i < count; ++i) {
        std::int64_t offset = 0;
        std::int32_t narrow = 0;
        std::memcpy(width == 8 ? static_cast<void*>(&offset) : &narrow,
                    d2t.bytes.data() + i * width, width);
        if (width == 4) offset = narrow;
        const auto draft = static_cast<std::int64_t>(i);
        if (offset < -draft || offset >= vocabulary - draft)
            return fail(ErrorKind::invalid,
                        "{}: d2t[{}] is {}, which leads out of the vocabulary of {}",
                        d2t.file->name(), i, offset, vocabulary);
        const std::int64_t target = draft + offset;
        std::int32_t& back = maps.draft_of[static_cast<std::size_t>(target)];
        if (back >= 0)
            return fail(ErrorKind::invalid, "{}: d2t maps draft tokens {} and {} to token {}",
                        d2t.file->name(), back, i, target);
        back = static_cast<std::int32_t>(i);
        maps.target_of.push_back(static_cast<std::int32_t>(target));
    }
    return maps;
}

// t2d says which tokens have a draft id; it must say what d2t says.
Expected<void> check_t2d(const Checkpoint& draft, const TokenMaps& maps) {
    if (!draft.has("t2d")) return {};
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Tensor t2d,
                              draft.find("t2d", {static_cast<std::int64_t>(maps.draft_of.size())},
                                         {StoredType::boolean, StoredType::u8}));
    for (std::size_t token = 0; token < maps.draft_of.size(); ++token)
        if ((t2d.bytes[token] != std::byte{0}) != (maps.draft_of[token] >= 0))
            return fail(ErrorKind::invalid, "{}: t2d and d2t disagree about token {}",
                        t2d.file->name(), token);
    return {};
}

Expected<Buffer> upload_ids(Device& device, const std::vector<std::int32_t>& ids) {
    const std::size_t bytes = ids.size() * sizeof(std::int32_t);
    ESPALIER_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(bytes));
    ESPALIER_RETURN_IF_ERROR(device.upload(device.stream(), buffer.data(), ids.data(), bytes));
    return buffer;
}

Expected<void> load_vocabulary(const Checkpoint& draft, Device& device, Eagle3Weights& to) {
    const std::int64_t size = to.config.draft_vocab_size;
    const std::int64_t vocabulary = to.config.layer.vocab_size;
    if (!draft.has("d2t")) {
        if (size == vocabulary) return {};
        return fail(ErrorKind::not_found,
                    "{}: draft_vocab_size is {} of {}, but there is no tensor 'd2t' that says "
                    "which tokens these are",
                    draft.directory().string(), size, vocabulary);
    }
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Tensor d2t,
                              draft.find("d2t", {size}, {StoredType::i64, StoredType::i32}));
    ESPALIER_ASSIGN_OR_RETURN(const TokenMaps maps, read_offsets(d2t, vocabulary));
    ESPALIER_RETURN_IF_ERROR(check_t2d(draft, maps));
    ESPALIER_ASSIGN_OR_RETURN(to.target_of, upload_ids(device, maps.target_of));
    ESPALIER_ASSIGN_OR_RETURN(to.draft_of, upload_ids(device, maps.draft_of));
    return {};
}

Expected<void> load_fc(WeightReader& reader, Eagle3Weights& to) {
    const std::int64_t taps = to.config.taps();
    const std::int64_t width = to.config.target_hidden_size;
    if (to.config.norm_before_fc) {
        ESPALIER_ASSIGN_OR_RETURN(to.taps_norm, reader.vector("input_norm.weight", taps * width));
    }
    for (std::int64_t tap = 0; to.config.fc_norm && tap < taps; ++tap) {
        ESPALIER_ASSIGN_OR_RETURN(
            DeviceVector norm, reader.vector("fc_norm." + std::to_string(tap) + ".weight", width));
        to.tap_norms.push_back(std::move(norm));
    }
    ESPALIER_ASSIGN_OR_RETURN(to.fc,
                              reader.matrix("fc", to.config.layer.hidden_size, taps * width));
    return {};
}

Expected<void> load_layer(WeightReader& reader, const std::string& name, Eagle3Weights& to) {
    const ModelConfig& config = to.config.layer;
    const std::int64_t hidden = config.hidden_size;
    ESPALIER_ASSIGN_OR_RETURN(to.embed_norm,
                              reader.vector(name + "input_layernorm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.hidden_norm, reader.vector(name + "hidden_norm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(
        to.layer.attention, model::load_attention(reader, config, name + "self_attn.", 2 * hidden));
    ESPALIER_ASSIGN_OR_RETURN(to.layer.post_attention_norm,
                              reader.vector(name + "post_attention_layernorm.weight", hidden));
    ESPALIER_ASSIGN_OR_RETURN(
        to.layer.dense,
        model::load_feed_forward(reader, config, name + "mlp.", config.intermediate_size));
    return {};
}

// Products of BF16 and F8_E4M3 weights read bf16 activations, those of F32 and F16 f32 ones.
Expected<void> check_one_activation(const Eagle3Weights& weights) {
    const DType act = weights.layer.attention.o.view().format.input();
    const std::pair<const char*, const model::Weight*> products[] = {
        {"fc", &weights.fc},
        {"lm_head", &weights.head},
        {"kv_a_proj_with_mqa", &weights.layer.attention.kv_a},
        {"q", &weights.layer.attention.q},
        {"kv_b_proj", &weights.layer.attention.up_value},
        {"gate_proj", &weights.layer.dense->gate_up},
        {"down_proj", &weights.layer.dense->down}};
    for (const auto& [name, weight] : products)
        if (weight->view().format.input() != act)
            return fail(ErrorKind::unsupported,
                        "the draft's {} is {} beside an o_proj of {}: BF16 and F8_E4M3 weights do "
                        "not mix with F32 and F16 ones",
                        name, name_of(weight->view().format.code),
                        name_of(weights.layer.attention.o.view().format.code));
    return {};
}

}  // namespace

Expected<Eagle3Weights> Eagle3Weights::load(std::shared_ptr<const Checkpoint> draft,
                                            const ModelConfig& target, Device& device,
                                            const ops::Backend& backend,
                                            const model::Progress& progress) {
    CHECK(draft->eagle3().has_value(), "a checkpoint that was not opened as a draft");
    Eagle3Weights to;
    to.config = *draft->eagle3();
    const ModelConfig& config = to.config.layer;
    const bool own_embedding = draft->has("embed_tokens.weight");
    ESPALIER_RETURN_IF_ERROR(check_fits(to.config, target, own_embedding));
    ESPALIER_ASSIGN_OR_RETURN(to.tap_layers, to.config.tap_layers(target.num_hidden_layers));
    ESPALIER_RETURN_IF_ERROR(check_nothing_unread(*draft));
    WeightReader reader(*draft, device, backend, progress);
    ESPALIER_RETURN_IF_ERROR(load_fc(reader, to));
    ESPALIER_RETURN_IF_ERROR(load_layer(reader, layer_name(*draft), to));
    ESPALIER_ASSIGN_OR_RETURN(to.norm, reader.vector("norm.weight", config.hidden_size));
    ESPALIER_ASSIGN_OR_RETURN(
        to.head, reader.matrix("lm_head", to.config.draft_vocab_size, config.hidden_size));
    if (own_embedding) {
        ESPALIER_ASSIGN_OR_RETURN(
            to.embedding,
            reader.embedding("embed_tokens.weight", config.vocab_size, config.hidden_size));
    }
    ESPALIER_RETURN_IF_ERROR(check_one_activation(to));
    ESPALIER_RETURN_IF_ERROR(load_vocabulary(*draft, device, to));
    to.checkpoint_ = std::move(draft);
    return to;
}

}  // namespace espalier::draft
