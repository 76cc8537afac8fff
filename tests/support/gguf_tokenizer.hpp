// SPDX-License-Identifier: Apache-2.0
// A tokenizer's metadata in a GGUF file, as llama.cpp's converter writes it from tokenizer.json,
// for tests.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mapped_file.hpp"
#include "support/gguf_writer.hpp"

namespace espalier {

struct GgufTokenizer {
    std::string model = "gpt2", pre;
    std::vector<std::string> tokens, merges;
    std::vector<std::int32_t> kinds;

    void put(std::size_t id, std::string token, std::int32_t kind) {
        while (tokens.size() <= id) {
            tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
            kinds.push_back(5);
        }
        tokens[id] = std::move(token);
        kinds[id] = kind;
    }
    void add_to(GgufWriter& file) const {
        file.text("tokenizer.ggml.model", model);
        file.text("tokenizer.ggml.pre", pre);
        file.texts("tokenizer.ggml.tokens", tokens);
        file.i32s("tokenizer.ggml.token_type", kinds);
        file.texts("tokenizer.ggml.merges", merges);
    }
    GgufWriter file() const {
        GgufWriter file;
        add_to(file);
        return file;
    }
};

inline GgufTokenizer gguf_tokenizer(const std::filesystem::path& json_file,
                                    const std::string& pre) {
    const auto text = read_text_file(json_file, 1 << 24);
    const auto json = nlohmann::json::parse(text.value());
    GgufTokenizer parts;
    parts.pre = pre;
    for (const auto& [token, id] : json["model"]["vocab"].items())
        parts.put(id.get<std::size_t>(), token, 1);
    for (const auto& token : json["added_tokens"])
        parts.put(token["id"].get<std::size_t>(), token["content"].get<std::string>(),
                  token["special"].get<bool>() ? 3 : 4);
    for (const auto& merge : json["model"]["merges"])
        parts.merges.push_back(merge.is_string() ? merge.get<std::string>()
                                                 : merge[0].get<std::string>() + " " +
                                                       merge[1].get<std::string>());
    return parts;
}

}  // namespace espalier
