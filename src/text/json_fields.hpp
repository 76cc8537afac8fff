// SPDX-License-Identifier: Apache-2.0
// Reads fields of a parsed JSON object with errors that name file and field. For .cpp files of the
// loaders only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::text {

using Json = nlohmann::json;

// The member, or null when it is absent or null.
inline const Json& member(const Json& object, const char* key) {
    static const Json null;
    if (!object.is_object()) return null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
}

// "tokenizer.json: added_tokens[3].special is a string, expected a boolean"
inline tl::unexpected<Error> wrong_type(std::string_view name, std::string_view field,
                                        const Json& value, std::string_view expected) {
    return fail(ErrorKind::invalid, "{}: {} is {}, expected {}", name, field,
                value.is_null() ? "missing" : value.type_name(), expected);
}

inline Expected<std::string_view> string_field(const Json& object, const char* key,
                                               std::string_view name, std::string_view path) {
    const Json& value = member(object, key);
    if (!value.is_string())
        return wrong_type(name, fmt::format("{}.{}", path, key), value, "a string");
    return std::string_view(value.get_ref<const std::string&>());
}

inline Expected<bool> bool_field(const Json& object, const char* key, bool otherwise,
                                 std::string_view name, std::string_view path) {
    const Json& value = member(object, key);
    if (value.is_null()) return otherwise;
    if (!value.is_boolean())
        return wrong_type(name, fmt::format("{}.{}", path, key), value, "a boolean");
    return value.get<bool>();
}

// Flags of an added token that change what it matches; no published MLA model sets one.
inline Expected<void> refuse_matching_flags(const Json& token, std::string_view name,
                                            std::string_view path) {
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        auto value = bool_field(token, flag, false, name, path);
        if (!value) return tl::unexpected(std::move(value.error()));
        if (*value)
            return fail(ErrorKind::unsupported, "{}: {}.{} = true is not supported", name, path,
                        flag);
    }
    return {};
}

// A whole number in [0, limit).
inline Expected<std::int64_t> id_value(const Json& value, std::int64_t limit, std::string_view name,
                                       std::string_view field) {
    if (!value.is_number_integer()) return wrong_type(name, field, value, "a whole number");
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() >= static_cast<std::uint64_t>(limit))
        return fail(ErrorKind::invalid, "{}: {} is {}, outside 0…{}", name, field, value.dump(),
                    limit - 1);
    return value.get<std::int64_t>();
}

}  // namespace espalier::text
