// SPDX-License-Identifier: Apache-2.0
#include "chat/arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "chat/access.hpp"

namespace espalier::chat {
namespace {

using BinaryOperator = Binary::Operator;

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void refuse_types(BinaryOperator op, const Value& left, const Value& right) {
    fail_template(ErrorKind::invalid, "'{}' of a {} and a {}", kSymbols[static_cast<int>(op)],
                  left.type_name(), right.type_name());
}

[[noreturn]] void refuse_overflow() {
    fail_template(ErrorKind::unsupported, "integers beyond 127 bits are not supported");
}

Integer multiply(Integer left, Integer right) {
    Integer out = 0;
    if (__builtin_mul_overflow(left, right, &out)) refuse_overflow();
    return out;
}

// Python rounds towards −∞, C++ towards 0.
Integer floor_divide(Integer left, Integer right) {
    if (right == 0) fail_template(ErrorKind::invalid, "division by zero");
    if (right == -1) return multiply(left, -1);
    const Integer quotient = left / right;
    return quotient * right != left && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Integer power(Integer base, Integer exponent) {
    Integer out = 1;
    while (true) {
        if (exponent % 2 == 1) out = multiply(out, base);
        exponent /= 2;
        if (exponent == 0) return out;
        base = multiply(base, base);
    }
}

Value on_integers(BinaryOperator op, Integer left, Integer right) {
    Integer out = 0;
    switch (op) {
        case BinaryOperator::add:
            if (__builtin_add_overflow(left, right, &out)) refuse_overflow();
            return Value(out);
        case BinaryOperator::subtract:
            if (__builtin_sub_overflow(left, right, &out)) refuse_overflow();
            return Value(out);
        case BinaryOperator::multiply:
            return Value(multiply(left, right));
        case BinaryOperator::divide:
            if (right == 0) fail_template(ErrorKind::invalid, "division by zero");
            return Value(static_cast<double>(left) / static_cast<double>(right));
        case BinaryOperator::floor_divide:
            return Value(floor_divide(left, right));
        case BinaryOperator::modulo:
            return Value(right == -1 ? Integer{0} : left - floor_divide(left, right) * right);
        case BinaryOperator::power:
            break;
    }
    if (right >= 0) return Value(power(left, right));
    if (left == 0) fail_template(ErrorKind::invalid, "0 to a negative power");
    return Value(std::pow(static_cast<double>(left), static_cast<double>(right)));
}

Value on_reals(BinaryOperator op, double left, double right) {
    const bool divides = op == BinaryOperator::divide || op == BinaryOperator::floor_divide ||
                         op == BinaryOperator::modulo;
    if (divides && right == 0) fail_template(ErrorKind::invalid, "division by zero");
    switch (op) {
        case BinaryOperator::add:
            return Value(left + right);
        case BinaryOperator::subtract:
            return Value(left - right);
        case BinaryOperator::multiply:
            return Value(left * right);
        case BinaryOperator::divide:
            return Value(left / right);
        default:
            fail_template(ErrorKind::unsupported, "'{}' of floats is not supported",
                          kSymbols[static_cast<int>(op)]);
    }
}

Value repeated(const Value& sequence, Integer times, Budget& budget) {
    const std::size_t size =
        sequence.text() ? sequence.text()->size() : sequence.list()->items.size();
    const auto limit = static_cast<Integer>(std::numeric_limits<std::int32_t>::max());
    if (times <= 0 || size == 0) times = 0;
    if (times > limit)
        fail_template(ErrorKind::exhausted, "a sequence repeated more than {} times",
                      std::numeric_limits<std::int32_t>::max());
    const auto count = static_cast<std::size_t>(times);
    if (const Text* text = sequence.text()) {
        budget.touch(count * size);
        Text out;
        for (std::size_t i = 0; i < count; ++i) out.append(*text);
        return Value(std::move(out));
    }
    budget.step(count * size);
    const List& list = *sequence.list();
    List out{.kind = list.kind};
    for (std::size_t i = 0; i < count; ++i)
        out.items.insert(out.items.end(), list.items.begin(), list.items.end());
    return Value(std::move(out));
}

bool is_sequence(const Value& value) {
    const List* list = value.list();
    return value.text() ||
           (list && (list->kind == List::Kind::list || list->kind == List::Kind::tuple));
}

Value joined(const Value& left, const Value& right, Budget& budget) {
    if (const Text* a = left.text(), *b = right.text(); a && b) {
        budget.touch(a->size() + b->size());
        Text out = *a;
        out.append(*b);
        return Value(std::move(out));
    }
    const List *a = left.list(), *b = right.list();
    if (!a || !b || a->kind != b->kind || !is_sequence(left))
        refuse_types(BinaryOperator::add, left, right);
    budget.step(a->items.size() + b->items.size());
    List out{.kind = a->kind, .items = a->items};
    out.items.insert(out.items.end(), b->items.begin(), b->items.end());
    return Value(std::move(out));
}

}  // namespace

Value apply(Unary::Operator op, const Value& operand) {
    if (op == Unary::Operator::logical_not) return Value(!truth(operand));
    require_defined(operand);
    Number number;
    if (!to_number(operand, number))
        fail_template(ErrorKind::invalid, "a sign before a {}", operand.type_name());
    if (number.is_real) return Value(op == Unary::Operator::minus ? -number.real : number.real);
    return Value(op == Unary::Operator::minus ? multiply(number.integer, -1) : number.integer);
}

Value apply(Binary::Operator op, const Value& left, const Value& right, Budget& budget) {
    require_defined(left);
    require_defined(right);
    Number a, b;
    const bool left_number = to_number(left, a);
    const bool right_number = to_number(right, b);
    if (left_number && right_number)
        return a.is_real || b.is_real ? on_reals(op, a.as_real(), b.as_real())
                                      : on_integers(op, a.integer, b.integer);
    if (op == BinaryOperator::multiply && is_sequence(left) && right_number && !b.is_real)
        return repeated(left, b.integer, budget);
    if (op == BinaryOperator::multiply && is_sequence(right) && left_number && !a.is_real)
        return repeated(right, a.integer, budget);
    if (op == BinaryOperator::add) return joined(left, right, budget);
    if (op == BinaryOperator::modulo && left.text())
        fail_template(ErrorKind::unsupported, "formatting a text with '%' is not supported");
    refuse_types(op, left, right);
}

}  // namespace espalier::chat
