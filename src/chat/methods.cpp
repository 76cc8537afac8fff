// SPDX-License-Identifier: Apache-2.0
#include "chat/methods.hpp"

#include <algorithm>

#include "chat/access.hpp"
#include "chat/text_operations.hpp"

namespace espalier::chat {
namespace {

// dir(str), dir(list), dir(tuple) and dir(dict) of Python 3.11 without what begins with "__".
constexpr std::string_view kTextMethods[] = {
    "capitalize",   "casefold",    "center",    "count",      "encode",       "endswith",
    "expandtabs",   "find",        "format",    "format_map", "index",        "isalnum",
    "isalpha",      "isascii",     "isdecimal", "isdigit",    "isidentifier", "islower",
    "isnumeric",    "isprintable", "isspace",   "istitle",    "isupper",      "join",
    "ljust",        "lower",       "lstrip",    "maketrans",  "partition",    "removeprefix",
    "removesuffix", "replace",     "rfind",     "rindex",     "rjust",        "rpartition",
    "rsplit",       "rstrip",      "split",     "splitlines", "startswith",   "strip",
    "swapcase",     "title",       "translate", "upper",      "zfill"};
constexpr std::string_view kListMethods[] = {"append", "clear",   "copy",   "count",
                                             "extend", "index",   "insert", "pop",
                                             "remove", "reverse", "sort"};
constexpr std::string_view kTupleMethods[] = {"count", "index"};
constexpr std::string_view kDictMethods[] = {"clear",      "copy",   "fromkeys", "get",
                                             "items",      "keys",   "pop",      "popitem",
                                             "setdefault", "update", "values"};

template <std::size_t n>
bool has(const std::string_view (&names)[n], std::string_view name) {
    return std::ranges::find(names, name) != std::end(names);
}

std::int64_t count_argument(const Value* value, std::string_view what) {
    return value ? integer_argument(*value, what) : -1;
}

const Text* optional_text(const Value* value, std::string_view what) {
    return value && !value->is_none() ? &text_argument(*value, what) : nullptr;
}

Value list_of(std::vector<Text> parts, Budget& budget) {
    budget.step(parts.size());
    List list;
    for (Text& part : parts) list.items.emplace_back(std::move(part));
    return Value(std::move(list));
}

Value join(const Text& separator, const Value& sequence, Budget& budget) {
    const std::vector<Value> items = elements(sequence, budget);
    Text out;
    for (std::size_t i = 0; i < items.size(); ++i) {
        const Text& item = text_argument(items[i], "str.join");
        budget.touch(item.size() + separator.size());
        if (i > 0) out.append(separator);
        out.append(item);
    }
    return Value(std::move(out));
}

bool meets(const Text& text, const Value& affix, bool at_start, Budget& budget) {
    if (const List* list = affix.list(); list && list->kind == List::Kind::tuple)
        return std::ranges::any_of(list->items, [&](const Value& item) {
            return !item.list() && meets(text, item, at_start, budget);
        });
    const std::string& part = text_argument(affix, at_start ? "startswith" : "endswith").bytes();
    budget.touch(part.size());
    return at_start ? text.bytes().starts_with(part) : text.bytes().ends_with(part);
}

Value without_affix(const Text& text, const Text& affix, bool at_start, Budget& budget) {
    budget.touch(text.size());
    const bool found =
        at_start ? text.bytes().starts_with(affix.bytes()) : text.bytes().ends_with(affix.bytes());
    if (!found) return Value(text);
    return Value(at_start ? text.slice(affix.size(), text.size())
                          : text.slice(0, text.size() - affix.size()));
}

Value find_in(const Text& text, const Text& part, Budget& budget) {
    const std::size_t at = find_text(text.bytes(), part.bytes(), 0, budget);
    if (at == std::string::npos) return Value(Integer{-1});
    budget.touch(at);
    return Value::count(code_points(std::string_view(text.bytes()).substr(0, at)));
}

Value split(const Text& text, const CallArguments& arguments, bool from_right, Budget& budget) {
    const auto bound = bind(arguments, from_right ? "rsplit" : "split", {"sep", "maxsplit"}, 0);
    const Text* separator = optional_text(bound[0], "split");
    const std::int64_t splits = count_argument(bound[1], "split");
    if (!from_right) return list_of(split_text(text, separator, splits, budget), budget);
    if (!separator)
        fail_template(ErrorKind::unsupported, "rsplit without a separator is not supported");
    return list_of(split_text_from_right(text, *separator, splits, budget), budget);
}

Value strip(const Text& text, const CallArguments& arguments, Side side, Budget& budget) {
    const auto bound = bind(arguments, "strip", {"chars"}, 0);
    return Value(strip_text(text, optional_text(bound[0], "strip"), side, budget));
}

Value call_on_text(const Text& text, std::string_view name, const CallArguments& arguments,
                   Budget& budget) {
    const auto only = [&](std::string_view parameter) -> const Value& {
        return *bind(arguments, name, {parameter}, 1)[0];
    };
    const auto changed = [&](Case to) {
        bind(arguments, name, {}, 0);
        return Value(change_case(text, to, budget));
    };
    if (name == "split") return split(text, arguments, false, budget);
    if (name == "rsplit") return split(text, arguments, true, budget);
    if (name == "strip") return strip(text, arguments, Side::both, budget);
    if (name == "lstrip") return strip(text, arguments, Side::left, budget);
    if (name == "rstrip") return strip(text, arguments, Side::right, budget);
    if (name == "startswith") return Value(meets(text, only("prefix"), true, budget));
    if (name == "endswith") return Value(meets(text, only("suffix"), false, budget));
    if (name == "removeprefix")
        return without_affix(text, text_argument(only("prefix"), name), true, budget);
    if (name == "removesuffix")
        return without_affix(text, text_argument(only("suffix"), name), false, budget);
    if (name == "find") return find_in(text, text_argument(only("sub"), name), budget);
    if (name == "join") return join(text, only("iterable"), budget);
    if (name == "lower") return changed(Case::lower);
    if (name == "upper") return changed(Case::upper);
    if (name == "capitalize") return changed(Case::capitalized);
    if (name == "replace") {
        const auto bound = bind(arguments, name, {"old", "new", "count"}, 2);
        return Value(replace_text(text, text_argument(*bound[0], name),
                                  text_argument(*bound[1], name), count_argument(bound[2], name),
                                  budget));
    }
    fail_template(ErrorKind::unsupported, "the method '{}' of a text is not supported", name);
}

Value call_on_dict(const Dict& dict, std::string_view name, const CallArguments& arguments,
                   Budget& budget) {
    budget.step(1 + dict.entries.size() / 8);
    if (name == "get") {
        const auto bound = bind(arguments, name, {"key", "default"}, 1);
        const Text* key = bound[0]->text();
        if (const Value* found = key ? dict.find(key->bytes()) : nullptr) return *found;
        return bound[1] ? *bound[1] : Value();
    }
    if (name != "items" && name != "keys" && name != "values")
        fail_template(ErrorKind::unsupported, "the method '{}' of a dict is not supported", name);
    bind(arguments, name, {}, 0);
    List view{.kind = List::Kind::view};
    for (const Dict::Entry& entry : dict.entries) {
        budget.step();
        if (name == "keys") view.items.emplace_back(entry.key);
        if (name == "values") view.items.push_back(entry.value);
        if (name == "items")
            view.items.emplace_back(
                List{.kind = List::Kind::tuple, .items = {Value(entry.key), entry.value}});
    }
    return Value(std::move(view));
}

}  // namespace

bool is_method(const Value& object, std::string_view name) {
    if (object.text()) return has(kTextMethods, name);
    if (object.dict()) return has(kDictMethods, name);
    const List* list = object.list();
    if (!list) return false;
    return list->kind == List::Kind::list    ? has(kListMethods, name)
           : list->kind == List::Kind::tuple ? has(kTupleMethods, name)
                                             : false;
}

Value call_method(const Value& object, std::string_view name, const CallArguments& arguments,
                  Budget& budget) {
    budget.step();
    if (is_method(object, name)) {
        if (const Text* text = object.text()) return call_on_text(*text, name, arguments, budget);
        if (const Dict* dict = object.dict()) return call_on_dict(*dict, name, arguments, budget);
        fail_template(ErrorKind::unsupported, "the method '{}' of a {} is not supported", name,
                      object.type_name());
    }
    const Value attribute = get_attribute(object, name, budget);
    require_defined(attribute);
    fail_template(ErrorKind::invalid, "'{}' is a {}, which cannot be called", name,
                  attribute.type_name());
}

}  // namespace espalier::chat
