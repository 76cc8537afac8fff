// SPDX-License-Identifier: Apache-2.0
#include "chat/value.hpp"

#include <algorithm>
#include <type_traits>

#include "chat/text_operations.hpp"
#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

// Deeper values come from no request (JSON is read to 64) and from no template we know.
constexpr std::int64_t kMaxNesting = 100;

std::int64_t checked_depth(std::int64_t depth) {
    if (depth > kMaxNesting)
        fail_template(ErrorKind::exhausted, "lists and dicts are nested more than {} deep",
                      kMaxNesting);
    return depth;
}

bool equal_lists(const List& left, const List& right, Budget& budget) {
    using Kind = List::Kind;
    const bool plain = left.kind == Kind::list || left.kind == Kind::tuple;
    if (left.kind == right.kind && !plain)
        fail_template(ErrorKind::unsupported, "comparing ranges or iterators is not supported");
    if (left.kind != right.kind || left.items.size() != right.items.size()) return false;
    return std::ranges::equal(left.items, right.items,
                              [&](const Value& a, const Value& b) { return equal(a, b, budget); });
}

bool equal_dicts(const Dict& left, const Dict& right, Budget& budget) {
    if (left.entries.size() != right.entries.size()) return false;
    budget.step(left.entries.size() * (1 + right.entries.size() / 8));
    return std::ranges::all_of(left.entries, [&](const Dict::Entry& entry) {
        const Value* other = right.find(entry.key->bytes());
        return other && equal(entry.value, *other, budget);
    });
}

template <typename T>
bool in_order(const T& left, Order order, const T& right) {
    switch (order) {
        case Order::less:
            return left < right;
        case Order::less_equal:
            return left <= right;
        case Order::greater:
            return left > right;
        case Order::greater_equal:
            return left >= right;
    }
    return false;
}

bool ordered_lists(const List& left, Order order, const List& right, Budget& budget) {
    const std::size_t common = std::min(left.items.size(), right.items.size());
    for (std::size_t i = 0; i < common; ++i)
        if (!equal(left.items[i], right.items[i], budget))
            return ordered(left.items[i], order, right.items[i], budget);
    return in_order(left.items.size(), order, right.items.size());
}

}  // namespace

Value::Value(List value) {
    std::int64_t depth = 0;
    for (const Value& item : value.items) depth = std::max(depth, item.depth());
    value.depth = checked_depth(depth + 1);
    data_ = std::make_shared<const List>(std::move(value));
}

Value::Value(Dict value) {
    std::int64_t depth = 0;
    for (const Dict::Entry& entry : value.entries) depth = std::max(depth, entry.value.depth());
    value.depth = checked_depth(depth + 1);
    data_ = std::make_shared<const Dict>(std::move(value));
}

const List* Value::list() const {
    const auto* found = std::get_if<std::shared_ptr<const List>>(&data_);
    return found ? found->get() : nullptr;
}

const Dict* Value::dict() const {
    const auto* found = std::get_if<std::shared_ptr<const Dict>>(&data_);
    return found ? found->get() : nullptr;
}

std::int64_t Value::depth() const {
    if (const List* found = list()) return found->depth;
    if (const Dict* found = dict()) return found->depth;
    return 0;
}

std::string Value::type_name() const {
    struct Names {
        const char* operator()(None) const { return "None"; }
        const char* operator()(bool) const { return "bool object"; }
        const char* operator()(Integer) const { return "int object"; }
        const char* operator()(double) const { return "float object"; }
        const char* operator()(const Undefined&) const { return "undefined value"; }
        const char* operator()(const TextPtr&) const { return "str object"; }
        const char* operator()(const std::shared_ptr<const List>& list) const {
            switch (list->kind) {
                case List::Kind::list:
                    return "list object";
                case List::Kind::tuple:
                    return "tuple object";
                case List::Kind::range:
                    return "range object";
                case List::Kind::view:
                    return "dict view";
                case List::Kind::iterator:
                    return "iterator";
            }
            return "list object";
        }
        const char* operator()(const std::shared_ptr<const Dict>&) const { return "dict object"; }
        const char* operator()(Namespace*) const { return "namespace object"; }
        const char* operator()(Function) const { return "function"; }
        const char* operator()(const Macro*) const { return "macro"; }
    };
    return std::visit(Names{}, data_);
}

const Value* Dict::find(std::string_view key) const {
    const auto found = std::ranges::find_if(
        entries, [&](const Entry& entry) { return entry.key->bytes() == key; });
    return found == entries.end() ? nullptr : &found->value;
}

const Value* Namespace::find(std::string_view name) const {
    const auto found =
        std::ranges::find_if(attributes, [&](const auto& pair) { return pair.first == name; });
    return found == attributes.end() ? nullptr : &found->second;
}

void Namespace::set(std::string_view name, Value value) {
    // Transformers' rule: such names could be internals of its interpreter.
    if (name.starts_with('_'))
        fail_template(ErrorKind::invalid, "a namespace cannot hold '{}', which begins with '_'",
                      name);
    const auto found =
        std::ranges::find_if(attributes, [&](const auto& pair) { return pair.first == name; });
    if (found == attributes.end()) {
        attributes.emplace_back(name, std::move(value));
    } else {
        found->second = std::move(value);
    }
}

