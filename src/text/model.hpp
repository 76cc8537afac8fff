// SPDX-License-Identifier: Apache-2.0
// What a loaded tokenizer consists of. The loaders (tokenizer_json_loader, tiktoken_loader) fill it
// in once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/at.hpp"
#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/pre_tokenizer.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_config.hpp"
#include "text/vocabulary.hpp"

namespace espalier::text {

struct AddedToken {
    TokenId id = 0;
    std::string content;
    bool special = true;
    bool normalized = false;  // looked for after the others, in what they left
};

// Kimi's published encode() cuts text before anything else sees it, counted in code points, for
// tiktoken's sake.
struct PublishedCuts {
    std::size_t text_code_points = 400'000;
    std::size_t run_code_points = 25'000;  // of white space, or of anything else
};

struct Tokenizer::Model {
    Model(Vocabulary tokens, Bpe merges)
        : vocabulary(std::move(tokens)),
          bpe(std::move(merges)),
          special(static_cast<std::size_t>(vocabulary.size())),
          added(static_cast<std::size_t>(vocabulary.size())) {}

    Vocabulary vocabulary;
    Bpe bpe;
    PreTokenizer pre_tokenizer;
    std::optional<PublishedCuts> cuts;
    AddedTokenTrie first_trie;   // searched over the whole text
    AddedTokenTrie second_trie;  // searched between the matches of the first
    std::unordered_map<std::string, TokenId> added_ids;
    std::vector<bool> special;  // [vocabulary]
    std::vector<bool> added;    // [vocabulary]
    std::optional<TokenId> bos;
    std::optional<TokenId> eos;
    std::string chat_template;

    void add(const AddedToken& token) {
        (token.normalized ? second_trie : first_trie).add(token.content, token.id);
        added_ids.emplace(token.content, token.id);
        at(special, token.id) = token.special;
        at(added, token.id) = true;
    }

    // Once vocabulary and merges are complete: which words need no merging. With `any_token` every
    // token that a word equals is taken as it is (tiktoken, ignore_merges), otherwise only those
    // that merging arrives at.
    void index_tokens(const std::vector<bool>& reachable, bool any_token);
};

// Shared by both loaders: bos, eos and the template; the named tokens must exist.
Expected<void> apply_config(const TokenizerConfig& config, std::string_view name,
                            Tokenizer::Model& model);

}  // namespace espalier::text
