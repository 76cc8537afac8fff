// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/tensor_check.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "checkpoint/quantization.hpp"
#include "checkpoint/tensor_list.hpp"

namespace espalier::checkpoint {
namespace {

constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";

// The layer of "model.layers.N.…", or −1.
std::int64_t layer_of(std::string_view name) {
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) return -1;
    name.remove_prefix(kLayers.size());
    std::int64_t layer = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
    const bool whole = error == std::errc() && end != name.data() + name.size() && *end == '.';
    return whole ? layer : -1;
}

class TensorCheck {
  public:
    explicit TensorCheck(const Checkpoint& checkpoint)
        : checkpoint_(checkpoint), config_(checkpoint.config()) {
        // MTP layers may be announced and left out (Kimi K2 does): the model has those that are
        // there.
        ModelConfig present = config_;
        present.num_nextn_predict_layers = 0;
        while (present.num_nextn_predict_layers < config_.num_nextn_predict_layers &&
               is_mtp(present.num_hidden_layers + present.num_nextn_predict_layers))
            ++present.num_nextn_predict_layers;
        present.wrapper = Wrapper::none;
        present.quantization = {};  // the list's own names; how each is stored its tensors say
        specs_ = list_tensors(present, {.dtype = DType::bf16, .repeat_mtp_embeddings = true});
        split_kv_b();
        for (const TensorSpec& spec : specs_) role_of_.emplace(spec.name, spec.role);
    }

    Expected<void> nothing_unread() const {
        std::vector<std::string> unread;
        for (std::string& name : checkpoint_.names())
            if (!is_read(name)) unread.push_back(std::move(name));
        if (unread.empty()) return {};
        for (const std::string& name : unread) {
            const std::string_view matrix = product_of(name);
            if (config_.quantization.layout != QuantizedLayout::none && !matrix.empty() &&
                checkpoint_.has(first_tensor_of(matrix)))
                return fail(ErrorKind::unsupported,
                            "{}: tensor '{}{}' stands beside '{}{}', with which only {} are read",
                            checkpoint_.stored(name)->file->name(), config_.tensor_prefix(), name,
                            config_.tensor_prefix(), first_tensor_of(matrix),
                            fmt::join(tensors_of(checkpoint_, matrix), ", "));
        }
        constexpr std::size_t kShown = 3;
        const std::size_t shown = std::min(kShown, unread.size());
        std::string list;
        for (std::size_t i = 0; i < shown; ++i)
            list += fmt::format("{}'{}{}'", i == 0 ? "" : ", ", config_.tensor_prefix(), unread[i]);
        if (unread.size() > shown) list += fmt::format(" and {} more", unread.size() - shown);
        return fail(ErrorKind::unsupported,
                    "{}: {} tensor(s) that are no part of the model {} describes: {}",
                    checkpoint_.stored(unread.front())->file->name(), unread.size(),
                    checkpoint_.is_gguf() ? "its metadata" : "config.json", list);
    }

    // Products of BF16, F8_E4M3 and quantized weights read bf16 activations, those of F32 and F16
    // f32 ones; a model has one kind.
    Expected<void> one_activation() const {
        std::optional<Tensor> first;
        for (const TensorSpec& spec : specs_) {
            if (!is_product(spec.name, spec.role)) continue;
            const std::optional<Tensor> tensor =
                checkpoint_.stored(first_tensor_of(product_of(spec.name)));
            if (!tensor) continue;
            if (!first) first = tensor;
            if (reads_f32(*tensor) != reads_f32(*first))
                return fail(ErrorKind::unsupported,
                            "{}: tensor '{}{}' is {} but '{}{}' is {}: BF16, F8_E4M3 and quantized "
                            "weights do not mix with F32 and F16 ones",
                            tensor->file->name(), config_.tensor_prefix(), tensor->name,
                            tensor->type_name(), config_.tensor_prefix(), first->name,
                            first->type_name());
        }
        return {};
    }

