// SPDX-License-Identifier: Apache-2.0
// The part of the parser that reads expressions; statements are in parser.cpp.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/ast.hpp"
#include "chat/budget.hpp"
#include "chat/lexer.hpp"

namespace espalier::chat {

class ExpressionParser {
  public:
    ExpressionParser(std::vector<Token> tokens, const Limits& limits)
        : tokens_(std::move(tokens)), limits_(limits) {}

  protected:
    using Kind = Token::Kind;

    const Token& current() const { return tokens_[at_]; }
    const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    const Token& take() {
        const Token& token = tokens_[at_];
        if (token.kind != Kind::end) ++at_;
        return token;
    }
    bool take_symbol(std::string_view symbol) { return take_if(current().is_symbol(symbol)); }
    bool take_name(std::string_view name) { return take_if(current().is_name(name)); }
    bool take_if(bool matches) {
        if (matches) take();
        return matches;
    }
    void expect_symbol(std::string_view symbol);
    std::string expect_name();
    template <typename... Args>
    [[noreturn]] void refuse(ErrorKind kind, int line, fmt::format_string<Args...> format,
                             Args&&... args) const {
        throw Failure{kind, fmt::format(format, std::forward<Args>(args)...), line};
    }
    [[noreturn]] void refuse_current(std::string_view expected) const;

    // One expression, or a tuple of them. `conditional`: may be `a if b else c`.
    ExpressionPtr parse_tuple(bool conditional, bool in_parentheses = false);
    ExpressionPtr parse_expression() { return parse_conditional(); }
    // |name(arguments)|…, from the current `|`, or with `named` from a name.
    ExpressionPtr parse_filters(ExpressionPtr operand, bool named);

    const Limits& limits() const { return limits_; }

  private:
    ExpressionPtr parse_conditional();
    ExpressionPtr parse_or();
    ExpressionPtr parse_and();
    ExpressionPtr parse_logic(std::string_view name, bool is_and,
                              ExpressionPtr (ExpressionParser::*operand)());
    ExpressionPtr parse_not();
    ExpressionPtr parse_comparison();
    ExpressionPtr parse_sum();
    ExpressionPtr parse_concatenation();
    ExpressionPtr parse_product();
    ExpressionPtr parse_power();
    ExpressionPtr parse_unary(bool with_filters);
    ExpressionPtr parse_primary();
    ExpressionPtr parse_list();
    ExpressionPtr parse_dict();
    ExpressionPtr parse_postfix(ExpressionPtr expression);
    ExpressionPtr parse_call(int line, ExpressionPtr callee);
    ExpressionPtr parse_attribute(ExpressionPtr object);
    ExpressionPtr parse_subscript(ExpressionPtr object);
    ExpressionPtr parse_filters_and_tests(ExpressionPtr expression);
    ExpressionPtr parse_test(ExpressionPtr operand);
    Arguments parse_arguments();

    template <typename Node>
    ExpressionPtr make(int line, std::int64_t depth_below, Node node) const;

    std::vector<Token> tokens_;
    Limits limits_;
    std::size_t at_ = 0;
    std::int64_t nesting_ = 0;
};

}  // namespace espalier::chat
