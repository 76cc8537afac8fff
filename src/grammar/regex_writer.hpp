// SPDX-License-Identifier: Apache-2.0
// Writes a regular expression as EBNF: what stands behind "root ::= ", and further rules on lines
// of their own. Where a text could be read in several ways, an automaton of the same texts is
// written, a rule for each state.
#pragma once

#include <string>

#include "base/error.hpp"
#include "grammar/regex_automaton.hpp"
#include "grammar/regex_tree.hpp"

namespace espalier::grammar {

class RegexWriter {
  public:
    Expected<std::string> run(const RegexNode& node);

  private:
    Expected<std::string> whole(const RegexNode& node);
    Expected<std::string> written(const RegexNode& node);
    Expected<std::string> choice(const RegexNode& node);
    Expected<std::string> repetition(const RegexNode& node);
    // The name of its first rule.
    std::string automaton(const StateGraph& graph);

    std::string rules_;
    int automata_ = 0;
};

}  // namespace espalier::grammar
