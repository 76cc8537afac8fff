// SPDX-License-Identifier: Apache-2.0
// Tokens and merges of byte-level BPE as a file spells them, whatever the file: tokenizer.json or
// GGUF's metadata.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.hpp"
#include "text/bpe.hpp"

namespace espalier::text {

struct BpeTokens {
    std::vector<std::string> bytes;  // [id]
    std::vector<bool> taken;         // [id]
    std::vector<bool> reachable;     // [id]: spelled in byte letters, so BPE can arrive at it
    std::unordered_map<std::string_view, TokenId>
        ids;  // as spelled in the file, whose text it views
};

// A file's words for messages.
struct BpeFields {
    std::string_view file;
    std::string_view tokens;  // "model.vocab"
    std::string_view merges;  // "model.merges"
};

Expected<void> place_token(std::int64_t id, std::string bytes, std::string_view name,
                           std::string_view field, BpeTokens& tokens);
Expected<void> check_token_length(std::string_view token, std::string_view name,
                                  std::string_view field);

struct MergeParts {
    std::string_view left;
    std::string_view right;
};
// "Ġ t".
Expected<MergeParts> parts_of_text(std::string_view text, const BpeFields& fields,
                                   std::size_t index);
// Every byte has a token; rank is the index of a merge.
Expected<Bpe> make_bpe(const BpeTokens& tokens, std::size_t merges, const BpeFields& fields,
                       const std::function<Expected<MergeParts>(std::size_t)>& parts_at);

}  // namespace espalier::text
