// SPDX-License-Identifier: Apache-2.0
#include "server/fields.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace espalier::server {

using Json = nlohmann::json;

namespace {

constexpr std::int64_t kMostTokenId = std::numeric_limits<std::int32_t>::max();

}  // namespace

const char* json_kind(const Json& value) {
    if (value.is_null()) return "null";
    if (value.is_boolean()) return "a boolean";
    if (value.is_number_integer()) return "an integer";
    if (value.is_number()) return "a number";
    if (value.is_string()) return "a string";
    return value.is_array() ? "a list" : "an object";
}

std::optional<std::int64_t> as_integer(const Json& value) {
    if (value.is_number_unsigned()) {
        const auto number = value.get<std::uint64_t>();
        if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            return std::nullopt;
        return static_cast<std::int64_t>(number);
    }
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (!value.is_number_float()) return std::nullopt;
    const double number = value.get<double>();
    if (std::trunc(number) != number || std::abs(number) > 0x1p53) return std::nullopt;
    return static_cast<std::int64_t>(number);
}

Fields::Fields(const Json& object, std::string path) : object_(&object), path_(std::move(path)) {
    if (!object.is_object())
        error_ = fail_field(ErrorKind::invalid, path_, "an object is expected, not {}",
                            json_kind(object))
                     .value();
}

Fields Fields::describing(Json& schema) {
    static const Json kNothing = Json::object();
    schema["type"] = "object";
    Fields fields(kNothing);
    fields.schema_ = &schema;
    return fields;
}

Json* Fields::property(const char* name) {
    return describes() ? &(*schema_)["properties"][name] : nullptr;
}

void Fields::describe(const char* name, Json detail) {
    Json* schema = property(name);
    if (schema == nullptr) return;
    if (schema->is_null()) *schema = Json::object();
    schema->update(detail);
}

std::string Fields::path_of(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void Fields::fail_at(const std::string& name, std::string sentence, ErrorKind kind) {
    if (!error_ && !describes()) error_ = fail_field(kind, path_of(name), "{}", sentence).value();
}

void Fields::adopt(const Fields& inner) {
    if (!error_) error_ = inner.error_;
}

const Json* Fields::find(const char* name) {
    asked_.insert(name);
    if (error_) return nullptr;
    if (describes()) describe(name, Json::object());
    const auto found = object_->find(name);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
}

void Fields::require(const char* name) {
    if (has(name)) return;
    if (describes())
        (*schema_)["required"].push_back(name);
    else
        fail_at(name, "is missing");
}

void Fields::ignore(std::span<const char* const> names) {
    asked_.insert(names.begin(), names.end());
    if (!describes()) return;
    for (const char* name : names)
        if (property(name)->is_null()) *property(name) = {{"description", "Accepted and ignored."}};
}

std::optional<Fields> Fields::object(const char* name) {
    if (describes()) {
        find(name);
        return describing(*property(name));
    }
    const Json* found = find(name);
    if (found == nullptr) return std::nullopt;
    return Fields(*found, path_of(name));
}

void Fields::each(const char* name, const std::function<void(Fields&, std::size_t)>& read) {
    if (describes()) {
        describe(name, {{"type", "array"}});
        Fields entry = describing((*property(name))["items"]);
        return read(entry, 0);
    }
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_array())
        return fail_at(name, fmt::format("a list is expected, not {}", json_kind(*found)));
    for (std::size_t i = 0; i < found->size() && ok(); ++i) {
        Fields entry((*found)[i], fmt::format("{}[{}]", path_of(name), i));
        read(entry, i);
        adopt(entry);
    }
}

void Fields::read(const char* name, bool& value) {
    if (describes()) describe(name, {{"type", "boolean"}});
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_boolean())
        return fail_at(name, fmt::format("a boolean is expected, not {}", json_kind(*found)));
    value = found->get<bool>();
}

void Fields::read(const char* name, std::string& value) {
    if (describes()) describe(name, {{"type", "string"}});
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_string())
        return fail_at(name, fmt::format("a string is expected, not {}", json_kind(*found)));
    value = found->get<std::string>();
}

