// SPDX-License-Identifier: Apache-2.0
#include "engine/tiny_target.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "checkpoint/synthetic.hpp"
#include "lossless/isolated_device.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::engine {
namespace {

// One file of bf16 tensors, to be written to element by element.
class Patch {
  public:
    explicit Patch(const std::filesystem::path& file)
        : stream_(file, std::ios::in | std::ios::out | std::ios::binary) {
        std::uint64_t header_bytes = 0;
        stream_.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
        std::string header(header_bytes, ' ');
        stream_.read(header.data(), static_cast<std::streamsize>(header.size()));
        tensors_ = nlohmann::json::parse(header);
        data_ = 8 + header_bytes;
    }
    void set(const char* tensor, std::int64_t row, std::int64_t column, std::uint16_t bits) {
        const auto& entry = tensors_.at(tensor);
        const auto begin = entry.at("data_offsets").at(0).get<std::uint64_t>();
        const auto width = entry.at("shape").at(1).get<std::int64_t>();
        stream_.seekp(static_cast<std::streamoff>(data_ + begin) + (row * width + column) * 2);
        stream_.write(reinterpret_cast<const char*>(&bits), 2);
        if (!stream_) throw std::runtime_error(std::string("could not patch ") + tensor);
    }

  private:
    std::fstream stream_;
    nlohmann::json tensors_;
    std::uint64_t data_ = 0;
};

// kPoisonToken is not a number from the start. kQuietPoisonToken alone has something in column 0 of
// its embedding, which a weight near the largest bf16 turns into an infinite rotary key of the
// first layer: its cache entry is flushed and flagged, but all that it computes stays finite.
void poison(const std::filesystem::path& file, std::int64_t hidden) {
    constexpr std::uint16_t kNan = 0x7fc0, kOne = 0x3f80, kLargest = 0x7f7f;
    constexpr const char* kEmbedding = "model.embed_tokens.weight";
    Patch patch(file);
    for (std::int64_t token = 0; token < kTinyVocabulary; ++token)
        patch.set(kEmbedding, token, 0, token == kQuietPoisonToken ? kOne : 0);
    for (std::int64_t column = 0; column < hidden; ++column)
        patch.set(kEmbedding, kPoisonToken, column, kNan);
    patch.set("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", mla::kLatent, 0, kLargest);
}

TinyTarget make(const char* preset_name, model::Machine machine,
                std::optional<mla::KvFormat> kv_format = std::nullopt,
                const model::LoadOptions& options = {}) {
    const TemporaryDirectory directory;
    auto preset = checkpoint::synthetic_preset(preset_name);
    if (!preset) throw std::runtime_error(preset.error().message);
    // One dense layer and one of experts, two heads: what more would show, in a third of the time.
    preset->config.num_hidden_layers = 2;
    preset->config.num_attention_heads = 2;
    preset->config.num_nextn_predict_layers = 0;
    preset->config.vocab_size = kTinyVocabulary;
    const auto path = directory.path() / "model";
    model::write_model(*preset, path);
    poison(path / "model.safetensors", preset->config.hidden_size);
    auto tokenizer = text::Tokenizer::load(path);
    if (!tokenizer) throw std::runtime_error(tokenizer.error().message);
    TinyTarget target;
    target.model = std::make_unique<model::RunningModel>(path, std::move(machine), kTinyMaxGather,
                                                         kv_format, options);
    target.tokenizer = std::make_unique<text::Tokenizer>(std::move(*tokenizer));
    auto vocabulary = grammar::Vocabulary::make(*target.tokenizer, kTinyVocabulary,
                                                (*target.model)->config().eos_token_ids);
    if (!vocabulary) throw std::runtime_error(vocabulary.error().message);
    target.compiler = std::make_unique<grammar::Compiler>(std::move(*vocabulary));
    return target;
}

model::Machine cpu() { return model::cpu_machine(1, best_cpu_variant()); }

model::Machine isolated(std::unique_ptr<ops::Backend> backend,
                        std::unique_ptr<mla::Kernels> kernels) {
    auto device = std::make_unique<lossless::IsolatedDevice>(1);
    model::Machine machine;
    machine.backend = lossless::isolate(*device, std::move(backend));
    machine.kernels = lossless::isolate(*device, std::move(kernels));
    machine.device = std::move(device);
    return machine;
}

}  // namespace

TinyTarget& isolated_target(Operations operations) {
    if (operations == Operations::reference) {
        static TinyTarget plain =
            make("tiny-v3", isolated(ops::make_reference_backend(), mla::make_reference_kernels()));
        return plain;
    }
    static TinyTarget cpu = make("tiny-v2", isolated(ops::make_cpu_backend(best_cpu_variant()),
                                                     mla::make_cpu_kernels(best_cpu_variant())));
    return cpu;
}

TinyTarget& gpu_target(Family family) {
    if (family == Family::v3_fp8_cache) {
        static TinyTarget narrow = make("tiny-v3", model::gpu_machine(), mla::KvFormat::fp8_token);
        return narrow;
    }
    static TinyTarget own = make("tiny-v3", model::gpu_machine());
    return own;
}

TinyTarget& tiny_target(Family family) {
    if (family == Family::v2) {
        static TinyTarget v2 = make("tiny-v2", cpu());
        return v2;
    }
    if (family == Family::v3_fp8_cache) {
        static TinyTarget narrow = make("tiny-v3", cpu(), mla::KvFormat::fp8_token);
        return narrow;
    }
    if (family == Family::v3_int4) {
        static TinyTarget rounded =
            make("tiny-v3", cpu(), std::nullopt, {.rounding = WeightCode::int4});
        return rounded;
    }
    static TinyTarget v3 = make("tiny-v3", cpu());
    return v3;
}

}  // namespace espalier::engine
