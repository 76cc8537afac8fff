// SPDX-License-Identifier: Apache-2.0
// Values as text: Python's str() and json.dumps(), to the byte.
#pragma once

#include <string>

#include "chat/budget.hpp"
#include "chat/text.hpp"
#include "chat/value.hpp"

namespace espalier::chat {

std::string print_integer(Integer value);
std::string print_real(double value);  // Python's repr

// str(value). Inside lists and dicts texts are quoted as repr does; there, characters outside ASCII
// are refused, since which of them Python escapes needs tables.
TextPtr print(const Value& value, Budget& budget);

struct JsonStyle {
    bool ensure_ascii = false;
    bool sort_keys = false;
    bool indented = false;
    std::string indent = {};
    Text item_separator{", "};
    Text key_separator{": "};
};
Text print_json(const Value& value, const JsonStyle& style, Budget& budget);

}  // namespace espalier::chat
