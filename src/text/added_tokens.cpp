// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.hpp"

#include "base/check.hpp"

namespace espalier::text {

AddedTokenTrie::AddedTokenTrie() : nodes_(1) { roots_.fill(-1); }

std::int32_t AddedTokenTrie::child(std::int32_t node, char byte) const {
    if (node == 0) return roots_[static_cast<unsigned char>(byte)];
    std::int32_t at = nodes_[static_cast<std::size_t>(node)].first_child;
    while (at >= 0 && nodes_[static_cast<std::size_t>(at)].byte != byte)
        at = nodes_[static_cast<std::size_t>(at)].next_sibling;
    return at;
}

void AddedTokenTrie::add(std::string_view content, TokenId id) {
    CHECK(!content.empty(), "added token {} has no content", id);
    std::int32_t node = 0;
    for (const char byte : content) {
        std::int32_t next = child(node, byte);
        if (next < 0) {
            next = static_cast<std::int32_t>(nodes_.size());
            Node& parent = nodes_[static_cast<std::size_t>(node)];
            Node fresh;
            fresh.byte = byte;
            fresh.next_sibling = parent.first_child;
            parent.first_child = next;
            if (node == 0) roots_[static_cast<unsigned char>(byte)] = next;
            nodes_.push_back(fresh);
        }
        node = next;
    }
    nodes_[static_cast<std::size_t>(node)].id = id;
}

std::optional<AddedTokenTrie::Match> AddedTokenTrie::find(std::string_view text,
                                                          std::size_t from) const {
    for (std::size_t begin = from; begin < text.size(); ++begin) {
        std::int32_t node = roots_[static_cast<unsigned char>(text[begin])];
        std::optional<Match> longest;
        for (std::size_t at = begin + 1; node >= 0; ++at) {
            if (const TokenId id = nodes_[static_cast<std::size_t>(node)].id; id >= 0)
                longest = {begin, at, id};
            if (at == text.size()) break;
            node = child(node, text[at]);
        }
        if (longest) return longest;
    }
    return std::nullopt;
}

}  // namespace espalier::text
