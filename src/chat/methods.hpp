// SPDX-License-Identifier: Apache-2.0
// The methods of Python's str and dict that templates call.
#pragma once

#include <string_view>

#include "chat/call_arguments.hpp"
#include "chat/value.hpp"

namespace espalier::chat {

// True if Python's type has a method of that name, supported here or not: jinja2 finds it before a
// key of that name.
bool is_method(const Value& object, std::string_view name);
Value call_method(const Value& object, std::string_view name, const CallArguments& arguments,
                  Budget& budget);

}  // namespace espalier::chat
