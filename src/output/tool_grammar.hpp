// SPDX-License-Identifier: Apache-2.0
// The grammar of a model's calls: a structural tag in which markers are the tokens that the model
// knows them by, names are those declared, and arguments hold to their schemas. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "grammar/specification.hpp"
#include "output/formats.hpp"

namespace espalier::output {

struct Function {
    std::string name;
    // A JSON Schema of the arguments, the order of its keys kept; null: any object.
    nlohmann::ordered_json parameters;
    std::optional<bool> strict;  // as the request says it

    // The schema that a grammar holds the arguments to: `parameters`, or any object if `strict` is
    // false.
    nlohmann::ordered_json schema() const;
};

struct CallRules {
    bool required = false;  // at least one call, and nothing else. false: text, perhaps calls
    bool parallel = true;   // false: at most one call
    // Form of a text without calls, where calls are not required; none: anything.
    std::optional<grammar::Specification> text = {};
};

// functions: not empty, those that may be called. An error names a parameter that the form of the
// model's calls cannot hold (pair_grammar.hpp).
Expected<grammar::Specification> call_grammar(const ToolFormat& format,
                                              const std::vector<Function>& functions,
                                              const CallRules& rules,
                                              const text::Tokenizer& tokenizer);

}  // namespace espalier::output
