// SPDX-License-Identifier: Apache-2.0
// From a specification to what xgrammar is handed: everything that can be refused without it is
// refused here, in time that the input's limits bound (docs/grammars.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/limits.hpp"
#include "grammar/schema.hpp"
#include "grammar/specification.hpp"

namespace espalier::grammar {

struct TextLimits {
    static constexpr std::size_t kEbnfBytes = 64 << 10;
    static constexpr int kEbnfDepth = 32;
    static constexpr std::int64_t kEbnfRepeat = 256;
    static constexpr std::int64_t kEbnfWritten = 1 << 20;
    static constexpr std::size_t kChoices = 4096;
    static constexpr std::size_t kChoiceBytes = 64 << 10;  // of all together
};

struct Prepared {
    enum class Form { schema, ebnf, structural_tag } form = Form::ebnf;
    std::string text{};
    std::vector<TokenId> named_tokens{};  // of a structural tag
};

Expected<Prepared> prepare(const Specification& specification);

// Parts of it. The EBNF is checked, not rewritten.
Expected<void> check_ebnf(std::string_view text);
Expected<Prepared> prepare_structural_tag(const Specification& specification);

}  // namespace espalier::grammar
