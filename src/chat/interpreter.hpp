// SPDX-License-Identifier: Apache-2.0
// Renders a parsed template. Scopes are jinja2's: a loop's turn, a block and a macro have their
// own; `if` has none. One Interpreter renders once.
#pragma once

#include <ctime>
#include <deque>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/ast.hpp"
#include "chat/call_arguments.hpp"
#include "chat/value.hpp"

namespace espalier::chat {

class Interpreter {
  public:
    // constants go before the context's names: a request cannot replace the model's tokens.
    Interpreter(const Dict& constants, const Dict& context, Budget& budget, std::time_t now)
        : constants_(constants), context_(context), budget_(budget), now_(now) {}

    // Throws Failure, with its line.
    Text run(const ScopedBlock& block);

  private:
    struct Loop {
        const std::vector<Value>* items;
        std::size_t index = 0;
    };
    struct Scope {
        const Scope* parent = nullptr;
        const Loop* loop = nullptr;
        std::vector<std::pair<std::string_view, Value>> names = {};
    };
    enum class Flow { next, broken, continued };
    // Statements and expressions within each other, macros included: half a megabyte of stack.
    static constexpr std::int64_t kMaxDepth = 600;

    Flow execute(const Block& block);
    Flow execute(const ScopedBlock& block);
    Flow execute(const Statement& statement);
    Flow run_node(const Data& node);
    Flow run_node(const Output& node);
    Flow run_node(const If& node);
    Flow run_node(const For& node);
    Flow run_node(const Set& node);
    Flow run_node(const SetBlock& node);
    Flow run_node(const FilterBlock& node);
    Flow run_node(const With& node);
    Flow run_node(const MacroDefinition& node);
    Flow run_node(const Break&) { return Flow::broken; }
    Flow run_node(const Continue&) { return Flow::continued; }
    bool run_turns(const For& node, const std::vector<Value>& items);
    Value render_block(const ScopedBlock& block, const Expression* filter);

    Value evaluate(const Expression& expression);
    Value evaluate_or_none(const ExpressionPtr& expression);
    Value value_of(const Constant& node) { return node.value; }
    Value value_of(const Name& node);
    Value value_of(const Attribute& node);
    Value value_of(const Item& node);
    Value value_of(const Slice& node);
    Value value_of(const Call& node);
    Value value_of(const Filter& node);
    Value value_of(const Test& node);
    Value value_of(const Unary& node);
    Value value_of(const Binary& node);
    Value value_of(const Logic& node);
    Value value_of(const Comparison& node);
    Value value_of(const Conditional& node);
    Value value_of(const Concatenation& node);
    Value value_of(const ListLiteral& node);
    Value value_of(const DictLiteral& node);

    Value look_up(std::string_view name) const;
    const Loop* loop_of(const Expression& expression) const;
    Value loop_attribute(const Loop& loop, std::string_view name) const;
    CallArguments arguments_of(const Arguments& arguments);
    Value call(const Value& callee, const CallArguments& arguments);
    Value call_function(Function function, const CallArguments& arguments);
    Value call_macro(const Macro& macro, const CallArguments& arguments);
    Value apply_filter(const Filter& filter, const Value& operand);
    void assign(const Target& target, const Value& value);
    void assign(const Target::Place& place, Value value);
    void set_name(Scope& scope, std::string_view name, Value value);
    void emit(const Text& text);

    const Dict& constants_;
    const Dict& context_;
    Budget& budget_;
    std::time_t now_;
    int line_ = 1;
    std::int64_t depth_ = 0;
    std::int64_t macro_depth_ = 0;
    Scope root_;
    Scope* scope_ = &root_;
    Text* out_ = nullptr;
    const Value* block_text_ = nullptr;  // what a filter without an operand works on
    std::deque<Namespace> namespaces_;   // stay where they are: values point at them
};

}  // namespace espalier::chat
