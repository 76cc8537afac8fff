// SPDX-License-Identifier: Apache-2.0
// What our types hold of xgrammar's. Included by .cpp files of this folder alone.
#pragma once

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <memory>
#include <vector>

#include "grammar/compiler.hpp"
#include "grammar/mask_cache.hpp"

namespace espalier::grammar {

struct CompiledGrammar::Impl {
    Specification specification;
    Vocabulary vocabulary;
    xgrammar::CompiledGrammar compiled;
    std::size_t bytes = 0;
    std::int64_t work = 0;  // that compiling took
    // Markers that nothing names, in any text: free text of a tag takes every byte, theirs too.
    std::vector<TokenId> forbidden{};    // ascending
    std::shared_ptr<MaskCache> masks{};  // of all grammars of the vocabulary
    std::int64_t serial = 0;             // of this one among them
    std::int32_t longest_token = 0;      // bytes
};

}  // namespace espalier::grammar
