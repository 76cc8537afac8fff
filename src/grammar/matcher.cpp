// SPDX-License-Identifier: Apache-2.0
#include "grammar/matcher.hpp"

#include <algorithm>
#include <exception>

#include "base/at.hpp"
#include "base/check.hpp"
#include "grammar/xgrammar_objects.hpp"

// In its grammar_matcher.cc (xgrammar/state_key.inc).
namespace xgrammar {
bool StateKey(const GrammarMatcher& matcher, std::int32_t longest, std::vector<std::int32_t>* key);
}

namespace espalier::grammar {

struct Matcher::Impl {
    std::shared_ptr<const CompiledGrammar> grammar;
    xgrammar::GrammarMatcher matcher;
    std::int64_t accepted = 0;
    std::string failure{};
    Masks masks = Masks::remembered;
    MaskCache::Key key{};  // of fill_mask(); its memory is kept

    void fill(std::span<std::uint32_t> words);
    // Runs `call` unless something failed before; what it throws is this matcher's failure.
    template <typename Call>
    void guarded(Call&& call) {
        if (!failure.empty()) return;
        try {
            call();
        } catch (const std::exception& error) {
            failure = error.what();
            if (failure.empty()) failure = "an error without a message";
        }
    }
};

Matcher::Matcher(std::shared_ptr<const CompiledGrammar> grammar, Masks masks) {
    const CompiledGrammar::Impl& compiled = grammar->impl();
    impl_ = std::make_unique<Impl>(
        Impl{std::move(grammar), xgrammar::GrammarMatcher(compiled.compiled)});
    impl_->masks = masks;
}
Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

bool Matcher::accept(TokenId token) {
    bool taken = false;
    impl_->guarded([&] {
        if (impl_->matcher.IsTerminated()) return;
        if (std::ranges::binary_search(impl_->grammar->impl().forbidden, token)) return;
        taken = impl_->matcher.AcceptToken(token);
    });
    if (taken) ++impl_->accepted;
    return taken;
}

void Matcher::rollback(std::int64_t tokens) {
    CHECK(tokens >= 0 && tokens <= impl_->accepted, "rollback of {} tokens of {}", tokens,
          impl_->accepted);
    impl_->guarded([&] { impl_->matcher.Rollback(static_cast<int>(tokens)); });
    impl_->accepted -= tokens;
}

std::int64_t Matcher::accepted() const { return impl_->accepted; }

void Matcher::Impl::fill(std::span<std::uint32_t> words) {
    std::int64_t shape = static_cast<std::int64_t>(words.size());
    DLTensor tensor{};
    tensor.data = words.data();
    tensor.device = DLDevice{kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = DLDataType{kDLInt, 32, 1};
    tensor.shape = &shape;
    matcher.FillNextTokenBitmask(&tensor);
    // xgrammar sets what lies behind the last token.
    if (const std::int64_t size = grammar->vocabulary().size(); size % 32 != 0)
        words.back() &= (1u << (size % 32)) - 1;
    for (const TokenId token : grammar->impl().forbidden)
        at(words, token / 32) &= ~(1u << (token % 32));
}

void Matcher::fill_mask(std::span<std::uint32_t> words) {
    const std::int64_t size = impl_->grammar->vocabulary().size();
    CHECK(words.size() == mask_words(size), "a mask of {} words for {} tokens", words.size(), size);
    if (finished()) {
        std::ranges::fill(words, 0u);
        return;
    }
    impl_->guarded([&] {
        const CompiledGrammar::Impl& grammar = impl_->grammar->impl();
        MaskCache::Key& key = impl_->key;
        const bool keyed = impl_->masks == Masks::remembered &&
                           xgrammar::StateKey(impl_->matcher, grammar.longest_token, &key);
        if (keyed) {
            key.push_back(static_cast<std::int32_t>(grammar.serial));
            key.push_back(static_cast<std::int32_t>(grammar.serial >> 32));
            if (const MaskCache::Mask known = grammar.masks->find(key)) {
                std::ranges::copy(*known, words.begin());
                return;
            }
        }
        impl_->fill(words);
        if (keyed) grammar.masks->add(key, words);
    });
    if (!impl_->failure.empty()) std::ranges::fill(words, 0u);
}

bool Matcher::may_end() const { return impl_->matcher.IsCompleted() && !finished(); }
bool Matcher::finished() const { return impl_->matcher.IsTerminated(); }

std::string Matcher::forced_text() {
    std::string text;
    if (finished()) return text;
    impl_->guarded([&] { text = impl_->matcher.FindJumpForwardString(); });
    return text;
}

Matcher Matcher::fork() const {
    return Matcher(std::make_unique<Impl>(Impl{impl_->grammar, impl_->matcher.Fork(),
                                               impl_->accepted, impl_->failure, impl_->masks}));
}

const CompiledGrammar& Matcher::grammar() const { return *impl_->grammar; }
std::string_view Matcher::failure() const { return impl_->failure; }

}  // namespace espalier::grammar
