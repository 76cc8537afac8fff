// SPDX-License-Identifier: Apache-2.0
// Hostile attention problems. A Row is what a request means: queries, keys and a mask, before any
// page or dtype. batch.hpp lays rows into pages; the same row in another batch must give the same
// bits.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.hpp"
#include "mla/contract.hpp"

namespace espalier::conformance {

inline constexpr int kHeadCounts[] = {1, 3, 12, 16, 32, 40, 64, 128};
inline constexpr int kPageTokens[] = {16, 32, 64, 128};
inline constexpr int kLongestRow = 5000;

struct Row {
    mla::MaskKind mask = mla::MaskKind::causal;
    int tokens = 0;
    int keys = 0;
    int tail = 0;                      // tree rows
    std::int64_t global_keys = 0;      // context parallel
    std::vector<float> query;          // [tokens, heads, columns]
    std::vector<float> key;            // [keys, 576]: a batch of narrower keys stores some of them
    std::vector<std::uint64_t> words;  // [tokens]
    std::vector<std::uint8_t> dense;   // [tokens, keys]
    bool malformed = false;            // dense: use mask_offset as it is
    std::int64_t mask_offset = 0;
};

// Queries of variance 1, nearly none (all keys weigh the same), or 16 (one key wins).
enum class Spread { normal, flat, peaked };

Row make_row(Random& random, mla::MaskKind mask, int heads, int tokens, int keys,
             Spread spread = Spread::normal, std::int64_t columns = mla::kKey);

// Multiplies each key by a power of two between 2^-10 and 2^4, so that the token scales of an
// fp8_token cache lie far apart; queries shrink by 2^4 to keep scores where they were.
void spread_token_scales(Random& random, Row& row);

enum class Shape { chain, star, binary, random, disconnected, deep_tail };
inline constexpr Shape kShapes[] = {Shape::chain,  Shape::star,         Shape::binary,
                                    Shape::random, Shape::disconnected, Shape::deep_tail};

// Ancestor-or-self words over the last `tail` slots; the row's tokens are the tail's last ones. A
// disconnected row has any words at all, tokens that do not see themselves and tokens that see
// nothing of the tail included. A deep tail is longer than the row's own tokens.
void grow_tree(Random& random, Row& row, Shape shape);
// Words from parents (parent[node] < node; -1: none) of a tree of `tail` nodes.
std::vector<std::uint64_t> ancestor_words(const std::vector<int>& parent);

// A dense mask in which each key is visible with this probability, in old history as well.
void punch_holes(Random& random, Row& row, double visible);

// A length up to `most` that likes to lie at, just below or just above a multiple of a page, tile
// or split.
int hostile_length(Random& random, int most);

struct Hostility {
    Spread spread = Spread::normal;
    int longest = 700;       // keys
    bool malformed = false;  // some dense rows have offsets that lead nowhere
    bool scales = false;     // token scales far apart
};

// Ragged rows with every mask; about `budget` (token, head, key) scores in all. The first three are
// always there: no tokens, no keys, fewer keys than tokens.
std::vector<Row> hostile_rows(Random& random, int heads, std::int64_t budget,
                              const Hostility& hostility = {});

// Offsets that a dense row may carry by mistake: negative, past the mask, at both ends of 64 bits.
std::int64_t malformed_offset(Random& random);

// True if token i of the row sees its key c, outside context parallel and malformed masks.
bool sees(const Row& row, int i, int c);

// The causal row of one token over exactly the keys that token i of `row` sees, in order.
Row compacted(const Row& row, int heads, int i, std::int64_t columns = mla::kKey);

// Tokens [first, first + count) of a causal row as a row of their own, over the keys up to its
// last.
Row chunk_of(const Row& whole, int heads, int first, int count, std::int64_t columns = mla::kKey);

}  // namespace espalier::conformance