  private:
    // Halves take the joined matrix's place in layers that have them.
    void split_kv_b() {
        constexpr std::string_view kJoined = "kv_b_proj.weight";
        std::vector<TensorSpec> halves;
        for (TensorSpec& spec : specs_) {
            if (!spec.name.ends_with(kJoined) || checkpoint_.has(spec.name)) continue;
            const std::string attention = spec.name.substr(0, spec.name.size() - kJoined.size());
            if (!checkpoint_.has(attention + "k_b_proj.weight")) continue;
            spec.name = attention + "k_b_proj.weight";
            halves.push_back(spec);
            halves.back().name = attention + "v_b_proj.weight";
        }
        specs_.insert(specs_.end(), halves.begin(), halves.end());
    }

    static bool reads_f32(const Tensor& tensor) {
        return tensor.type == StoredType::f32 || tensor.type == StoredType::f16;
    }

    bool is_mtp(std::int64_t layer) const {
        return has_matrix(checkpoint_, fmt::format("model.layers.{}.eh_proj", layer));
    }

    bool is_product(std::string_view name, TensorRole role) const {
        return role == TensorRole::projection || role == TensorRole::head ||
               (config_.tie_word_embeddings && name == kEmbedding);
    }

    bool is_read(std::string_view name) const {
        if (const std::string_view matrix = product_of(name); !matrix.empty()) {
            const auto parts = tensors_of(checkpoint_, matrix);
            return std::ranges::find(parts, name.substr(matrix.size() + 1)) != parts.end();
        }
        if (role_of_.contains(name)) return true;
        if (is_kv_scale_of_a_layer(name)) return true;
        if (name.ends_with(".rotary_emb.inv_freq")) return true;
        if (name == kHead && config_.tie_word_embeddings) return repeats_embedding();
        const std::int64_t layer = layer_of(name);
        return layer >= config_.num_hidden_layers && is_mtp(layer) &&
               !role_of_.contains(fmt::format("model.layers.{}.eh_proj.weight", layer));
    }

    // The matrix that a tensor's name belongs to, without its last part; empty for a tensor of
    // none. What would be dropped beside a matrix (scales of another kind, zero points) is unread.
    std::string_view product_of(std::string_view name) const {
        const std::size_t dot = name.rfind('.');
        if (dot == std::string_view::npos) return {};
        const std::string weight = fmt::format("{}.weight", name.substr(0, dot));
        const auto matrix = role_of_.find(weight);
        if (matrix == role_of_.end() || !is_product(weight, matrix->second)) return {};
        return name.substr(0, dot);
    }
    std::string first_tensor_of(std::string_view matrix) const {
        return fmt::format("{}.{}", matrix, tensors_of(checkpoint_, matrix).front());
    }

    bool is_kv_scale_of_a_layer(std::string_view name) const {
        constexpr std::string_view kAttention = ".self_attn.";
        const std::size_t at = name.find(kAttention);
        if (at == std::string_view::npos) return false;
        const std::size_t end = at + kAttention.size();
        return is_kv_scale(name.substr(end)) &&
               role_of_.contains(fmt::format("{}kv_a_proj_with_mqa.weight", name.substr(0, end)));
    }

    bool repeats_embedding() const {
        const std::optional<Tensor> head = checkpoint_.stored(kHead);
        const std::optional<Tensor> embedding = checkpoint_.stored(kEmbedding);
        return head && embedding && head->type == embedding->type &&
               head->shape == embedding->shape && std::ranges::equal(head->bytes, embedding->bytes);
    }

    const Checkpoint& checkpoint_;
    const ModelConfig& config_;
    std::vector<TensorSpec> specs_;  // of the model as far as the files have it
    std::unordered_map<std::string_view, TensorRole> role_of_;  // by name, into specs_
};

}  // namespace

Expected<void> check_tensors(const Checkpoint& checkpoint) {
    const TensorCheck check(checkpoint);
    ESPALIER_RETURN_IF_ERROR(check.nothing_unread());
    return check.one_activation();
}

}  // namespace espalier::checkpoint
