// SPDX-License-Identifier: Apache-2.0
// Statements; expressions are in interpreter_expressions.cpp.
#include "chat/interpreter.hpp"

#include <algorithm>

#include "chat/access.hpp"
#include "chat/print.hpp"

namespace espalier::chat {
namespace {

// Sets a member for as long as it lives.
template <typename T>
class Restored {
  public:
    Restored(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
    ~Restored() { place_ = std::move(before_); }
    Restored(const Restored&) = delete;
    Restored& operator=(const Restored&) = delete;

  private:
    T& place_;
    T before_;
};

}  // namespace

Text Interpreter::run(const ScopedBlock& block) {
    Text text;
    out_ = &text;
    with_line(line_, [&] { execute(block); });
    return text;
}

void Interpreter::emit(const Text& text) {
    budget_.touch(text.size());
    const auto limit = static_cast<std::size_t>(budget_.limits().output_bytes);
    if (text.size() > limit - std::min(limit, out_->size()))
        fail_template(ErrorKind::exhausted, "the rendered text has more than {} bytes", limit);
    out_->append(text);
}

Interpreter::Flow Interpreter::execute(const Block& block) {
    for (const Statement& statement : block)
        if (const Flow flow = execute(statement); flow != Flow::next) return flow;
    return Flow::next;
}

// In the current scope, which is the block's own.
Interpreter::Flow Interpreter::execute(const ScopedBlock& block) {
    for (const std::string& name : block.unset)
        set_name(*scope_, name, Value::undefined(fmt::format("'{}' is undefined", name)));
    return execute(block.statements);
}

Interpreter::Flow Interpreter::execute(const Statement& statement) {
    budget_.step();
    const DepthGuard guard(depth_, kMaxDepth, "statements and expressions");
    line_ = statement.line;
    return std::visit([&](const auto& node) { return run_node(node); }, statement.node);
}

Interpreter::Flow Interpreter::run_node(const Data& node) {
    emit(*node.text);
    return Flow::next;
}

Interpreter::Flow Interpreter::run_node(const Output& node) {
    emit(*print(evaluate(*node.value), budget_));
    return Flow::next;
}

Interpreter::Flow Interpreter::run_node(const If& node) {
    for (const If::Branch& branch : node.branches)
        if (truth(evaluate(*branch.condition))) return execute(branch.body);
    return execute(node.otherwise);
}

Interpreter::Flow Interpreter::run_node(const For& node) {
    std::vector<Value> items = elements(evaluate(*node.sequence), budget_);
    if (node.condition) {
        Scope scope{.parent = scope_};
        const Restored inner(scope_, &scope);
        std::erase_if(items, [&](const Value& item) {
            assign(node.target, item);
            return !truth(evaluate(*node.condition));
        });
    }
    if (run_turns(node, items)) return Flow::next;
    Scope scope{.parent = scope_};
    const Restored inner(scope_, &scope);
    return execute(node.otherwise);
}

// True if a turn came to its end: otherwise jinja2 renders the loop's `else`, also after a first
// turn that was left by break or continue.
bool Interpreter::run_turns(const For& node, const std::vector<Value>& items) {
    Loop loop{.items = &items};
    bool finished = false;
    for (; loop.index < items.size(); ++loop.index) {
        budget_.step();
        Scope scope{.parent = scope_, .loop = &loop};
        const Restored inner(scope_, &scope);
        assign(node.target, items[loop.index]);
        const Flow flow = execute(node.body);
        if (flow == Flow::broken) break;
        if (flow == Flow::next) finished = true;
    }
    return finished;
}

Interpreter::Flow Interpreter::run_node(const Set& node) {
    Value value = evaluate(*node.value);
    if (const List* list = value.list(); list && list->kind == List::Kind::iterator)
        fail_template(ErrorKind::unsupported,
                      "a variable that holds an iterator is not supported: jinja2 goes through it "
                      "once; |list makes a list of it");
    assign(node.target, value);
    return Flow::next;
}

Interpreter::Flow Interpreter::run_node(const SetBlock& node) {
    assign(node.target, render_block(node.body, node.filter.get()));
    return Flow::next;
}

Interpreter::Flow Interpreter::run_node(const FilterBlock& node) {
    emit(*print(render_block(node.body, node.filter.get()), budget_));
    return Flow::next;
}

// A block's output as a value, through the filter if there is one.
Value Interpreter::render_block(const ScopedBlock& block, const Expression* filter) {
    Text text;
    {
        Scope scope{.parent = scope_};
        const Restored inner(scope_, &scope);
        const Restored out(out_, &text);
        execute(block);
    }
    const Value value(std::move(text));
    if (!filter) return value;
    const Restored block_text(block_text_, &value);
    return evaluate(*filter);
}

Interpreter::Flow Interpreter::run_node(const With& node) {
    std::vector<Value> values;  // in the scope outside
    for (const auto& [target, expression] : node.values) values.push_back(evaluate(*expression));
    Scope scope{.parent = scope_};
    const Restored inner(scope_, &scope);
    for (std::size_t i = 0; i < values.size(); ++i) assign(node.values[i].first, values[i]);
    return execute(node.body);
}

Interpreter::Flow Interpreter::run_node(const MacroDefinition& node) {
    set_name(*scope_, node.macro->name, Value(node.macro.get()));
    return Flow::next;
}

Value Interpreter::call_macro(const Macro& macro, const CallArguments& arguments) {
    const DepthGuard guard(macro_depth_, budget_.limits().macro_depth, "calls of macros");
    if (arguments.positional.size() > macro.parameters.size())
        fail_template(ErrorKind::invalid, "macro '{}' takes at most {} arguments, got {}",
                      macro.name, macro.parameters.size(), arguments.positional.size());
    const int line = line_;
    Text text;
    {
        Scope scope{.parent = &root_};
        const Restored inner(scope_, &scope);
        const Restored out(out_, &text);
        std::size_t named = 0;
        for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
            const Macro::Parameter& parameter = macro.parameters[i];
            const auto given = std::ranges::find_if(
                arguments.named, [&](const auto& pair) { return pair.first == parameter.name; });
            Value value;
            if (i < arguments.positional.size()) {
                value = arguments.positional[i];
            } else if (given != arguments.named.end()) {
                value = given->second;
                ++named;
            } else if (parameter.otherwise) {
                value = evaluate(*parameter.otherwise);
            } else {
                value = Value::undefined(
                    fmt::format("parameter '{}' was not provided", parameter.name));
            }
            set_name(scope, parameter.name, std::move(value));
        }
        if (named < arguments.named.size())
            fail_template(ErrorKind::invalid,
                          "macro '{}' got an argument it does not have, or twice", macro.name);
        execute(macro.body);
    }
    line_ = line;
    return Value(std::move(text));
}

void Interpreter::assign(const Target& target, const Value& value) {
    if (!target.unpacks) return assign(target.places[0], value);
    require_defined(value);
    std::vector<Value> parts = elements(value, budget_);
    if (parts.size() != target.places.size())
        fail_template(ErrorKind::invalid, "{} values to unpack into {} names", parts.size(),
                      target.places.size());
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.places[i], std::move(parts[i]));
}

void Interpreter::assign(const Target::Place& place, Value value) {
    if (place.attribute.empty()) return set_name(*scope_, place.name, std::move(value));
    Namespace* name_space = look_up(place.name).name_space();
    if (!name_space)
        fail_template(ErrorKind::invalid, "cannot assign an attribute of '{}', not a namespace",
                      place.name);
    budget_.step(1 + name_space->attributes.size() / 8);
    name_space->set(place.attribute, std::move(value));
}

void Interpreter::set_name(Scope& scope, std::string_view name, Value value) {
    const auto found =
        std::ranges::find_if(scope.names, [&](const auto& pair) { return pair.first == name; });
    if (found != scope.names.end()) {
        found->second = std::move(value);
    } else {
        scope.names.emplace_back(name, std::move(value));
    }
}

}  // namespace espalier::chat
