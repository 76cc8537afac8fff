// SPDX-License-Identifier: Apache-2.0
// What our types hold of xgrammar's. Included by .cpp files of this folder alone.
#pragma once

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <vector>

#include "grammar/compiler.hpp"

namespace espalier::grammar {

struct CompiledGrammar::Impl {
    Specification specification;
    Vocabulary vocabulary;
    xgrammar::CompiledGrammar compiled;
    std::size_t bytes = 0;
    // Markers that nothing names, in any text: free text of a tag takes every byte, theirs too.
    std::vector<TokenId> forbidden{};  // ascending
};

}  // namespace espalier::grammar
