// SPDX-License-Identifier: Apache-2.0
// One compile: xgrammar's tokenizer tables for a vocabulary, and a grammar over them.
#pragma once

#include <chrono>
#include <memory>

#include "base/error.hpp"
#include "grammar/compiler.hpp"
#include "grammar/prepare.hpp"

namespace espalier::grammar {

class CompileOne {
  public:
    explicit CompileOne(Vocabulary vocabulary);
    ~CompileOne();

    // limit: what the deadline came from, for the error. Thread-safe; throws nothing.
    Expected<std::shared_ptr<const CompiledGrammar>> operator()(
        const Specification& specification, const Prepared& prepared,
        std::chrono::steady_clock::time_point deadline, std::chrono::milliseconds limit) const;
    const Vocabulary& vocabulary() const;

  private:
    struct Impl;
    std::unique_ptr<const Impl> impl_;
};

}  // namespace espalier::grammar
