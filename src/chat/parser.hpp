// SPDX-License-Identifier: Apache-2.0
// Tokens to a tree, by jinja2's grammar and precedence. What jinja2 has beyond the tree's kinds is
// refused by name and line.
#pragma once

#include <string_view>

#include "chat/ast.hpp"
#include "chat/limits.hpp"

namespace espalier::chat {

// source: valid UTF-8. Throws Failure.
ScopedBlock parse(std::string_view source, const Limits& limits);

}  // namespace espalier::chat
