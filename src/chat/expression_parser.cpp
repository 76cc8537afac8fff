// SPDX-License-Identifier: Apache-2.0
#include "chat/expression_parser.hpp"

#include <algorithm>
#include <initializer_list>

#include "chat/filters.hpp"
#include "chat/tests.hpp"

namespace espalier::chat {
namespace {

std::int64_t depth_of(const ExpressionPtr& expression) {
    return expression ? expression->depth : 0;
}

std::int64_t depth_of(const std::vector<ExpressionPtr>& expressions) {
    std::int64_t depth = 0;
    for (const ExpressionPtr& expression : expressions)
        depth = std::max(depth, depth_of(expression));
    return depth;
}

std::int64_t depth_of(const Arguments& arguments) {
    std::int64_t depth = depth_of(arguments.positional);
    for (const auto& [name, value] : arguments.named) depth = std::max(depth, depth_of(value));
    return depth;
}

}  // namespace

template <typename Node>
ExpressionPtr ExpressionParser::make(int line, std::int64_t depth_below, Node node) const {
    // A chain such as a + b + c + … is as deep as it is long.
    if (depth_below >= 4 * limits_.nesting)
        refuse(ErrorKind::exhausted, line, "an expression is more than {} operations deep",
               4 * limits_.nesting);
    return std::make_unique<Expression>(
        Expression{.line = line, .depth = depth_below + 1, .node = std::move(node)});
}

void ExpressionParser::refuse_current(std::string_view expected) const {
    refuse(ErrorKind::invalid, current().line, "expected {}, found {}", expected,
           current().describe());
}

void ExpressionParser::expect_symbol(std::string_view symbol) {
    if (!take_symbol(symbol)) refuse_current(fmt::format("'{}'", symbol));
}

std::string ExpressionParser::expect_name() {
    if (current().kind != Kind::name) refuse_current("a name");
    return take().text;
}

ExpressionPtr ExpressionParser::parse_tuple(bool conditional, bool in_parentheses) {
    const int line = current().line;
    const auto ends = [&] {
        return current().kind == Kind::variable_end || current().kind == Kind::block_end ||
               current().is_symbol(")") || current().is_name("recursive");
    };
    std::vector<ExpressionPtr> items;
    bool is_tuple = false;
    while (!ends()) {
        items.push_back(conditional ? parse_conditional() : parse_or());
        if (!take_symbol(",")) break;
        is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items[0]);
    if (!is_tuple && !in_parentheses) refuse_current("an expression");
    const std::int64_t depth = depth_of(items);
    return make(line, depth, ListLiteral{List::Kind::tuple, std::move(items)});
}

ExpressionPtr ExpressionParser::parse_conditional() {
    int line = current().line;
    ExpressionPtr then = parse_or();
    while (take_name("if")) {
        ExpressionPtr condition = parse_or();
        ExpressionPtr otherwise;
        if (take_name("else")) {
            const DepthGuard guard(nesting_, limits_.nesting, "expressions");
            otherwise = parse_conditional();
        }
        const std::int64_t depth =
            std::max({depth_of(then), depth_of(condition), depth_of(otherwise)});
        then = make(line, depth,
                    Conditional{std::move(condition), std::move(then), std::move(otherwise)});
        line = current().line;
    }
    return then;
}

ExpressionPtr ExpressionParser::parse_or() {
    return parse_logic("or", false, &ExpressionParser::parse_and);
}

ExpressionPtr ExpressionParser::parse_and() {
    return parse_logic("and", true, &ExpressionParser::parse_not);
}

ExpressionPtr ExpressionParser::parse_logic(std::string_view name, bool is_and,
                                            ExpressionPtr (ExpressionParser::*operand)()) {
    const int line = current().line;
    ExpressionPtr left = (this->*operand)();
    while (take_name(name)) {
        ExpressionPtr right = (this->*operand)();
        const std::int64_t depth = std::max(depth_of(left), depth_of(right));
        left = make(line, depth, Logic{is_and, std::move(left), std::move(right)});
    }
    return left;
}

ExpressionPtr ExpressionParser::parse_not() {
    const int line = current().line;
    if (!take_name("not")) return parse_comparison();
    const DepthGuard guard(nesting_, limits_.nesting, "expressions");
    ExpressionPtr operand = parse_not();
    const std::int64_t depth = depth_of(operand);
    return make(line, depth, Unary{Unary::Operator::logical_not, std::move(operand)});
}

ExpressionPtr ExpressionParser::parse_comparison() {
    using Operator = Comparison::Operator;
    static constexpr std::pair<std::string_view, Operator> kSymbols[] = {
        {"==", Operator::equal},      {"!=", Operator::not_equal}, {"<", Operator::less},
        {"<=", Operator::less_equal}, {">", Operator::greater},    {">=", Operator::greater_equal}};
    const auto next_operator = [&]() -> std::optional<Operator> {
        for (const auto& [symbol, op] : kSymbols)
            if (take_symbol(symbol)) return op;
        if (take_name("in")) return Operator::in;
        if (!current().is_name("not") || !following().is_name("in")) return std::nullopt;
        take();
        take();
        return Operator::not_in;
    };
    const int line = current().line;
    ExpressionPtr first = parse_sum();
    std::int64_t depth = depth_of(first);
    Comparison comparison;
    while (const auto op = next_operator()) {
        comparison.rest.emplace_back(*op, parse_sum());
        depth = std::max(depth, depth_of(comparison.rest.back().second));
    }
    if (comparison.rest.empty()) return first;
    comparison.first = std::move(first);
    return make(line, depth, std::move(comparison));
}

ExpressionPtr ExpressionParser::parse_sum() {
    const int line = current().line;
    ExpressionPtr left = parse_concatenation();
    while (current().is_symbol("+") || current().is_symbol("-")) {
        const auto op = take().text == "+" ? Binary::Operator::add : Binary::Operator::subtract;
        ExpressionPtr right = parse_concatenation();
        const std::int64_t depth = std::max(depth_of(left), depth_of(right));
        left = make(line, depth, Binary{op, std::move(left), std::move(right)});
    }
    return left;
}

ExpressionPtr ExpressionParser::parse_concatenation() {
    const int line = current().line;
    std::vector<ExpressionPtr> parts;
    parts.push_back(parse_product());
    while (take_symbol("~")) parts.push_back(parse_product());
    if (parts.size() == 1) return std::move(parts[0]);
    const std::int64_t depth = depth_of(parts);
    return make(line, depth, Concatenation{std::move(parts)});
}

ExpressionPtr ExpressionParser::parse_product() {
    using Operator = Binary::Operator;
    static constexpr std::pair<std::string_view, Operator> kSymbols[] = {
        {"*", Operator::multiply},
        {"/", Operator::divide},
        {"//", Operator::floor_divide},
        {"%", Operator::modulo}};
    const auto next_operator = [&]() -> std::optional<Operator> {
        for (const auto& [symbol, op] : kSymbols)
            if (take_symbol(symbol)) return op;
        return std::nullopt;
    };
    const int line = current().line;
    ExpressionPtr left = parse_power();
    while (const auto op = next_operator()) {
        ExpressionPtr right = parse_power();
        const std::int64_t depth = std::max(depth_of(left), depth_of(right));
        left = make(line, depth, Binary{*op, std::move(left), std::move(right)});
    }
    return left;
}

ExpressionPtr ExpressionParser::parse_power() {
    const int line = current().line;
    ExpressionPtr left = parse_unary(true);
    while (take_symbol("**")) {
        ExpressionPtr right = parse_unary(true);
        const std::int64_t depth = std::max(depth_of(left), depth_of(right));
        left =
            make(line, depth, Binary{Binary::Operator::power, std::move(left), std::move(right)});
    }
    return left;
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filters) {
    const DepthGuard guard(nesting_, limits_.nesting, "expressions");
    const int line = current().line;
    ExpressionPtr expression;
    if (current().is_symbol("-") || current().is_symbol("+")) {
        const auto op = take().text == "-" ? Unary::Operator::minus : Unary::Operator::plus;
        ExpressionPtr operand = parse_unary(false);
        const std::int64_t depth = depth_of(operand);
        expression = make(line, depth, Unary{op, std::move(operand)});
    } else {
        expression = parse_primary();
    }
    expression = parse_postfix(std::move(expression));
    return with_filters ? parse_filters_and_tests(std::move(expression)) : std::move(expression);
}

ExpressionPtr ExpressionParser::parse_primary() {
    const int line = current().line;
    if (current().kind == Kind::name) {
        const std::string name = take().text;
        if (name == "true" || name == "True") return make(line, 0, Constant{Value(true)});
        if (name == "false" || name == "False") return make(line, 0, Constant{Value(false)});
        if (name == "none" || name == "None") return make(line, 0, Constant{Value()});
        return make(line, 0, Name{name});
    }
    if (current().kind == Kind::string) {
        std::string text;
        while (current().kind == Kind::string) text += take().text;
        return make(line, 0, Constant{Value(Text(std::move(text)))});
    }
    if (current().kind == Kind::number) return make(line, 0, Constant{take().number});
    if (take_symbol("(")) {
        ExpressionPtr inner = parse_tuple(true, true);
        expect_symbol(")");
        return inner;
    }
    if (take_symbol("[")) return parse_list();
    if (take_symbol("{")) return parse_dict();
    refuse_current("an expression");
}

ExpressionPtr ExpressionParser::parse_list() {
    const int line = current().line;
    std::vector<ExpressionPtr> items;
    while (!current().is_symbol("]")) {
        items.push_back(parse_expression());
        if (!take_symbol(",")) break;
    }
    expect_symbol("]");
    const std::int64_t depth = depth_of(items);
    return make(line, depth, ListLiteral{List::Kind::list, std::move(items)});
}

ExpressionPtr ExpressionParser::parse_dict() {
    const int line = current().line;
    DictLiteral dict;
    std::int64_t depth = 0;
    while (!current().is_symbol("}")) {
        ExpressionPtr key = parse_expression();
        expect_symbol(":");
        ExpressionPtr value = parse_expression();
        depth = std::max({depth, depth_of(key), depth_of(value)});
        dict.entries.emplace_back(std::move(key), std::move(value));
        if (!take_symbol(",")) break;
    }
    expect_symbol("}");
    return make(line, depth, std::move(dict));
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr expression) {
    while (true) {
        const int line = current().line;
        if (take_symbol(".")) {
            expression = parse_attribute(std::move(expression));
        } else if (take_symbol("[")) {
            expression = parse_subscript(std::move(expression));
        } else if (take_symbol("(")) {
            expression = parse_call(line, std::move(expression));
        } else {
            return expression;
        }
    }
}

ExpressionPtr ExpressionParser::parse_call(int line, ExpressionPtr callee) {
    Arguments arguments = parse_arguments();
    const std::int64_t depth = std::max(depth_of(callee), depth_of(arguments));
    return make(line, depth, Call{std::move(callee), std::move(arguments)});
}

ExpressionPtr ExpressionParser::parse_attribute(ExpressionPtr object) {
    const int line = current().line;
    const std::int64_t depth = depth_of(object);
    if (current().kind == Kind::number) {
        ExpressionPtr index = make(line, 0, Constant{take().number});
        return make(line, std::max<std::int64_t>(depth, 1),
                    Item{std::move(object), std::move(index)});
    }
    const std::string name = expect_name();
    if (name.starts_with("__"))
        refuse(ErrorKind::unsupported, line, "'{}' would be an internal of the interpreter", name);
    return make(line, depth, Attribute{std::move(object), name});
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr object) {
    const int line = current().line;
    const auto bound = [&]() -> ExpressionPtr {
        if (current().is_symbol(":") || current().is_symbol("]")) return nullptr;
        return parse_expression();
    };
    ExpressionPtr begin = bound();
    if (take_symbol("]")) {
        if (!begin) refuse(ErrorKind::invalid, line, "expected an index, found ']'");
        const std::int64_t depth = std::max(depth_of(object), depth_of(begin));
        return make(line, depth, Item{std::move(object), std::move(begin)});
    }
    expect_symbol(":");
    ExpressionPtr end = bound();
    ExpressionPtr step;
    if (take_symbol(":")) step = bound();
    expect_symbol("]");
    const std::int64_t depth =
        std::max({depth_of(object), depth_of(begin), depth_of(end), depth_of(step)});
    return make(line, depth,
                Slice{std::move(object), std::move(begin), std::move(end), std::move(step)});
}

Arguments ExpressionParser::parse_arguments() {
    Arguments arguments;
    while (!current().is_symbol(")")) {
        const int line = current().line;
        if (current().is_symbol("*") || current().is_symbol("**"))
            refuse(ErrorKind::unsupported, line, "'{}' before an argument is not supported",
                   current().text);
        if (current().kind == Kind::name && following().is_symbol("=")) {
            std::string name = take().text;
            take();
            arguments.named.emplace_back(std::move(name), parse_expression());
        } else {
            if (!arguments.named.empty())
                refuse(ErrorKind::invalid, line, "an argument without a name after one with");
            arguments.positional.push_back(parse_expression());
        }
        if (!take_symbol(",")) break;
    }
    expect_symbol(")");
    return arguments;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr operand, bool named) {
    while (named || take_symbol("|")) {
        named = false;
        const int line = current().line;
        std::string name = expect_name();
        if (!is_filter(name))
            refuse(ErrorKind::unsupported, line, "the filter '{}' is not supported", name);
        Arguments arguments;
        if (take_symbol("(")) arguments = parse_arguments();
        const std::int64_t depth = std::max(depth_of(operand), depth_of(arguments));
        operand =
            make(line, depth, Filter{std::move(operand), std::move(name), std::move(arguments)});
    }
    return operand;
}

ExpressionPtr ExpressionParser::parse_filters_and_tests(ExpressionPtr expression) {
    while (true) {
        const int line = current().line;
        if (current().is_symbol("|")) {
            expression = parse_filters(std::move(expression), false);
        } else if (take_name("is")) {
            expression = parse_test(std::move(expression));
        } else if (take_symbol("(")) {
            expression = parse_call(line, std::move(expression));
        } else {
            return expression;
        }
    }
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr operand) {
    const int line = current().line;
    const bool negated = take_name("not");
    std::string name = expect_name();
    if (!is_test(name))
        refuse(ErrorKind::unsupported, line, "the test '{}' is not supported", name);
    const auto begins_argument = [&] {
        if (current().kind == Kind::name)
            return !current().is_name("else") && !current().is_name("or") &&
                   !current().is_name("and");
        return current().kind == Kind::string || current().kind == Kind::number ||
               current().is_symbol("[") || current().is_symbol("{");
    };
    Arguments arguments;
    if (take_symbol("(")) {
        arguments = parse_arguments();
    } else if (begins_argument()) {
        if (current().is_name("is"))
            refuse(ErrorKind::invalid, line, "tests cannot be chained with 'is'");
        const DepthGuard guard(nesting_, limits_.nesting, "expressions");
        arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    const std::int64_t depth = std::max(depth_of(operand), depth_of(arguments));
    ExpressionPtr test =
        make(line, depth, Test{std::move(operand), std::move(name), std::move(arguments)});
    if (!negated) return test;
    return make(line, depth + 1, Unary{Unary::Operator::logical_not, std::move(test)});
}

}  // namespace espalier::chat
