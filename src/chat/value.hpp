// SPDX-License-Identifier: Apache-2.0
// The values of a template: Python's, as far as templates need them. Immutable but for namespaces,
// which their render owns, so no value can come to hold itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "chat/budget.hpp"
#include "chat/text.hpp"

namespace espalier::chat {

struct Macro;  // a node of the template (ast.hpp)
struct List;
struct Dict;
struct Namespace;

using Integer = __int128;  // every number of a request's JSON, and their sums and products

struct Undefined {
    std::shared_ptr<const std::string> reason;  // "'dict object' has no attribute 'x'"
};
struct None {};
enum class Function { range, make_namespace, make_dict, raise_exception, strftime_now };

using TextPtr = std::shared_ptr<const Text>;

class Value {
  public:
    Value() : data_(None{}) {}
    explicit Value(bool value) : data_(value) {}
    explicit Value(Integer value) : data_(value) {}
    explicit Value(double value) : data_(value) {}
    explicit Value(Undefined value) : data_(std::move(value)) {}
    explicit Value(Text value) : data_(std::make_shared<const Text>(std::move(value))) {}
    explicit Value(TextPtr value) : data_(std::move(value)) {}
    explicit Value(List value);
    explicit Value(Dict value);
    explicit Value(Namespace* value) : data_(value) {}
    explicit Value(Function value) : data_(value) {}
    explicit Value(const Macro* value) : data_(value) {}
    static Value undefined(std::string reason) {
        return Value(Undefined{std::make_shared<const std::string>(std::move(reason))});
    }
    static Value count(std::size_t value) { return Value(static_cast<Integer>(value)); }

    // The value if it is of this type, otherwise null.
    template <typename T>
    const T* get() const {
        return std::get_if<T>(&data_);
    }
    const Text* text() const {
        const TextPtr* found = std::get_if<TextPtr>(&data_);
        return found ? found->get() : nullptr;
    }
    const List* list() const;
    const Dict* dict() const;
    Namespace* name_space() const {
        Namespace* const* found = std::get_if<Namespace*>(&data_);
        return found ? *found : nullptr;
    }
    bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
    bool is_none() const { return std::holds_alternative<None>(data_); }

    // Depth of the lists and dicts nested in it, which bounds every recursion over a value.
    std::int64_t depth() const;
    // "str object", "dict object", "None": as jinja2 names it in messages.
    std::string type_name() const;

  private:
    std::variant<None, bool, Integer, double, Undefined, TextPtr, std::shared_ptr<const List>,
                 std::shared_ptr<const Dict>, Namespace*, Function, const Macro*>
        data_;
};

struct List {
    enum class Kind {
        list,
        tuple,
        range,     // is indexed and counted, not printed
        view,      // dict.items() and its like: counted, not indexed, not printed
        iterator,  // what jinja2 makes of map, select and reverse: goes through once
    };
    Kind kind = Kind::list;
    std::vector<Value> items = {};
    std::int64_t depth = 0;  // filled in by Value
};

struct Dict {
    struct Entry {
        TextPtr key;
        Value value;
    };
    std::vector<Entry> entries = {};  // in the order of insertion, keys distinct
    std::int64_t depth = 0;           // filled in by Value

    const Value* find(std::string_view key) const;
};

struct Namespace {
    std::vector<std::pair<std::string, Value>> attributes;

    const Value* find(std::string_view name) const;
    void set(std::string_view name, Value value);
};

bool truth(const Value& value);
bool equal(const Value& left, const Value& right, Budget& budget);
// Python's order of numbers, of texts and of sequences; anything else is a failure. Not a number
// has no order: false whatever is asked, as `less` and `not less` may both be.
enum class Order { less, less_equal, greater, greater_equal };
bool ordered(const Value& left, Order order, const Value& right, Budget& budget);
// `element in container`
bool contains(const Value& container, const Value& element, Budget& budget);
// Items that a for loop goes through. Dicts give their keys, texts their characters.
std::vector<Value> elements(const Value& value, Budget& budget);
std::size_t length(const Value& value);

// Numbers, bools included, as Python's arithmetic sees them.
struct Number {
    bool is_real = false;
    Integer integer = 0;
    double real = 0;
    double as_real() const { return is_real ? real : static_cast<double>(integer); }
};
bool to_number(const Value& value, Number& number);

}  // namespace espalier::chat