bool to_number(const Value& value, Number& number) {
    if (const bool* found = value.get<bool>()) {
        number = {.integer = *found ? 1 : 0};
    } else if (const Integer* integer = value.get<Integer>()) {
        number = {.integer = *integer};
    } else if (const double* real = value.get<double>()) {
        number = {.is_real = true, .real = *real};
    } else {
        return false;
    }
    return true;
}

bool truth(const Value& value) {
    Number number;
    if (to_number(value, number)) return number.is_real ? number.real != 0 : number.integer != 0;
    if (const Text* text = value.text()) return !text->empty();
    if (const List* list = value.list())
        return list->kind == List::Kind::iterator || !list->items.empty();
    if (const Dict* dict = value.dict()) return !dict->entries.empty();
    return !value.is_none() && !value.is_undefined();
}

bool equal(const Value& left, const Value& right, Budget& budget) {
    budget.step();
    Number a, b;
    if (to_number(left, a) && to_number(right, b))
        return a.is_real || b.is_real ? a.as_real() == b.as_real() : a.integer == b.integer;
    if (const Text* x = left.text(), *y = right.text(); x && y) {
        if (x->size() != y->size()) return false;
        budget.touch(x->size());
        return x->bytes() == y->bytes();
    }
    if (const List* x = left.list(), *y = right.list(); x && y) return equal_lists(*x, *y, budget);
    if (const Dict* x = left.dict(), *y = right.dict(); x && y) return equal_dicts(*x, *y, budget);
    if (left.name_space() || right.name_space()) return left.name_space() == right.name_space();
    if (const auto* x = left.get<const Macro*>(), *y = right.get<const Macro*>(); x && y)
        return *x == *y;
    if (const auto* x = left.get<Function>(), *y = right.get<Function>(); x && y) return *x == *y;
    return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

bool ordered(const Value& left, Order order, const Value& right, Budget& budget) {
    budget.step();
    Number a, b;
    if (to_number(left, a) && to_number(right, b))
        return a.is_real || b.is_real ? in_order(a.as_real(), order, b.as_real())
                                      : in_order(a.integer, order, b.integer);
    if (const Text* x = left.text(), *y = right.text(); x && y) {
        budget.touch(std::min(x->size(), y->size()));
        return in_order(x->bytes(), order, y->bytes());  // UTF-8 sorts as its code points do
    }
    const List *x = left.list(), *y = right.list();
    if (x && y && x->kind == y->kind &&
        (x->kind == List::Kind::list || x->kind == List::Kind::tuple))
        return ordered_lists(*x, order, *y, budget);
    fail_template(ErrorKind::invalid, "a {} and a {} have no order", left.type_name(),
                  right.type_name());
}

bool contains(const Value& container, const Value& element, Budget& budget) {
    if (const Text* text = container.text()) {
        const Text* part = element.text();
        if (!part)
            fail_template(ErrorKind::invalid, "'in' a text needs a text on its left, not a {}",
                          element.type_name());
        return find_text(text->bytes(), part->bytes(), 0, budget) != std::string::npos;
    }
    if (const Dict* dict = container.dict()) {
        budget.step(1 + dict->entries.size() / 8);
        const Text* key = element.text();
        return key && dict->find(key->bytes());
    }
    if (const List* list = container.list())
        return std::ranges::any_of(list->items,
                                   [&](const Value& item) { return equal(item, element, budget); });
    if (container.is_undefined()) return false;
    fail_template(ErrorKind::invalid, "a {} cannot stand to the right of 'in'",
                  container.type_name());
}

std::vector<Value> elements(const Value& value, Budget& budget) {
    std::vector<Value> out;
    if (const List* list = value.list()) {
        budget.step(list->items.size());
        return list->items;
    }
    if (const Dict* dict = value.dict()) {
        budget.step(dict->entries.size());
        for (const Dict::Entry& entry : dict->entries) out.emplace_back(entry.key);
        return out;
    }
    if (const Text* text = value.text()) {
        budget.step(text->size());
        for (std::size_t at = 0; at < text->size();) {
            const std::size_t end =
                at + text::utf8_length(static_cast<unsigned char>(text->bytes()[at]));
            out.emplace_back(text->slice(at, end));
            at = end;
        }
        return out;
    }
    if (value.is_undefined()) return out;
    fail_template(ErrorKind::invalid, "a {} is not iterable", value.type_name());
}

std::size_t length(const Value& value) {
    if (const Text* text = value.text()) return code_points(text->bytes());
    if (const Dict* dict = value.dict()) return dict->entries.size();
    if (const List* list = value.list(); list && list->kind != List::Kind::iterator)
        return list->items.size();
    if (value.is_undefined()) return 0;
    fail_template(ErrorKind::invalid, "a {} has no length", value.type_name());
}

}  // namespace espalier::chat
