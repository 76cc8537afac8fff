// SPDX-License-Identifier: Apache-2.0
// value.name, value[index] and value[begin:end:step], as jinja2's sandbox resolves them. There are
// no attributes but the data's own: methods exist only where they are called (methods.hpp).
#pragma once

#include <optional>
#include <string_view>

#include "chat/value.hpp"

namespace espalier::chat {

Value get_attribute(const Value& object, std::string_view name, Budget& budget);
Value get_item(const Value& object, const Value& index, Budget& budget);
// None and absent bounds are the ends'.
Value get_slice(const Value& object, const Value& begin, const Value& end, const Value& step,
                Budget& budget);
// selectattr('a.b.0'): an attribute of an attribute, each asked for as an item first.
Value get_path(const Value& object, const Value& path, Budget& budget);

// Using an undefined value for anything but printing and testing is a failure with its reason.
void require_defined(const Value& value);

}  // namespace espalier::chat
