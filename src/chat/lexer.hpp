// SPDX-License-Identifier: Apache-2.0
// A template's source as tokens, by the rules of jinja2's lexer with trim_blocks and lstrip_blocks,
// which is how transformers compiles chat templates.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "chat/value.hpp"

namespace espalier::chat {

struct Token {
    enum class Kind {
        data,  // text between the tags, its white space already cut
        block_begin,
        block_end,
        variable_begin,
        variable_end,
        name,
        string,
        number,
        symbol,  // an operator or a bracket
        end,
    };
    Kind kind = Kind::end;
    int line = 1;
    std::string text = {};   // data, string (unescaped), name, symbol
    Value number = Value();  // of a number

    bool is(Kind other, std::string_view value) const { return kind == other && text == value; }
    bool is_name(std::string_view value) const { return is(Kind::name, value); }
    bool is_symbol(std::string_view value) const { return is(Kind::symbol, value); }
    std::string describe() const;
};

// Throws Failure. The last token is of kind end.
std::vector<Token> tokenize(std::string_view source);

}  // namespace espalier::chat
