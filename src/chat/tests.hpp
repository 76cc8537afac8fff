// SPDX-License-Identifier: Apache-2.0
// The tests of templates: `value is name(arguments)`.
#pragma once

#include <string_view>
#include <vector>

#include "chat/value.hpp"

namespace espalier::chat {

bool is_test(std::string_view name);
bool call_test(std::string_view name, const Value& value, const std::vector<Value>& arguments,
               Budget& budget);

}  // namespace espalier::chat
