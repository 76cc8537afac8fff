// SPDX-License-Identifier: Apache-2.0
// One compile: xgrammar's tokenizer tables for a vocabulary, and a grammar over them.
#pragma once

#include <memory>

#include "base/error.hpp"
#include "grammar/compiler.hpp"
#include "grammar/mask_cache.hpp"
#include "grammar/prepare.hpp"

namespace espalier::grammar {

class CompileOne {
  public:
    CompileOne(Vocabulary vocabulary, const CompilerLimits& limits);
    ~CompileOne();

    // Thread-safe; throws nothing.
    Expected<std::shared_ptr<const CompiledGrammar>> operator()(const Specification& specification,
                                                                const Prepared& prepared) const;
    const Vocabulary& vocabulary() const;
    MaskCounts mask_counts() const;

  private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
};

}  // namespace espalier::grammar
