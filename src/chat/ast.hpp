// SPDX-License-Identifier: Apache-2.0
// A parsed template. Expressions and statements are closed sets: what is not here is not supported.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "chat/value.hpp"

namespace espalier::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Arguments {
    std::vector<ExpressionPtr> positional = {};
    std::vector<std::pair<std::string, ExpressionPtr>> named = {};
};

struct Constant {
    Value value;
};
struct Name {
    std::string name;
};
struct Attribute {  // object.name
    ExpressionPtr object;
    std::string name;
};
struct Item {  // object[index]
    ExpressionPtr object;
    ExpressionPtr index;
};
struct Slice {  // object[begin:end:step], null where nothing is given
    ExpressionPtr object;
    ExpressionPtr begin;
    ExpressionPtr end;
    ExpressionPtr step;
};
struct Call {
    ExpressionPtr callee;
    Arguments arguments;
};
struct Filter {  // operand|name(arguments); no operand: what a block rendered
    ExpressionPtr operand;
    std::string name;
    Arguments arguments;
};
struct Test {  // operand is name(arguments)
    ExpressionPtr operand;
    std::string name;
    Arguments arguments;
};
struct Unary {
    enum class Operator { plus, minus, logical_not };
    Operator op;
    ExpressionPtr operand;
};
struct Binary {
    enum class Operator { add, subtract, multiply, divide, floor_divide, modulo, power };
    Operator op;
    ExpressionPtr left;
    ExpressionPtr right;
};
struct Logic {  // `and` or `or`: gives one of its operands
    bool is_and;
    ExpressionPtr left;
    ExpressionPtr right;
};
struct Comparison {  // a < b <= c: every pair must hold
    enum class Operator { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };
    ExpressionPtr first;
    std::vector<std::pair<Operator, ExpressionPtr>> rest;
};
struct Conditional {  // then if condition else otherwise
    ExpressionPtr condition;
    ExpressionPtr then;
    ExpressionPtr otherwise;  // may be null
};
struct Concatenation {  // a ~ b ~ c
    std::vector<ExpressionPtr> parts;
};
struct ListLiteral {
    List::Kind kind;  // list or tuple
    std::vector<ExpressionPtr> items;
};
struct DictLiteral {
    std::vector<std::pair<ExpressionPtr, ExpressionPtr>> entries;
};

struct Expression {
    int line;
    std::int64_t depth;  // of the tree from here down: bounds the recursion over it
    std::variant<Constant, Name, Attribute, Item, Slice, Call, Filter, Test, Unary, Binary, Logic,
                 Comparison, Conditional, Concatenation, ListLiteral, DictLiteral>
        node;
};

struct Statement;
using Block = std::vector<Statement>;

// Statements in a scope of their own.
struct ScopedBlock {
    Block statements;
    std::vector<std::string> unset = {};  // names that begin undefined here (scope_analysis.hpp)
};

// Targets that `set` and `for` assign to: names, or attributes of namespaces.
struct Target {
    struct Place {
        std::string name;
        std::string attribute = {};  // empty: the name itself
    };
    std::vector<Place> places = {};
    bool unpacks = false;  // a tuple, also of one
};

struct Data {
    TextPtr text;
};
struct Output {
    ExpressionPtr value;
};
struct If {
    struct Branch {
        ExpressionPtr condition;
        Block body;
    };
    std::vector<Branch> branches;
    Block otherwise;
};
struct For {
    Target target;
    ExpressionPtr sequence;
    ExpressionPtr condition;  // for … in … if condition; may be null
    ScopedBlock body;
    ScopedBlock otherwise;
};
struct Set {
    Target target;
    ExpressionPtr value;
};
struct SetBlock {  // {% set x %}…{% endset %}
    Target target;
    ExpressionPtr filter;  // may be null
    ScopedBlock body;
};
struct FilterBlock {
    ExpressionPtr filter;
    ScopedBlock body;
};
struct With {
    std::vector<std::pair<Target, ExpressionPtr>> values;
    ScopedBlock body;
};
struct Macro {
    struct Parameter {
        std::string name;
        ExpressionPtr otherwise;  // may be null
    };
    std::string name;
    std::vector<Parameter> parameters;
    ScopedBlock body;
};
struct MacroDefinition {
    std::unique_ptr<Macro> macro;  // values point at it
};
struct Break {};
struct Continue {};

struct Statement {
    int line;
    std::variant<Data, Output, If, For, Set, SetBlock, FilterBlock, With, MacroDefinition, Break,
                 Continue>
        node;
};

}  // namespace espalier::chat
