// SPDX-License-Identifier: Apache-2.0
// The words of the paged cache: page ids, forms, and the lengths that decide what may be shared.
// Plain data and arithmetic; page_pool.hpp says which sequence owns which page.
#pragma once

#include <cstdint>

namespace espalier::cache {

using PageId = std::int32_t;  // good for every layer; 32 bits because block tables have them

inline constexpr std::int32_t kPageTokens = 64;
inline constexpr PageId kNullPage = 0;  // fills block tables; never written, never owned

// Way in which a token's attention is computed; it decides the bits of the layers above.
enum class Form : std::uint8_t { absorbed, decompressed };

// Prompts of up to this many tokens are absorbed: too few queries to pay for up-projecting keys.
inline constexpr std::int64_t kAbsorbedPrompt = 256;
// From more than this many on up to 256 tokens at the end are absorbed, not up to a page: a turn of
// fewer tokens than that behind a long known history should not up-project all of it, which costs
// as much as absorbing 170 queries.
inline constexpr std::int64_t kPageTailPrompt = 4096;

// Positions below this use the decompressed form, for a prompt of P tokens: 0 for short prompts,
// otherwise S·⌊(P−1)/S⌋. S is a page, 256 of long prompts; in traces of older versions it is 256 of
// all. No position that may see more than `most_keys` keys is decompressed (0: whatever it sees):
// a model of sparse attention lists a token's keys beyond that, for the absorbed form alone.
constexpr std::int64_t decompressed_below(std::int64_t prompt_tokens,
                                          std::int64_t segment = kPageTokens,
                                          std::int64_t most_keys = 0) {
    if (segment == 0 || prompt_tokens <= kAbsorbedPrompt) return 0;
    if (prompt_tokens > kPageTailPrompt) segment = 256;
    const std::int64_t below = segment * ((prompt_tokens - 1) / segment);
    const std::int64_t whole_pages = most_keys / kPageTokens * kPageTokens;
    return most_keys > 0 && whole_pages < below ? whole_pages : below;
}

constexpr std::int64_t pages_for(std::int64_t slots) {
    return (slots + kPageTokens - 1) / kPageTokens;
}

// The last committed token is the next step's root: its KV is not there yet.
constexpr std::int64_t written_length(std::int64_t committed_len) {
    return committed_len <= 0 ? 0 : committed_len - 1;
}

// Page k may be published when written_len ≥ 64(k+1): how many pages that makes.
constexpr std::int64_t publishable_pages(std::int64_t written_len) {
    return written_len / kPageTokens;
}

// A lookup leaves at least one token to compute, or there would be no logits to go on with.
constexpr std::int64_t matchable_pages(std::int64_t tokens) {
    return tokens <= 0 ? 0 : (tokens - 1) / kPageTokens;
}

// Key of everything that decides the bits of a sequence's pages besides its tokens.
struct SequenceKey {
    std::uint64_t salt = 0;               // tenant, adapter …: other salts never meet
    std::int64_t decompressed_below = 0;  // F, a multiple of 64: no page has two forms
    // A lookup may take an absorbed page where a decompressed one belongs but is not found (pages
    // of generated text are absorbed). What is computed and published keeps its own form.
    bool accept_absorbed = false;

    constexpr Form form_of_page(std::int64_t page_index) const {
        return page_index * kPageTokens < decompressed_below ? Form::decompressed : Form::absorbed;
    }
};

}  // namespace espalier::cache
