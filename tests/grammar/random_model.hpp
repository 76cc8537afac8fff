// SPDX-License-Identifier: Apache-2.0
// A model that knows nothing: it draws among the legal tokens, uniformly for a while, then such
// that texts come to an end.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "grammar/matcher.hpp"

namespace espalier::test {

inline std::vector<std::uint32_t> mask_of(grammar::Matcher& matcher) {
    std::vector<std::uint32_t> words(matcher.grammar().vocabulary().mask_words());
    matcher.fill_mask(words);
    return words;
}

inline bool is_set(const std::vector<std::uint32_t>& words, std::int64_t token) {
    return (words[static_cast<std::size_t>(token / 32)] >> (token % 32) & 1u) != 0;
}

inline std::vector<TokenId> legal_tokens(grammar::Matcher& matcher) {
    const auto words = mask_of(matcher);
    std::vector<TokenId> legal;
    for (TokenId token = 0; token < matcher.grammar().vocabulary().size(); ++token)
        if (is_set(words, token)) legal.push_back(token);
    return legal;
}

// Number of steps that a token brings a JSON text towards its end.
inline int closing(const grammar::Vocabulary& vocabulary, TokenId token) {
    if (vocabulary.is_stop(token)) return 5;
    const std::string_view bytes = vocabulary.bytes(token);
    if (bytes == "}") return 4;
    if (bytes == "]") return 3;
    if (bytes == "\"") return 2;
    return bytes == "0" || bytes == "n" || bytes == "t" ? 1 : 0;
}

struct Drawn {
    std::string text{};
    std::vector<TokenId> tokens{};
    bool finished = false;
    bool stuck = false;  // nothing was legal, or what was is not accepted
    std::string failure{};
};

inline Drawn draw_text(grammar::Matcher matcher, std::uint64_t seed, int free_tokens = 30,
                       int all_tokens = 300) {
    std::mt19937_64 random(seed);
    const grammar::Vocabulary& vocabulary = matcher.grammar().vocabulary();
    Drawn drawn;
    while (static_cast<int>(drawn.tokens.size()) < all_tokens) {
        std::vector<TokenId> legal = legal_tokens(matcher);
        if (legal.empty()) {
            drawn.stuck = true;
            drawn.failure = matcher.failure();
            return drawn;
        }
        const bool ending = static_cast<int>(drawn.tokens.size()) > free_tokens;
        if (ending || random() % 2 == 0) {
            int best = 0;
            for (const TokenId token : legal) best = std::max(best, closing(vocabulary, token));
            // At the end some freedom stays: what closes a text may not be what JSON closes with.
            if (best > 0 && random() % 8 != 0)
                std::erase_if(legal, [&](TokenId t) { return closing(vocabulary, t) < best; });
        }
        const TokenId token = legal[random() % legal.size()];
        if (!matcher.accept(token)) {
            drawn.stuck = true;
            drawn.failure = matcher.failure();
            return drawn;
        }
        drawn.tokens.push_back(token);
        drawn.text += vocabulary.bytes(token);
        if (matcher.finished()) {
            drawn.finished = true;
            return drawn;
        }
    }
    return drawn;
}

}  // namespace espalier::test
