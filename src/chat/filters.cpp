// SPDX-License-Identifier: Apache-2.0
#include "chat/filters.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/access.hpp"
#include "chat/print.hpp"
#include "chat/tests.hpp"
#include "chat/text_operations.hpp"

namespace espalier::chat {
namespace {

using Apply = Value (*)(const Value&, const CallArguments&, Budget&);

Value count(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "length", {}, 0);
    if (const Text* text = value.text()) budget.touch(text->size());
    return Value::count(length(value));
}

Value trim(const Value& value, const CallArguments& arguments, Budget& budget) {
    const auto bound = bind(arguments, "trim", {"chars"}, 0);
    const Text* chars =
        bound[0] && !bound[0]->is_none() ? &text_argument(*bound[0], "trim") : nullptr;
    return Value(strip_text(*print(value, budget), chars, Side::both, budget));
}

template <Case to>
Value with_case(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "a change of case", {}, 0);
    return Value(change_case(*print(value, budget), to, budget));
}

Value replace(const Value& value, const CallArguments& arguments, Budget& budget) {
    const auto bound = bind(arguments, "replace", {"old", "new", "count"}, 2);
    const bool all = !bound[2] || bound[2]->is_none();
    return Value(replace_text(*print(value, budget), *print(*bound[0], budget),
                              *print(*bound[1], budget),
                              all ? -1 : integer_argument(*bound[2], "replace"), budget));
}

Value join(const Value& value, const CallArguments& arguments, Budget& budget) {
    const auto bound = bind(arguments, "join", {"d", "attribute"}, 0);
    const TextPtr separator = bound[0] ? print(*bound[0], budget) : std::make_shared<const Text>();
    const std::vector<Value> items = elements(value, budget);
    Text out;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const TextPtr item =
            print(bound[1] ? get_path(items[i], *bound[1], budget) : items[i], budget);
        budget.touch(item->size() + separator->size());
        if (i > 0) out.append(*separator);
        out.append(*item);
    }
    return Value(std::move(out));
}

Value first(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "first", {}, 0);
    if (value.text()) return get_item(value, Value(Integer{0}), budget);
    std::vector<Value> items = elements(value, budget);
    return items.empty() ? Value::undefined("No first item, sequence was empty.")
                         : std::move(items.front());
}

Value last(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "last", {}, 0);
    if (value.text()) return get_item(value, Value(Integer{-1}), budget);
    std::vector<Value> items = elements(value, budget);
    return items.empty() ? Value::undefined("No last item, sequence was empty.")
                         : std::move(items.back());
}

Value list(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "list", {}, 0);
    return Value(List{.items = elements(value, budget)});
}

Value string(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "string", {}, 0);
    return Value(print(value, budget));
}

Value reverse(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "reverse", {}, 0);
    if (value.text()) return get_slice(value, Value(), Value(), Value(Integer{-1}), budget);
    std::vector<Value> items = elements(value, budget);
    std::ranges::reverse(items);
    return Value(List{.kind = List::Kind::iterator, .items = std::move(items)});
}

Value otherwise(const Value& value, const CallArguments& arguments, Budget&) {
    const auto bound = bind(arguments, "default", {"default_value", "boolean"}, 0);
    const bool falsy_too = bound[1] && truth(*bound[1]);
    if (!value.is_undefined() && (!falsy_too || truth(value))) return value;
    return bound[0] ? *bound[0] : Value(Text());
}

Value items(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "items", {}, 0);
    List pairs{.kind = List::Kind::iterator};
    if (value.is_undefined()) return Value(std::move(pairs));
    const Dict* dict = value.dict();
    if (!dict) fail_template(ErrorKind::invalid, "items needs a dict, not a {}", value.type_name());
    for (const Dict::Entry& entry : dict->entries) {
        budget.step();
        pairs.items.emplace_back(
            List{.kind = List::Kind::tuple, .items = {Value(entry.key), entry.value}});
    }
    return Value(std::move(pairs));
}

Value sorted_pairs(const Value& value, const CallArguments& arguments, Budget& budget) {
    bind(arguments, "dictsort", {}, 0);
    const Dict* dict = value.dict();
    if (!dict)
        fail_template(ErrorKind::invalid, "dictsort needs a dict, not a {}", value.type_name());
    std::vector<std::pair<std::string, const Dict::Entry*>> entries;
    for (const Dict::Entry& entry : dict->entries) {
        budget.step(8);
        entries.emplace_back(change_case(*entry.key, Case::lower, budget).bytes(), &entry);
    }
    std::ranges::stable_sort(entries, {},
                             [](const auto& pair) -> const std::string& { return pair.first; });
    List pairs;
    for (const auto& [key, entry] : entries)
        pairs.items.emplace_back(
            List{.kind = List::Kind::tuple, .items = {Value(entry->key), entry->value}});
    return Value(std::move(pairs));
}

