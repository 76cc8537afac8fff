// SPDX-License-Identifier: Apache-2.0
// Walks a schema and writes what is held of it. Used by schema.cpp.
//
// What is written, and why it is exactly what xgrammar holds (its 0.2.8 looks at $ref, const, enum,
// anyOf, oneOf, allOf, type in this order and ignores what stands beside the first it finds):
// - one of {"$ref"}, {"enum"}, {"anyOf"}, {"type": one name, its keywords}, {} in every place;
// - refs to "#" and "#/$defs/dN" alone;
// - strings with a pattern of ours, or with lengths, or free;
// - objects with additionalProperties written out. Beside named properties the others go by a
//   pattern that no name matches in any spelling, because the last of two equal names wins.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "grammar/schema.hpp"

namespace espalier::grammar {

// An error with the place in the schema.
template <typename... Args>
tl::unexpected<Error> refuse(ErrorKind kind, const std::string& place,
                             fmt::format_string<Args...> format, Args&&... args) {
    return fail(kind, "json_schema{}: {}",
                place.empty() ? std::string() : fmt::format(" at {}", place),
                fmt::format(format, std::forward<Args>(args)...));
}

class SchemaRewriter {
  public:
    SchemaRewriter(const OrderedJson& root, bool strict) : root_(root), strict_(strict) {}
    Expected<OrderedJson> run();

  private:
    using Json = OrderedJson;

    Expected<Json> schema(const Json& from, const std::string& place);
    Expected<Json> reference(const Json& from, const std::string& place);
    Expected<Json> values(const Json& from, const std::string& place);
    Expected<Json> combination(const Json& from, const std::string& place);
    Expected<Json> alternatives(const Json& list, const std::string& place);
    Expected<Json> typed(const Json& from, const std::string& type, const std::string& place);
    Expected<Json> string(const Json& from, const std::string& place);
    Expected<Json> number(const Json& from, const std::string& type, const std::string& place);
    Expected<Json> array(const Json& from, const std::string& place);
    Expected<Json> object(const Json& from, const std::string& place);
    Expected<void> object_counts(const Json& from, bool others, const std::string& place, Json& to);
    // Adds what the object's other members are to `to`; `other`: their schema.
    Expected<void> other_members(const Json& other, const std::string& place, Json& to);

    // The types that a schema names, or those that its keywords speak of; empty: any.
    Expected<std::vector<std::string>> types(const Json& from, const std::string& place);
    // True if no value is valid under two of the schemas.
    bool disjoint(const Json& list) const;
    const Json* resolved(const Json& from) const;
    const Json* definition(const std::string& pointer) const;
    // The value of a counting keyword (minItems, …), if the schema has it.
    Expected<std::optional<std::int64_t>> count(const Json& from, const char* keyword,
                                                std::int64_t most, const std::string& place) const;

    const Json& root_;
    bool strict_;
    int schemas_ = 0;
    std::size_t value_bytes_ = 0;
    std::map<std::string, std::string> names_;  // pointer → dN
    std::vector<std::string> pending_;          // pointers to write yet
};

// The name of a definition (or of the whole) that has no value of finite length; none if all have
// one.
std::optional<std::string> endless_definition(const OrderedJson& written);

// A pattern for every JSON string but these names, in no spelling that JSON escapes.
std::string pattern_of_other_names(const std::vector<std::string>& names);

}  // namespace espalier::grammar
