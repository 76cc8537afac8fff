// SPDX-License-Identifier: Apache-2.0
// + − * / // % ** as Python has them for numbers, texts and lists. Integers have 127 bits; what
// needs more is refused.
#pragma once

#include "chat/ast.hpp"
#include "chat/value.hpp"

namespace espalier::chat {

Value apply(Unary::Operator op, const Value& operand);
Value apply(Binary::Operator op, const Value& left, const Value& right, Budget& budget);

}  // namespace espalier::chat
