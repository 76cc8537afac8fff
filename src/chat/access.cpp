// SPDX-License-Identifier: Apache-2.0
#include "chat/access.hpp"

#include <algorithm>

#include "chat/call_arguments.hpp"
#include "chat/methods.hpp"
#include "chat/print.hpp"
#include "chat/text_operations.hpp"

namespace espalier::chat {
namespace {

Value missing(const Value& object, std::string_view name) {
    return Value::undefined(fmt::format("'{}' has no attribute '{}'", object.type_name(), name));
}

// Attribute that jinja2 would find on the Python object itself. Methods are no values here.
Value own_attribute(const Value& object, std::string_view name) {
    if (name.starts_with("__"))
        fail_template(ErrorKind::unsupported, "'{}' would be an internal of the interpreter", name);
    if (is_method(object, name))
        fail_template(ErrorKind::unsupported, "the method '{}' of a {} must be called", name,
                      object.type_name());
    return missing(object, name);
}

std::optional<std::size_t> place(std::int64_t index, std::size_t length) {
    const auto size = static_cast<std::int64_t>(length);
    if (index < -size || index >= size) return std::nullopt;
    return static_cast<std::size_t>(index < 0 ? index + size : index);
}

Value indexed(const Value& object, const Value& index, Budget& budget) {
    const std::int64_t number = integer_argument(index, "an index");
    const auto none = [&] {
        return Value::undefined(fmt::format("'{}' has no element {}", object.type_name(), number));
    };
    if (const List* list = object.list();
        list && list->kind != List::Kind::view && list->kind != List::Kind::iterator) {
        const auto at = place(number, list->items.size());
        return at ? list->items[*at] : none();
    }
    if (const Text* text = object.text()) {
        budget.touch(text->size());
        const auto at = place(number, code_points(text->bytes()));
        if (!at) return none();
        return Value(slice_text(
            *text, {.begin = static_cast<std::int64_t>(*at), .count = 1, .step = 1}, budget));
    }
    return none();
}

std::optional<std::int64_t> bound_of(const Value& value) {
    require_defined(value);
    if (value.is_none()) return std::nullopt;
    return integer_argument(value, "a slice");
}

}  // namespace

void require_defined(const Value& value) {
    if (const Undefined* undefined = value.get<Undefined>())
        fail_template(ErrorKind::invalid, "{}", *undefined->reason);
}

Value get_attribute(const Value& object, std::string_view name, Budget& budget) {
    require_defined(object);
    if (const Namespace* name_space = object.name_space()) {
        const Value* found = name_space->find(name);
        return found ? *found : own_attribute(object, name);
    }
    // jinja2 asks the object first, so a key that is called as a method of dict is hidden.
    if (is_method(object, name)) return own_attribute(object, name);
    if (const Dict* dict = object.dict()) {
        budget.step(1 + dict->entries.size() / 8);
        if (const Value* found = dict->find(name)) return *found;
    }
    return own_attribute(object, name);
}

Value get_item(const Value& object, const Value& index, Budget& budget) {
    require_defined(object);
    if (const Text* name = index.text()) {
        if (const Dict* dict = object.dict()) {
            budget.step(1 + dict->entries.size() / 8);
            if (const Value* found = dict->find(name->bytes())) return *found;
        }
        if (const Namespace* name_space = object.name_space())
            if (const Value* found = name_space->find(name->bytes())) return *found;
        return own_attribute(object, name->bytes());
    }
    Number number;
    if (to_number(index, number) && !number.is_real) return indexed(object, index, budget);
    return Value::undefined(
        fmt::format("'{}' has no element of a {}", object.type_name(), index.type_name()));
}

Value get_slice(const Value& object, const Value& begin, const Value& end, const Value& step,
                Budget& budget) {
    require_defined(object);
    const std::int64_t stride = bound_of(step).value_or(1);
    if (const Text* text = object.text()) {
        budget.touch(text->size());
        const SliceBounds bounds =
            slice_bounds(code_points(text->bytes()), bound_of(begin), bound_of(end), stride);
        return Value(slice_text(*text, bounds, budget));
    }
    const List* list = object.list();
    if (!list || list->kind == List::Kind::view || list->kind == List::Kind::iterator)
        fail_template(ErrorKind::invalid, "a {} cannot be sliced", object.type_name());
    const SliceBounds bounds =
        slice_bounds(list->items.size(), bound_of(begin), bound_of(end), stride);
    budget.step(static_cast<std::size_t>(bounds.count));
    List out{.kind = list->kind};
    for (std::int64_t i = 0, at = bounds.begin; i < bounds.count; ++i) {
        out.items.push_back(list->items[static_cast<std::size_t>(at)]);
        if (i + 1 < bounds.count) at += bounds.step;
    }
    return Value(std::move(out));
}

Value get_path(const Value& object, const Value& path, Budget& budget) {
    const Text* text = path.text();
    if (!text) return get_item(object, path, budget);
    const Text dot(".");
    Value at = object;
    for (Text& part : split_text(*text, &dot, -1, budget)) {
        const std::string& name = part.bytes();
        const bool index = !name.empty() && name.size() < 10 &&
                           std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
        at = get_item(at, index ? Value(static_cast<Integer>(std::stol(name))) : Value(part),
                      budget);
    }
    return at;
}

}  // namespace espalier::chat
