// SPDX-License-Identifier: Apache-2.0
// The filters of templates: `value|name(arguments)`. tojson is the one that transformers defines.
#pragma once

#include <string_view>

#include "chat/call_arguments.hpp"
#include "chat/value.hpp"

namespace espalier::chat {

bool is_filter(std::string_view name);
Value call_filter(std::string_view name, const Value& value, const CallArguments& arguments,
                  Budget& budget);

}  // namespace espalier::chat
