// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging: of all adjacent pairs, merge the one of lowest rank, leftmost first, until
// none is left.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace espalier::text {

struct Merge {
    TokenId left = 0;
    TokenId right = 0;
    TokenId merged = 0;
    std::uint32_t rank = 0;
};

class Bpe {
  public:
    // byte_ids: the token of each single byte. Pairs must be distinct; see add().
    explicit Bpe(const std::array<TokenId, 256>& byte_ids, std::size_t merges);

    // False when the pair already has a merge.
    [[nodiscard]] bool add(const Merge& merge);

    // Appends the tokens of one word (at most 2³¹ − 1 bytes). O(n²) on a small array for short
    // words, O(n log n) with a heap for long ones.
    void encode(std::string_view word, std::vector<TokenId>& out) const;

  private:
    struct Slot {
        std::uint64_t pair = kEmpty;
        std::uint32_t rank = kNoRank;
        TokenId merged = -1;
    };
    static constexpr std::uint64_t kEmpty = ~0ull;  // no pair: ids are not negative
    static constexpr std::uint32_t kNoRank = ~0u;

    const Slot& find(TokenId left, TokenId right) const;
    std::size_t slot_of(std::uint64_t pair) const;
    void encode_short(std::string_view word, std::vector<TokenId>& out) const;
    void encode_long(std::string_view word, std::vector<TokenId>& out) const;

    std::array<TokenId, 256> byte_ids_;
    std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace espalier::text
