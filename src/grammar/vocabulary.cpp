// SPDX-License-Identifier: Apache-2.0
#include "grammar/vocabulary.hpp"

#include <algorithm>

#include "base/at.hpp"

namespace espalier::grammar {

struct Vocabulary::Impl {
    std::int64_t size = 0;
    std::vector<std::string> tokens;  // [at most size] empty: stop, or never legal as text
    std::vector<TokenId> stop;
    std::vector<TokenId> added;
};

namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 24;

Expected<std::vector<TokenId>> checked_ids(std::span<const TokenId> ids, std::int64_t size,
                                           std::string_view what) {
    for (const TokenId id : ids)
        if (id < 0 || id >= size)
            return fail(ErrorKind::invalid, "{} token {} is not one of the vocabulary's {}", what,
                        id, size);
    std::vector<TokenId> sorted(ids.begin(), ids.end());
    std::ranges::sort(sorted);
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    return sorted;
}

}  // namespace

Expected<Vocabulary> Vocabulary::from_bytes(std::vector<std::string> tokens, std::int64_t size,
                                            std::span<const TokenId> stop,
                                            std::span<const TokenId> added) {
    if (size <= 0 || size > kMaxSize)
        return fail(ErrorKind::invalid, "a vocabulary of {} tokens, not within 1…{}", size,
                    kMaxSize);
    auto impl = std::make_shared<Impl>();
    impl->size = size;
    ESPALIER_ASSIGN_OR_RETURN(impl->stop, checked_ids(stop, size, "stop"));
    ESPALIER_ASSIGN_OR_RETURN(impl->added, checked_ids(added, size, "added"));
    if (impl->stop.empty())
        return fail(ErrorKind::invalid, "a vocabulary without a token that ends a text");
    // A tokenizer may have more ids than the model has logits: those can never be drawn.
    impl->tokens = std::move(tokens);
    if (static_cast<std::int64_t>(impl->tokens.size()) > size)
        impl->tokens.resize(static_cast<std::size_t>(size));
    const auto silence = [&](TokenId id) {
        if (static_cast<std::size_t>(id) < impl->tokens.size()) at(impl->tokens, id).clear();
    };
    std::ranges::for_each(impl->stop, silence);
    std::ranges::for_each(impl->added, silence);
    return Vocabulary(std::move(impl));
}

Expected<Vocabulary> Vocabulary::make(const text::Tokenizer& tokenizer, std::int64_t size,
                                      std::span<const TokenId> stop) {
    std::vector<std::string> tokens;
    std::vector<TokenId> added;
    const std::int64_t known = std::min(tokenizer.vocabulary(), size);
    for (TokenId id = 0; id < known; ++id) {
        tokens.emplace_back(tokenizer.token_bytes(id));
        if (tokenizer.is_added(id)) added.push_back(id);
    }
    return from_bytes(std::move(tokens), size, stop, added);
}

std::int64_t Vocabulary::size() const { return impl_->size; }
std::span<const TokenId> Vocabulary::stop() const { return impl_->stop; }
std::span<const TokenId> Vocabulary::added() const { return impl_->added; }

bool Vocabulary::is_stop(TokenId token) const {
    return std::ranges::binary_search(impl_->stop, token);
}

std::string_view Vocabulary::bytes(TokenId token) const {
    if (token < 0 || static_cast<std::size_t>(token) >= impl_->tokens.size()) return {};
    return at(impl_->tokens, token);
}

}  // namespace espalier::grammar