void Fields::read_word(const char* name, std::string& value, std::span<const char* const> words,
                       ErrorKind other) {
    if (describes())
        describe(name, {{"enum", Json(std::vector<std::string>(words.begin(), words.end()))}});
    if (!has(name)) return;
    read(name, value);
    if (std::ranges::find(words, value) == words.end())
        fail_at(name,
                words.size() == 1 ? fmt::format("only {} is supported", words.front())
                                  : fmt::format("one of {} is expected", fmt::join(words, ", ")),
                other);
}

void Fields::read(const char* name, float& value) {
    if (describes()) describe(name, {{"type", "number"}});
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_number())
        return fail_at(name, fmt::format("a number is expected, not {}", json_kind(*found)));
    const double number = found->get<double>();
    if (!(std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max())))
        return fail_at(name, fmt::format("{} is too large", number));
    value = static_cast<float>(number);
}

template <typename Number>
void Fields::read_integer(const char* name, Number& value, std::int64_t least, std::int64_t most) {
    if (describes()) describe(name, {{"type", "integer"}, {"minimum", least}, {"maximum", most}});
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_number())
        return fail_at(name, fmt::format("an integer is expected, not {}", json_kind(*found)));
    const std::optional<std::int64_t> number = as_integer(*found);
    if (!number || *number < least || *number > most)
        return fail_at(name,
                       fmt::format("{}, not an integer within {}…{}", found->dump(), least, most));
    value = static_cast<Number>(*number);
}

void Fields::read(const char* name, std::int64_t& value, std::int64_t least, std::int64_t most) {
    read_integer(name, value, least, most);
}

void Fields::read(const char* name, std::int32_t& value, std::int32_t least, std::int32_t most) {
    read_integer(name, value, least, most);
}

void Fields::read(const char* name, std::vector<std::int32_t>& value, std::size_t most) {
    if (describes())
        describe(name, {{"type", "array"},
                        {"items", {{"type", "integer"}, {"minimum", 0}, {"maximum", kMostTokenId}}},
                        {"maxItems", most}});
    const Json* found = find(name);
    if (found == nullptr) return;
    if (!found->is_array())
        return fail_at(name, fmt::format("a list is expected, not {}", json_kind(*found)));
    if (found->size() > most)
        return fail_at(name, fmt::format("{} entries, at most {}", found->size(), most));
    std::vector<std::int32_t> numbers;
    numbers.reserve(found->size());
    for (const Json& entry : *found) {
        const std::optional<std::int64_t> number = as_integer(entry);
        if (!number || *number < 0 || *number > kMostTokenId)
            return fail_at(fmt::format("{}[{}]", name, numbers.size()),
                           fmt::format("a token id is expected, not {}", json_kind(entry)));
        numbers.push_back(static_cast<std::int32_t>(*number));
    }
    value = std::move(numbers);
}

void Fields::read_strings(const char* name, std::vector<std::string>& value, std::size_t most) {
    if (describes())
        describe(name,
                 {{"anyOf",
                   {{{"type", "string"}},
                    {{"type", "array"}, {"items", {{"type", "string"}}}, {"maxItems", most}}}}});
    const Json* found = find(name);
    if (found == nullptr) return;
    if (found->is_string()) {
        value = {found->get<std::string>()};
        return;
    }
    if (!found->is_array())
        return fail_at(
            name, fmt::format("a string or a list of them is expected, not {}", json_kind(*found)));
    if (found->size() > most)
        return fail_at(name, fmt::format("{} strings, at most {}", found->size(), most));
    std::vector<std::string> strings;
    for (const Json& entry : *found) {
        if (!entry.is_string())
            return fail_at(fmt::format("{}[{}]", name, strings.size()),
                           fmt::format("a string is expected, not {}", json_kind(entry)));
        strings.push_back(entry.get<std::string>());
    }
    value = std::move(strings);
}

Expected<void> Fields::result() const {
    if (error_) return tl::unexpected<Error>(*error_);
    return {};
}

std::vector<std::string> Fields::unknown() const {
    std::vector<std::string> names;
    if (!object_->is_object()) return names;
    for (const auto& [name, value] : object_->items())
        if (!asked_.contains(name)) names.push_back(path_of(name));
    return names;
}

}  // namespace espalier::server
