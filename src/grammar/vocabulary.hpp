// SPDX-License-Identifier: Apache-2.0
// The tokens of a model as a grammar sees them: the bytes of each id, which ids end a text, how
// many ids the logits have. Copies share one table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/limits.hpp"
#include "text/tokenizer.hpp"

namespace espalier::grammar {

// Words of a mask: bit t % 32 (from the lowest) of word t / 32 is token t's, as in
// ops::SamplingBatch::allowed.
constexpr std::size_t mask_words(std::int64_t vocabulary) {
    return static_cast<std::size_t>((vocabulary + 31) / 32);
}

class Vocabulary {
  public:
    // size: of the model's logits; ids that the tokenizer does not have (padding) are never legal.
    // stop: the ids that end a text, legal exactly where the grammar may end.
    // Added tokens (markers of chats and tools) stand for no text: they are legal only where a
    // structural tag names them by id.
    static Expected<Vocabulary> make(const text::Tokenizer& tokenizer, std::int64_t size,
                                     std::span<const TokenId> stop);

    // From the bytes of each id. An empty token stands for nothing and is never legal; `added`: ids
    // whose bytes stand for no text, as above.
    static Expected<Vocabulary> from_bytes(std::vector<std::string> tokens, std::int64_t size,
                                           std::span<const TokenId> stop,
                                           std::span<const TokenId> added = {});

    std::int64_t size() const;
    std::size_t mask_words() const { return grammar::mask_words(size()); }
    std::span<const TokenId> stop() const;   // ascending, each once
    std::span<const TokenId> added() const;  // likewise
    bool is_stop(TokenId token) const;
    // Bytes that the token adds to a text under a grammar: empty for stop, added and unknown ids.
    std::string_view bytes(TokenId token) const;

  private:
    struct Impl;
    explicit Vocabulary(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
    std::shared_ptr<const Impl> impl_;
};

}  // namespace espalier::grammar
