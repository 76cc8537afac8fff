// SPDX-License-Identifier: Apache-2.0
// The flags that say what an output must be. They carry what was written; grammar::Compiler says
// what is wrong with it.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "grammar/compiler.hpp"
#include "runtime/model_files.hpp"

namespace espalier::cli {

struct GrammarFlags {
    std::string json_schema, regex, grammar;  // the first and the last are files
    std::vector<std::string> choice;

    void add_to(CLI::App& command);
    const char* name() const;  // of the one that was given, for messages
    // None: nothing was asked for. Reads the file that is named.
    Expected<std::optional<grammar::Specification>> specification() const;
    // The same, compiled for a model's vocabulary; null: nothing was asked for.
    Expected<std::shared_ptr<const grammar::CompiledGrammar>> compiled(
        const runtime::ModelFiles& files) const;
};

}  // namespace espalier::cli
