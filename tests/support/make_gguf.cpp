// SPDX-License-Identifier: Apache-2.0
// make_gguf DIRECTORY OUT BLOCK: a GGUF file of random numbers with the configuration and the
// tokenizer of a model of make-model (BF16). Matrices are blocks of the format, where their rows
// are whole blocks. For tools/capabilities.py.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/mapped_file.hpp"
#include "checkpoint/checkpoint.hpp"
#include "support/gguf_blocks.hpp"
#include "support/gguf_model.hpp"
#include "support/gguf_tokenizer.hpp"

namespace espalier {
namespace {

BlockCode block_named(std::string_view name) {
    for (std::size_t index = 1; index < kBlocks.size(); ++index)
        if (facts_of(static_cast<BlockCode>(index)).name == name)
            return static_cast<BlockCode>(index);
    throw std::runtime_error(fmt::format("no block format {}", name));
}

GgufTensors in_blocks(GgufTensors tensors, BlockCode code) {
    std::mt19937 random(11);
    const auto whole = static_cast<std::uint64_t>(facts_of(code).weights);
    for (auto& [name, data] : tensors) {
        const bool plain = data.shape.size() == 1 || name.ends_with("mlp.gate.weight");
        if (plain || data.shape[1] % whole != 0) continue;
        data.type = ggml_type(code);
        data.bytes = random_blocks(code, data.shape[0] * data.shape[1], random).blocks;
    }
    return tensors;
}

void write(const std::filesystem::path& directory, const std::filesystem::path& out,
           BlockCode code) {
    const checkpoint::Checkpoint source = checkpoint::Checkpoint::open(directory.string()).value();
    GgufWriter file;
    add_config(file, source.config());
    gguf_tokenizer(directory / "tokenizer.json", "deepseek-v3").add_to(file);
    add_tensors(
        file,
        with_stacked_experts(
            in_blocks(plain_tensors(SafetensorsEditor(directory / "model.safetensors")), code),
            source.config().n_routed_experts));
    file.save(out);
}

}  // namespace
}  // namespace espalier

int main(int count, char** words) {
    if (count != 4) return 2;
    try {
        espalier::write(words[1], words[2], espalier::block_named(words[3]));
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
