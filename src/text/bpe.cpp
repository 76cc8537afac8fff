// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>

#include "base/check.hpp"

namespace espalier::text {
namespace {

// Up to here shifting a small array beats a heap: the crossing lies near 100 bytes on random
// letters.
constexpr std::size_t kShortWordBytes = 64;

std::uint64_t pair_of(TokenId left, TokenId right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::array<TokenId, 256>& byte_ids, std::size_t merges)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(merges * 2 + 2)) {}

std::size_t Bpe::slot_of(std::uint64_t pair) const {
    const std::uint64_t hash = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15u;
    std::size_t at = (hash >> 32) & (slots_.size() - 1);
    while (slots_[at].pair != pair && slots_[at].pair != kEmpty)
        at = (at + 1) & (slots_.size() - 1);
    return at;
}

bool Bpe::add(const Merge& merge) {
    Slot& slot = slots_[slot_of(pair_of(merge.left, merge.right))];
    if (slot.pair != kEmpty) return false;
    slot = {pair_of(merge.left, merge.right), merge.rank, merge.merged};
    return true;
}

const Bpe::Slot& Bpe::find(TokenId left, TokenId right) const {
    return slots_[slot_of(pair_of(left, right))];
}

void Bpe::encode(std::string_view word, std::vector<TokenId>& out) const {
    if (word.size() <= kShortWordBytes) {
        encode_short(word, out);
    } else {
        encode_long(word, out);
    }
}

void Bpe::encode_short(std::string_view word, std::vector<TokenId>& out) const {
    struct Symbol {
        TokenId id;
        std::uint32_t rank;  // of the pair with the next symbol
        TokenId merged;
    };
    std::array<Symbol, kShortWordBytes> symbols;
    std::size_t count = word.size();
    if (count == 0) return;
    for (std::size_t i = 0; i < count; ++i)
        symbols[i].id = byte_ids_[static_cast<unsigned char>(word[i])];
    const auto rate = [&](std::size_t i) {
        if (i + 1 < count) {
            const Slot& slot = find(symbols[i].id, symbols[i + 1].id);
            symbols[i].rank = slot.rank;
            symbols[i].merged = slot.merged;
        } else {
            symbols[i].rank = kNoRank;
        }
    };
    for (std::size_t i = 0; i < count; ++i) rate(i);
    while (count > 1) {
        std::size_t best = 0;
        for (std::size_t i = 1; i + 1 < count; ++i)
            if (symbols[i].rank < symbols[best].rank) best = i;
        if (symbols[best].rank == kNoRank) break;
        symbols[best].id = symbols[best].merged;
        std::move(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2,
                  symbols.begin() + static_cast<std::ptrdiff_t>(count),
                  symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
        --count;
        rate(best);
        if (best > 0) rate(best - 1);
    }
    for (std::size_t i = 0; i < count; ++i) out.push_back(symbols[i].id);
}

void Bpe::encode_long(std::string_view word, std::vector<TokenId>& out) const {
    CHECK(word.size() < 0x80000000u, "a word of {} bytes, at most {}", word.size(), 0x7fffffffu);
    constexpr std::uint32_t kNone = ~0u;
    struct Symbol {
        TokenId id;
        std::uint32_t rank;  // of the pair with the next symbol; kNoRank also when merged away
        std::uint32_t previous;
        std::uint32_t next;
    };
    const auto length = static_cast<std::uint32_t>(word.size());
    std::vector<Symbol> symbols(length);
    for (std::uint32_t i = 0; i < length; ++i)
        symbols[i] = {byte_ids_[static_cast<unsigned char>(word[i])], kNoRank,
                      i == 0 ? kNone : i - 1, i + 1 == length ? kNone : i + 1};
    // rank · 2³² + position: the smallest is the pair to merge. An entry whose rank is no longer
    // the symbol's is stale and skipped.
    std::vector<std::uint64_t> entries;
    entries.reserve(length);
    const auto rate = [&](std::uint32_t i) {
        const std::uint32_t next = symbols[i].next;
        symbols[i].rank = next == kNone ? kNoRank : find(symbols[i].id, symbols[next].id).rank;
        return symbols[i].rank != kNoRank;
    };
    const auto entry = [&](std::uint32_t i) {
        return static_cast<std::uint64_t>(symbols[i].rank) << 32 | i;
    };
    for (std::uint32_t i = 0; i < length; ++i)
        if (rate(i)) entries.push_back(entry(i));
    // The pairs of the bytes are sorted once; only pairs that merging makes need a heap.
    std::sort(entries.begin(), entries.end());
    std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> made;
    for (std::size_t sorted = 0; sorted < entries.size() || !made.empty();) {
        const bool from_heap =
            sorted == entries.size() || (!made.empty() && made.top() < entries[sorted]);
        const std::uint64_t smallest = from_heap ? made.top() : entries[sorted++];
        if (from_heap) made.pop();
        const auto rank = static_cast<std::uint32_t>(smallest >> 32);
        const auto at = static_cast<std::uint32_t>(smallest);
        Symbol& symbol = symbols[at];
        if (symbol.rank != rank) continue;
        Symbol& right = symbols[symbol.next];
        symbol.id = find(symbol.id, right.id).merged;
        symbol.next = right.next;
        right.rank = kNoRank;
        if (right.next != kNone) symbols[right.next].previous = at;
        if (rate(at)) made.push(entry(at));
        if (symbol.previous != kNone && rate(symbol.previous)) made.push(entry(symbol.previous));
    }
    for (std::uint32_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace espalier::text
