// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar_drafter.hpp"

#include <algorithm>

#include "accept/constraint.hpp"

namespace espalier::engine {
namespace {

// More text than any tree can hold of it is not tokenised: a token of 129k vocabularies has four
// bytes on average, hardly one has 64.
constexpr std::size_t kMaxText = 64 * static_cast<std::size_t>(kMaxNodes);

}  // namespace

void GrammarDrafter::Tail::push(TokenId token) {
    if (count == kTail)
        std::shift_left(tokens.begin(), tokens.end(), 1);
    else
        ++count;
    tokens[count - 1] = token;
}

void GrammarDrafter::begin(RequestSlot request, std::span<const TokenId> prompt, std::int64_t) {
    Tail& tail = tails_.grown_to(request) = {};
    for (const TokenId token : prompt.last(std::min(prompt.size(), kTail))) tail.push(token);
}

void GrammarDrafter::commit(std::span<const speculate::Commitment> commitments) {
    for (const speculate::Commitment& one : commitments)
        for (const TokenId token : one.tokens.last(std::min(one.tokens.size(), kTail)))
            tails_[one.request].push(token);
}

// Tokens as the tokenizer cuts the tail and the text together, if it cuts the tail as it stands;
// otherwise as it cuts the text alone.
std::vector<TokenId> GrammarDrafter::tokens_after(std::span<const TokenId> tail,
                                                  std::string_view text) const {
    std::string whole;
    for (const TokenId token : tail) whole += tokenizer_.token_bytes(token);
    whole += text;
    if (auto joined = tokenizer_.encode(whole);
        joined && joined->size() > tail.size() &&
        std::equal(tail.begin(), tail.end(), joined->begin())) {
        joined->erase(joined->begin(), joined->begin() + std::ssize(tail));
        return *joined;
    }
    return tokenizer_.encode(text).value_or(std::vector<TokenId>{});
}

Expected<void> GrammarDrafter::propose(std::span<const speculate::DraftCall> calls) {
    for (const speculate::DraftCall& call : calls) {
        if (call.constraint == nullptr) continue;
        const accept::Constraint::Forced forced = call.constraint->forced();
        Tail tail = tails_[call.request];
        std::int32_t node = 0;
        const auto grow = [&](TokenId token) {
            const speculate::Tree& tree = call.proposal->tree;
            if (tree.depth(node) >= call.shape.depth || tree.size() >= call.shape.nodes) return;
            node = call.proposal->add(node, token, 1.0f);
        };
        if (forced.token) {
            grow(*forced.token);
            tail.push(*forced.token);
        }
        if (forced.text.empty()) continue;
        const std::string_view text = std::string_view(forced.text).substr(0, kMaxText);
        for (const TokenId token : tokens_after(std::span(tail.tokens).first(tail.count), text))
            grow(token);
    }
    return {};
}

}  // namespace espalier::engine
