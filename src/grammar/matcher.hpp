// SPDX-License-Identifier: Apache-2.0
// Where a text stands in its grammar. A matcher follows tokens, goes back over them, and says which
// may come next. Its state is a function of the accepted tokens alone: asking for masks or forced
// texts leaves no trace, and accept + rollback is as if neither had been.
//
// One thread at a time; matchers of one grammar on several threads are fine. For a draft tree, walk
// it depth first with accept and rollback: a fork copies the history of the whole text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/limits.hpp"
#include "grammar/compiler.hpp"

namespace espalier::grammar {

// remembered: a mask that was filled at an equal place before is used again (mask_cache.hpp).
// filled_anew: none is, which is what tests compare with.
enum class Masks : std::uint8_t { remembered, filled_anew };

class Matcher {
  public:
    explicit Matcher(std::shared_ptr<const CompiledGrammar> grammar,
                     Masks masks = Masks::remembered);
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) noexcept;
    ~Matcher();

    // False: the token is not legal here, and nothing has changed. Any id may be asked. A stop
    // token is accepted where may_end(), and then the matcher is finished.
    [[nodiscard]] bool accept(TokenId token);
    // Takes back the last tokens, a stop token included; at most accepted().
    void rollback(std::int64_t tokens);
    std::int64_t accepted() const;

    // words: vocabulary().mask_words(). Bits beyond the vocabulary are 0. All 0 once finished or
    // failed. Stop tokens are set exactly where may_end().
    void fill_mask(std::span<std::uint32_t> words);
    bool may_end() const;   // the text so far is whole; never once finished
    bool finished() const;  // the last accepted token is a stop token

    // Beginning of every continuation, as far as it is easily seen; empty where it may end. The
    // text to tokenise for drafts: nothing but speed may rest on it.
    std::string forced_text();

    Matcher fork() const;
    const CompiledGrammar& grammar() const;

    // Empty, or why this matcher can go on no longer (an error inside the grammar library): from
    // then on accept() is false and masks are 0, so that its request ends with an error alone.
    std::string_view failure() const;

  private:
    struct Impl;
    explicit Matcher(std::unique_ptr<Impl> impl);
    std::unique_ptr<Impl> impl_;
};

}  // namespace espalier::grammar
