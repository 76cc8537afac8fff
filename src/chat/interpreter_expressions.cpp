// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "chat/access.hpp"
#include "chat/arithmetic.hpp"
#include "chat/filters.hpp"
#include "chat/interpreter.hpp"
#include "chat/methods.hpp"
#include "chat/print.hpp"
#include "chat/tests.hpp"

namespace espalier::chat {
namespace {

constexpr std::int64_t kMaxRange = 100'000;  // jinja2's own limit
constexpr std::size_t kMaxTimeBytes = 256;   // of a format and of what it makes

bool compare(Comparison::Operator op, const Value& left, const Value& right, Budget& budget) {
    using Sign = Comparison::Operator;
    if (op == Sign::equal) return equal(left, right, budget);
    if (op == Sign::not_equal) return !equal(left, right, budget);
    if (op == Sign::in) return contains(right, left, budget);
    if (op == Sign::not_in) return !contains(right, left, budget);
    require_defined(left);
    require_defined(right);
    switch (op) {
        case Sign::less:
            return ordered(left, Order::less, right, budget);
        case Sign::less_equal:
            return ordered(left, Order::less_equal, right, budget);
        case Sign::greater:
            return ordered(left, Order::greater, right, budget);
        default:
            return ordered(left, Order::greater_equal, right, budget);
    }
}

Value make_range(const CallArguments& arguments, Budget& budget) {
    const auto bound = bind(arguments, "range", {"start", "stop", "step"}, 1);
    if (!arguments.named.empty())
        fail_template(ErrorKind::invalid, "range takes no named arguments");
    std::int64_t begin = 0;
    std::int64_t end = integer_argument(*bound[0], "range");
    if (bound[1]) begin = std::exchange(end, integer_argument(*bound[1], "range"));
    const std::int64_t step = bound[2] ? integer_argument(*bound[2], "range") : 1;
    if (step == 0) fail_template(ErrorKind::invalid, "range with a step of zero");
    const Integer distance =
        step > 0 ? static_cast<Integer>(end) - begin : static_cast<Integer>(begin) - end;
    const Integer stride = step > 0 ? step : -static_cast<Integer>(step);
    const Integer count = distance <= 0 ? 0 : (distance - 1) / stride + 1;
    if (count > kMaxRange)
        fail_template(ErrorKind::exhausted, "a range of more than {} numbers", kMaxRange);
    budget.step(static_cast<std::size_t>(count));
    List list{.kind = List::Kind::range};
    for (Integer i = 0; i < count; ++i) list.items.emplace_back(begin + i * step);
    return Value(std::move(list));
}

Value print_time(const Text& format, std::time_t now) {
    std::tm local = {};
    localtime_r(&now, &local);
    char buffer[kMaxTimeBytes];
    const std::size_t size =
        format.size() > kMaxTimeBytes
            ? 0
            : std::strftime(buffer, sizeof buffer, format.bytes().c_str(), &local);
    if (size == 0 && !format.empty())
        fail_template(ErrorKind::unsupported, "strftime_now of more than {} bytes, or of none",
                      kMaxTimeBytes);
    return Value(Text(std::string(buffer, size)));
}

}  // namespace

Value Interpreter::evaluate(const Expression& expression) {
    budget_.step();
    const DepthGuard guard(depth_, kMaxDepth, "statements and expressions");
    line_ = expression.line;
    return std::visit([&](const auto& node) { return value_of(node); }, expression.node);
}

Value Interpreter::evaluate_or_none(const ExpressionPtr& expression) {
    return expression ? evaluate(*expression) : Value();
}

Value Interpreter::look_up(std::string_view name) const {
    for (const Scope* scope = scope_; scope; scope = scope->parent)
        for (const auto& [other, value] : scope->names)
            if (other == name) return value;
    if (const Value* found = constants_.find(name)) return *found;
    if (const Value* found = context_.find(name)) return *found;
    static constexpr std::pair<std::string_view, Function> kFunctions[] = {
        {"range", Function::range},
        {"namespace", Function::make_namespace},
        {"dict", Function::make_dict},
        {"raise_exception", Function::raise_exception},
        {"strftime_now", Function::strftime_now}};
    for (const auto& [other, function] : kFunctions)
        if (other == name) return Value(function);
    static constexpr std::string_view kOthers[] = {"lipsum", "cycler",  "joiner",
                                                   "caller", "varargs", "kwargs"};
    if (std::ranges::find(kOthers, name) != std::end(kOthers))
        fail_template(ErrorKind::unsupported, "'{}' is not supported", name);
    return Value::undefined(fmt::format("'{}' is undefined", name));
}

const Interpreter::Loop* Interpreter::loop_of(const Expression& expression) const {
    const Name* name = std::get_if<Name>(&expression.node);
    if (!name || name->name != "loop") return nullptr;
    for (const Scope* scope = scope_; scope; scope = scope->parent)
        if (scope->loop) return scope->loop;
    return nullptr;
}

Value Interpreter::loop_attribute(const Loop& loop, std::string_view name) const {
    const std::size_t count = loop.items->size();
    if (name == "index") return Value::count(loop.index + 1);
    if (name == "index0") return Value::count(loop.index);
    if (name == "revindex") return Value::count(count - loop.index);
    if (name == "revindex0") return Value::count(count - loop.index - 1);
    if (name == "length") return Value::count(count);
    if (name == "first") return Value(loop.index == 0);
    if (name == "last") return Value(loop.index + 1 == count);
    if (name == "depth") return Value(Integer{1});
    if (name == "depth0") return Value(Integer{0});
    if (name == "previtem")
        return loop.index > 0 ? (*loop.items)[loop.index - 1]
                              : Value::undefined("there is no previous item");
    if (name == "nextitem")
        return loop.index + 1 < count ? (*loop.items)[loop.index + 1]
                                      : Value::undefined("there is no next item");
    fail_template(ErrorKind::unsupported, "'loop.{}' is not supported", name);
}

Value Interpreter::value_of(const Name& node) {
    if (node.name == "loop")
        for (const Scope* scope = scope_; scope; scope = scope->parent)
            if (scope->loop)
                fail_template(ErrorKind::unsupported,
                              "'loop' is supported with an attribute alone, as in loop.first");
    return look_up(node.name);
}

Value Interpreter::value_of(const Attribute& node) {
    if (const Loop* loop = loop_of(*node.object)) return loop_attribute(*loop, node.name);
    return get_attribute(evaluate(*node.object), node.name, budget_);
}

Value Interpreter::value_of(const Item& node) {
    const Value object = evaluate(*node.object);
    return get_item(object, evaluate(*node.index), budget_);
}

Value Interpreter::value_of(const Slice& node) {
    const Value object = evaluate(*node.object);
    const Value begin = evaluate_or_none(node.begin);
    const Value end = evaluate_or_none(node.end);
    return get_slice(object, begin, end, evaluate_or_none(node.step), budget_);
}

CallArguments Interpreter::arguments_of(const Arguments& arguments) {
    CallArguments out;
    for (const ExpressionPtr& expression : arguments.positional)
        out.positional.push_back(evaluate(*expression));
    for (const auto& [name, expression] : arguments.named)
        out.named.emplace_back(name, evaluate(*expression));
    return out;
}

Value Interpreter::value_of(const Call& node) {
    const auto* method = std::get_if<Attribute>(&node.callee->node);
    if (!method) {
        const Value callee = evaluate(*node.callee);
        require_defined(callee);
        return call(callee, arguments_of(node.arguments));
    }
    if (const Loop* loop = loop_of(*method->object)) {
        const CallArguments arguments = arguments_of(node.arguments);
        if (method->name != "cycle" || arguments.positional.empty() || !arguments.named.empty())
            fail_template(ErrorKind::unsupported, "'loop.{}(…)' is not supported", method->name);
        return arguments.positional[loop->index % arguments.positional.size()];
    }
    const Value object = evaluate(*method->object);
    require_defined(object);
    const CallArguments arguments = arguments_of(node.arguments);
    if (!object.name_space()) return call_method(object, method->name, arguments, budget_);
    const Value callee = get_attribute(object, method->name, budget_);
    require_defined(callee);
    return call(callee, arguments);
}

Value Interpreter::call(const Value& callee, const CallArguments& arguments) {
    if (const auto* macro = callee.get<const Macro*>()) return call_macro(**macro, arguments);
    if (const Function* function = callee.get<Function>())
        return call_function(*function, arguments);
    fail_template(ErrorKind::invalid, "a {} cannot be called", callee.type_name());
}

Value Interpreter::call_function(Function function, const CallArguments& arguments) {
    switch (function) {
        case Function::range:
            return make_range(arguments, budget_);
        case Function::make_namespace:
        case Function::make_dict:
            break;
        case Function::raise_exception: {
            const auto bound = bind(arguments, "raise_exception", {"message"}, 1);
            fail_template(ErrorKind::invalid, "{}", print(*bound[0], budget_)->bytes());
        }
        case Function::strftime_now: {
            const auto bound = bind(arguments, "strftime_now", {"format"}, 1);
            return print_time(text_argument(*bound[0], "strftime_now"), now_);
        }
    }
    if (!arguments.positional.empty())
        fail_template(ErrorKind::unsupported,
                      "namespace and dict are supported with named arguments alone");
    if (function == Function::make_dict) {
        Dict dict;
        for (const auto& [name, value] : arguments.named)
            dict.entries.push_back({std::make_shared<const Text>(name), value});
        return Value(std::move(dict));
    }
    budget_.touch(sizeof(Namespace));
    Namespace& made = namespaces_.emplace_back();
    for (const auto& [name, value] : arguments.named) made.set(name, value);
    return Value(&made);
}

Value Interpreter::apply_filter(const Filter& filter, const Value& operand) {
    return call_filter(filter.name, operand, arguments_of(filter.arguments), budget_);
}

Value Interpreter::value_of(const Filter& node) {
    return apply_filter(node, node.operand ? evaluate(*node.operand) : *block_text_);
}

Value Interpreter::value_of(const Test& node) {
    const Value operand = evaluate(*node.operand);
    const CallArguments arguments = arguments_of(node.arguments);
    if (!arguments.named.empty())
        fail_template(ErrorKind::unsupported, "a test with named arguments is not supported");
    return Value(call_test(node.name, operand, arguments.positional, budget_));
}

Value Interpreter::value_of(const Unary& node) { return apply(node.op, evaluate(*node.operand)); }

Value Interpreter::value_of(const Binary& node) {
    const Value left = evaluate(*node.left);
    const Value right = evaluate(*node.right);
    return apply(node.op, left, right, budget_);
}

Value Interpreter::value_of(const Logic& node) {
    Value left = evaluate(*node.left);
    return truth(left) == node.is_and ? evaluate(*node.right) : std::move(left);
}

Value Interpreter::value_of(const Comparison& node) {
    Value left = evaluate(*node.first);
    for (const auto& [op, expression] : node.rest) {
        Value right = evaluate(*expression);
        if (!compare(op, left, right, budget_)) return Value(false);
        left = std::move(right);
    }
    return Value(true);
}

Value Interpreter::value_of(const Conditional& node) {
    if (truth(evaluate(*node.condition))) return evaluate(*node.then);
    if (node.otherwise) return evaluate(*node.otherwise);
    return Value::undefined("the inline if-expression evaluated to false and has no else");
}

Value Interpreter::value_of(const Concatenation& node) {
    std::vector<Value> parts;
    for (const ExpressionPtr& part : node.parts) parts.push_back(evaluate(*part));
    Text out;
    for (const Value& part : parts) {
        const TextPtr text = print(part, budget_);
        budget_.touch(text->size());
        out.append(*text);
    }
    return Value(std::move(out));
}

Value Interpreter::value_of(const ListLiteral& node) {
    List list{.kind = node.kind};
    for (const ExpressionPtr& item : node.items) list.items.push_back(evaluate(*item));
    return Value(std::move(list));
}

Value Interpreter::value_of(const DictLiteral& node) {
    Dict dict;
    for (const auto& [key_expression, value_expression] : node.entries) {
        const Value key = evaluate(*key_expression);
        const TextPtr* name = key.get<TextPtr>();
        if (!name)
            fail_template(ErrorKind::unsupported, "a dict key that is a {} is not supported",
                          key.type_name());
        Value value = evaluate(*value_expression);
        budget_.step(1 + dict.entries.size() / 8);
        const auto found = std::ranges::find_if(dict.entries, [&](const Dict::Entry& entry) {
            return entry.key->bytes() == (*name)->bytes();
        });
        if (found != dict.entries.end()) {
            found->value = std::move(value);
        } else {
            dict.entries.push_back({*name, std::move(value)});
        }
    }
    return Value(std::move(dict));
}

}  // namespace espalier::chat
