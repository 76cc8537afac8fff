// SPDX-License-Identifier: Apache-2.0
// Rules of a grammar that can never end (root ::= "a" root). Its implementation reads xgrammar's
// own objects and is compiled with them (xgrammar/endless_rule.cc).
#pragma once

#include <xgrammar/grammar.h>

#include <optional>
#include <string>

namespace espalier::grammar {

// The name of a rule that the root leads to and that has no text of finite length; none: all have
// one. A text that enters such a rule could only end where its tokens do.
std::optional<std::string> endless_rule(const xgrammar::Grammar& grammar);

}  // namespace espalier::grammar
