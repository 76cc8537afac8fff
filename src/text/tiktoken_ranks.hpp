// SPDX-License-Identifier: Apache-2.0
// Kimi's tokenizer apart from its file: merging by rank, and how text is cut into words.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/error.hpp"
#include "text/bpe.hpp"
#include "text/model.hpp"
#include "text/vocabulary.hpp"

namespace espalier::text {

// tiktoken merges any two neighbours whose bytes together are a token, lowest rank first: all ways
// to cut a token in two tokens are its merges, with the token's rank, which is its id. vocabulary:
// the first `tokens` ids are indexed.
Expected<Bpe> bpe_of_ranks(const Vocabulary& vocabulary, std::size_t tokens, std::string_view name);

Expected<void> cut_as_kimi(Tokenizer::Model& model, std::string_view name);

}  // namespace espalier::text