// int(text): white space, a sign, digits. Anything else is left to float().
std::optional<Integer> parse_integer(std::string_view text) {
    if (text.starts_with('+')) text.remove_prefix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range)
        fail_template(ErrorKind::unsupported, "int of a number this large is not supported");
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::optional<double> parse_real(std::string_view text) {
    if (text.starts_with('+')) text.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

Value integer(const Value& value, const CallArguments& arguments, Budget& budget) {
    const auto bound = bind(arguments, "int", {"default"}, 0);
    const Value fallback = bound[0] ? *bound[0] : Value(Integer{0});
    std::optional<double> real;
    Number number;
    if (to_number(value, number)) {
        if (!number.is_real) return Value(number.integer);
        real = number.real;
    } else if (const Text* text = value.text()) {
        const Text stripped = strip_text(*text, nullptr, Side::both, budget);
        if (stripped.size() > 400) return fallback;
        if (const auto parsed = parse_integer(stripped.bytes())) return Value(*parsed);
        real = parse_real(stripped.bytes());
    } else if (value.is_undefined()) {
        require_defined(value);
    }
    if (!real || !std::isfinite(*real)) return fallback;
    if (std::fabs(*real) > 1e37)
        fail_template(ErrorKind::unsupported, "int of a number this large is not supported");
    return Value(static_cast<Integer>(*real));
}

// selectattr, rejectattr, select, reject: the elements whose test gives `wanted`.
Value filtered(const Value& value, const CallArguments& arguments, bool by_attribute, bool wanted,
               Budget& budget) {
    if (!arguments.named.empty())
        fail_template(ErrorKind::unsupported, "select with '{}=' is not supported",
                      arguments.named[0].first);
    const std::vector<Value>& given = arguments.positional;
    const std::size_t test_at = by_attribute ? 1 : 0;
    if (by_attribute && given.empty())
        fail_template(ErrorKind::invalid, "selectattr needs the name of an attribute");
    const bool tests = given.size() > test_at;
    std::vector<Value> test_arguments;
    if (tests)
        test_arguments.assign(given.begin() + static_cast<std::ptrdiff_t>(test_at) + 1,
                              given.end());
    List out{.kind = List::Kind::iterator};
    for (const Value& item : elements(value, budget)) {
        const Value subject = by_attribute ? get_path(item, given[0], budget) : item;
        const bool passes = tests ? call_test(text_argument(given[test_at], "select").bytes(),
                                              subject, test_arguments, budget)
                                  : truth(subject);
        if (passes == wanted) out.items.push_back(item);
    }
    return Value(std::move(out));
}

template <bool by_attribute, bool wanted>
Value select(const Value& value, const CallArguments& arguments, Budget& budget) {
    return filtered(value, arguments, by_attribute, wanted, budget);
}

Value map(const Value& value, const CallArguments& arguments, Budget& budget) {
    List out{.kind = List::Kind::iterator};
    if (arguments.positional.empty()) {
        const auto bound = bind(arguments, "map", {"attribute", "default"}, 1);
        for (const Value& item : elements(value, budget)) {
            Value found = get_path(item, *bound[0], budget);
            if (found.is_undefined() && bound[1] && !bound[1]->is_none()) found = *bound[1];
            out.items.push_back(std::move(found));
        }
        return Value(std::move(out));
    }
    const std::string& name = text_argument(arguments.positional[0], "map").bytes();
    CallArguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : elements(value, budget))
        out.items.push_back(call_filter(name, item, rest, budget));
    return Value(std::move(out));
}

// A number of spaces, or the text itself.
void set_indent(const Value& value, JsonStyle& style) {
    style.indented = true;
    style.item_separator = Text(",");
    if (const Text* text = value.text()) {
        if (!text->content().empty())
            fail_template(ErrorKind::unsupported, "tojson: an indent from the request");
        style.indent = text->bytes();
    } else {
        style.indent.assign(static_cast<std::size_t>(std::clamp<std::int64_t>(
                                integer_argument(value, "tojson"), 0, 1000)),
                            ' ');
    }
    if (style.indent.size() > 16)
        fail_template(ErrorKind::unsupported, "tojson: an indent of more than 16 is not supported");
}

Value to_json(const Value& value, const CallArguments& arguments, Budget& budget) {
    const auto bound =
        bind(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
    JsonStyle style;
    if (bound[0]) style.ensure_ascii = truth(*bound[0]);
    if (bound[1] && !bound[1]->is_none()) set_indent(*bound[1], style);
    if (bound[2] && !bound[2]->is_none()) {
        const std::vector<Value> both = elements(*bound[2], budget);
        if (both.size() != 2)
            fail_template(ErrorKind::invalid, "tojson: {} separators, expected 2", both.size());
        style.item_separator = text_argument(both[0], "tojson");
        style.key_separator = text_argument(both[1], "tojson");
    }
    if (bound[3]) style.sort_keys = truth(*bound[3]);
    return Value(print_json(value, style, budget));
}

struct KnownFilter {
    std::string_view name;
    Apply apply;
};
constexpr KnownFilter kFilters[] = {
    {"capitalize", with_case<Case::capitalized>},
    {"count", count},
    {"d", otherwise},
    {"default", otherwise},
    {"dictsort", sorted_pairs},
    {"first", first},
    {"int", integer},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", count},
    {"list", list},
    {"lower", with_case<Case::lower>},
    {"map", map},
    {"reject", select<false, false>},
    {"rejectattr", select<true, false>},
    {"replace", replace},
    {"reverse", reverse},
    {"select", select<false, true>},
    {"selectattr", select<true, true>},
    {"string", string},
    {"tojson", to_json},
    {"trim", trim},
    {"upper", with_case<Case::upper>},
};

const KnownFilter* find_filter(std::string_view name) {
    const auto* found = std::ranges::find(kFilters, name, &KnownFilter::name);
    return found == std::end(kFilters) ? nullptr : found;
}

}  // namespace

bool is_filter(std::string_view name) { return find_filter(name) != nullptr; }

Value call_filter(std::string_view name, const Value& value, const CallArguments& arguments,
                  Budget& budget) {
    budget.step();
    const KnownFilter* filter = find_filter(name);
    if (!filter) fail_template(ErrorKind::unsupported, "the filter '{}' is not supported", name);
    return filter->apply(value, arguments, budget);
}

}  // namespace espalier::chat
