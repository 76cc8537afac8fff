// SPDX-License-Identifier: Apache-2.0
// Finds added tokens ("<|EOT|>", "<think>") in text: leftmost, and of those the longest, by one
// trie.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace espalier::text {

class AddedTokenTrie {
  public:
    AddedTokenTrie();

    bool empty() const { return nodes_.size() == 1; }
    // content is not empty.
    void add(std::string_view content, TokenId id);

    struct Match {
        std::size_t begin;
        std::size_t end;
        TokenId id;
    };
    std::optional<Match> find(std::string_view text, std::size_t from) const;

  private:
    struct Node {
        TokenId id = -1;  // of the token that ends here
        std::int32_t first_child = -1;
        std::int32_t next_sibling = -1;
        char byte = 0;
    };
    std::int32_t child(std::int32_t node, char byte) const;

    std::vector<Node> nodes_;
    std::array<std::int32_t, 256> roots_;  // the node of each first byte, −1 for none
};

}  // namespace espalier::text
