// SPDX-License-Identifier: Apache-2.0
#include "chat/tests.hpp"

#include <algorithm>

namespace espalier::chat {
namespace {

using Arguments = std::vector<Value>;
using Check = bool (*)(const Value&, const Arguments&, Budget&);

Integer integer_of(const Value& value) {
    Number number;
    if (!to_number(value, number))
        fail_template(ErrorKind::invalid, "a test needs a number, not a {}", value.type_name());
    if (number.is_real)
        fail_template(ErrorKind::unsupported, "this test of a float is not supported");
    return number.integer;
}

Integer remainder(Integer left, Integer right) {
    if (right == 0) fail_template(ErrorKind::invalid, "division by zero");
    return right == -1 ? 0 : left % right;
}

bool is_number(const Value& value) {
    Number number;
    return to_number(value, number);
}

// Undefined passes, as it does in jinja2: it has a length and can be iterated.
bool is_iterable(const Value& value) {
    return value.text() || value.list() || value.dict() || value.is_undefined();
}

bool passes_as_sequence(const Value& value) {
    const List* list = value.list();
    if (list) return list->kind != List::Kind::view && list->kind != List::Kind::iterator;
    return is_iterable(value);
}

template <Order order>
bool in_order(const Value& value, const Arguments& arguments, Budget& budget) {
    return ordered(value, order, arguments[0], budget);
}

bool is_equal(const Value& value, const Arguments& arguments, Budget& budget) {
    return equal(value, arguments[0], budget);
}

bool is_unequal(const Value& value, const Arguments& arguments, Budget& budget) {
    return !equal(value, arguments[0], budget);
}

bool same_as(const Value& value, const Arguments& arguments, Budget&) {
    const Value& other = arguments[0];
    const bool *left = value.get<bool>(), *right = other.get<bool>();
    if ((left || value.is_none()) && (right || other.is_none()))
        return left && right ? *left == *right : !left && !right;
    if (left || right || value.is_none() || other.is_none()) return false;
    fail_template(ErrorKind::unsupported, "'sameas' is supported for true, false and none alone");
}

struct KnownTest {
    std::string_view name;
    std::size_t arguments;
    Check function;
};

#define ESPALIER_TEST [](const Value& value, const Arguments&, Budget&) -> bool
constexpr KnownTest kTests[] = {{"defined", 0, ESPALIER_TEST{return !value.is_undefined();
}  // namespace
}  // namespace espalier::chat
, {"undefined", 0, ESPALIER_TEST{return value.is_undefined();
}
}
, {"none", 0, ESPALIER_TEST{return value.is_none();
}
}
, {"boolean", 0, ESPALIER_TEST{return value.get<bool>() != nullptr;
}
}
, {"true", 0, ESPALIER_TEST{return value.get<bool>() && *value.get<bool>();
}
}
, {"false", 0, ESPALIER_TEST{return value.get<bool>() && !*value.get<bool>();
}
}
, {"integer", 0, ESPALIER_TEST{return value.get<Integer>() != nullptr;
}
}
, {"float", 0, ESPALIER_TEST{return value.get<double>() != nullptr;
}
}
, {"number", 0, ESPALIER_TEST{return is_number(value);
}
}
, {"string", 0, ESPALIER_TEST{return value.text() != nullptr;
}
}
, {"mapping", 0, ESPALIER_TEST{return value.dict() != nullptr;
}
}
, {"sequence", 0, ESPALIER_TEST{return passes_as_sequence(value);
}
}
, {"iterable", 0, ESPALIER_TEST{return is_iterable(value);
}
}
, {"callable", 0, ESPALIER_TEST{return value.get<chat::Function>() || value.get<const Macro*>();
}
}
, {"odd", 0, ESPALIER_TEST{return remainder(integer_of(value), 2) != 0;
}
}
, {"even", 0, ESPALIER_TEST{return remainder(integer_of(value), 2) == 0;
}
}
,
    {"divisibleby", 1,
     [](const Value& value, const Arguments& arguments, Budget&) {
         return remainder(integer_of(value), integer_of(arguments[0])) == 0;
     }},
    {"in", 1,
     [](const Value& value, const Arguments& arguments, Budget& budget) {
         return contains(arguments[0], value, budget);
     }},
    {"sameas", 1, same_as}, {"eq", 1, is_equal}, {"equalto", 1, is_equal}, {"ne", 1, is_unequal},
    {"lt", 1, in_order<Order::less>}, {"lessthan", 1, in_order<Order::less>},
    {"le", 1, in_order<Order::less_equal>}, {"gt", 1, in_order<Order::greater>},
    {"greaterthan", 1, in_order<Order::greater>}, {"ge", 1, in_order<Order::greater_equal>},
    // By these names selectattr and its like ask for them.
    {"==", 1, is_equal}, {"!=", 1, is_unequal}, {"<", 1, in_order<Order::less>},
    {"<=", 1, in_order<Order::less_equal>}, {">", 1, in_order<Order::greater>},
    {">=", 1, in_order<Order::greater_equal>},
}
;
#undef ESPALIER_TEST

const KnownTest* find_test(std::string_view name) {
    const auto* found = std::ranges::find(kTests, name, &KnownTest::name);
    return found == std::end(kTests) ? nullptr : found;
}

}  // namespace

bool is_test(std::string_view name) { return find_test(name) != nullptr; }

bool call_test(std::string_view name, const Value& value, const std::vector<Value>& arguments,
               Budget& budget) {
    budget.step();
    const KnownTest* test = find_test(name);
    if (!test) fail_template(ErrorKind::unsupported, "the test '{}' is not supported", name);
    if (arguments.size() != test->arguments)
        fail_template(ErrorKind::invalid, "the test '{}' takes {} arguments, got {}", name,
                      test->arguments, arguments.size());
    return test->function(value, arguments, budget);
}

}  // namespace espalier::chat
