// SPDX-License-Identifier: Apache-2.0
// tokenizer_config.json: the few fields that matter beside the vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/gguf.hpp"

namespace espalier::text {

struct TokenizerConfig {
    struct Added {
        std::int64_t id;
        std::string content;
        bool special;
    };
    std::optional<std::string> bos_token;
    std::optional<std::string> eos_token;
    std::optional<bool> add_bos_token;
    std::vector<std::string> special_tokens;  // named as special in any field
    std::vector<Added> added_tokens;          // added_tokens_decoder, ascending ids
    std::string chat_template;
};

// Without a text everything is absent. `name` is the file's name for error messages.
Expected<TokenizerConfig> parse_tokenizer_config(std::optional<std::string_view> json_text,
                                                 std::string_view name);

// The same from a GGUF file's metadata: its marked tokens, whether it begins with one, its
// template.
Expected<TokenizerConfig> gguf_tokenizer_config(const GgufHeader& header, std::string_view name);

// The directory's chat_template.jinja, which goes before the template of tokenizer_config.json;
// nothing where there is no such file.
Expected<std::optional<std::string>> read_chat_template_file(
    const std::filesystem::path& directory);

}  // namespace espalier::text
