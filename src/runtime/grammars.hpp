// SPDX-License-Identifier: Apache-2.0
// The compiler of grammars for a model: its logits' vocabulary, texts ended by the checkpoint's eos
// tokens. What a replay compiles again has the same (replay/replayer.hpp).
#pragma once

#include <memory>

#include "base/error.hpp"
#include "grammar/compiler.hpp"
#include "runtime/model_files.hpp"

namespace espalier::runtime {

Expected<std::unique_ptr<grammar::Compiler>> make_grammar_compiler(
    const ModelFiles& files, const grammar::CompilerLimits& limits = {});

}  // namespace espalier::runtime
