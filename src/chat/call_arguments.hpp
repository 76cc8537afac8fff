// SPDX-License-Identifier: Apache-2.0
// The evaluated arguments of a filter, a method or a function, bound to parameters by place or
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.hpp"

namespace espalier::chat {

struct CallArguments {
    std::vector<Value> positional = {};
    std::vector<std::pair<std::string, Value>> named = {};
};

// One pointer per parameter, null where nothing was given. `what` is the callee in messages. More
// arguments than parameters, an unknown name, or fewer than `required` are failures.
std::vector<const Value*> bind(const CallArguments& arguments, std::string_view what,
                               std::initializer_list<std::string_view> parameters,
                               std::size_t required);

// The argument as that type, or a failure that names callee and parameter.
const Text& text_argument(const Value& value, std::string_view what);
std::int64_t integer_argument(const Value& value, std::string_view what);

}  // namespace espalier::chat
