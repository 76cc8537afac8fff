// SPDX-License-Identifier: Apache-2.0
// The drafter of what a grammar forces: the text that every continuation begins with, tokenised
// after the end of the committed text, as a chain. An end of reasoning that is due goes first. A
// tokenisation is a guess (the model may cut the same text elsewhere, and what follows may join its
// last token); the walk decides. Requests without a grammar get nothing from it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "speculate/drafter.hpp"
#include "text/tokenizer.hpp"

namespace espalier::engine {

class GrammarDrafter final : public speculate::Drafter {
  public:
    static constexpr std::string_view kName = "grammar";

    // Borrowed; outlives the drafter.
    explicit GrammarDrafter(const text::Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    std::string_view name() const override { return kName; }
    speculate::DrafterNeeds needs() const override { return {}; }
    void begin(RequestSlot request, std::span<const TokenId> prompt,
               std::int64_t max_tokens) override;
    void end(RequestSlot) override {}
    Expected<void> extend(std::span<const speculate::Extension>) override { return {}; }
    void commit(std::span<const speculate::Commitment> commitments) override;
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override;

  private:
    // The last tokens of a text: what the forced text's first token may depend on. Words of the
    // tokenizers that we know rarely reach back further.
    static constexpr std::size_t kTail = 4;
    struct Tail {
        std::array<TokenId, kTail> tokens{};
        std::size_t count = 0;
        void push(TokenId token);
    };

    std::vector<TokenId> tokens_after(std::span<const TokenId> tail, std::string_view text) const;

    const text::Tokenizer& tokenizer_;
    IndexedVector<RequestSlot, Tail> tails_;
};

}  // namespace espalier::engine
