// SPDX-License-Identifier: Apache-2.0
// What our types hold of xgrammar's. Included by .cpp files of this folder alone.
#pragma once

#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include "grammar/compiler.hpp"

namespace espalier::grammar {

struct CompiledGrammar::Impl {
    Specification specification;
    Vocabulary vocabulary;
    xgrammar::CompiledGrammar compiled;
    std::size_t bytes = 0;
};

}  // namespace espalier::grammar
