// SPDX-License-Identifier: Apache-2.0
#include "engine/tiny_target.hpp"

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "checkpoint/synthetic.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::engine {
namespace {

// Overwrites the poisoned token's embedding (bf16) in the file.
void poison(const std::filesystem::path& file, std::int64_t hidden) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    std::uint64_t header_bytes = 0;
    stream.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    std::string header(header_bytes, ' ');
    stream.read(header.data(), static_cast<std::streamsize>(header.size()));
    const auto tensor = nlohmann::json::parse(header).at("model.embed_tokens.weight");
    const std::uint64_t begin = tensor.at("data_offsets").at(0).get<std::uint64_t>();
    const std::vector<std::uint16_t> bad(static_cast<std::size_t>(hidden), 0x7fc0);
    stream.seekp(static_cast<std::streamoff>(8 + header_bytes + begin) +
                 std::streamoff{kPoisonToken} * hidden * 2);
    stream.write(reinterpret_cast<const char*>(bad.data()),
                 static_cast<std::streamsize>(bad.size() * 2));
    if (!stream) throw std::runtime_error("could not poison " + file.string());
}

TinyTarget make(const char* preset_name) {
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
    target.model =
        std::make_unique<model::RunningModel>(path, 1, best_cpu_variant(), kTinyMaxGather);
    target.tokenizer = std::make_unique<text::Tokenizer>(std::move(*tokenizer));
    return target;
}

}  // namespace

TinyTarget& tiny_target(Family family) {
    if (family == Family::v2) {
        static TinyTarget v2 = make("tiny-v2");
        return v2;
    }
    static TinyTarget v3 = make("tiny-v3");
    return v3;
}

}  // namespace espalier::engine
