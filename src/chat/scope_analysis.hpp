// SPDX-License-Identifier: Apache-2.0
// jinja2 resolves names when it compiles: a name whose first mention in a scope is an assignment is
// the scope's own, and undefined until then for the scopes within, even where the context has it.
//   {% for m in messages %}{{ tools }}{% endfor %}{% set tools = [] %}   prints nothing
#pragma once

#include "chat/ast.hpp"

namespace espalier::chat {

// Fills in `unset` of the template's scope and of all within.
void analyze_scopes(ScopedBlock& root);

}  // namespace espalier::chat
