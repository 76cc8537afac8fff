// SPDX-License-Identifier: Apache-2.0
// JSON Schemas of requests. A schema is read here with an allow-list of keywords and written again
// with only what xgrammar holds exactly; everything else is refused by its name and place. What a
// finished text is then valid under is the schema as the request wrote it.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::grammar {

using OrderedJson = nlohmann::ordered_json;  // members come out in the schema's order

struct SchemaLimits {
    static constexpr std::size_t kBytes = 256 << 10;
    static constexpr int kDepth = 64;               // of the JSON text
    static constexpr int kMembers = 4096;           // of all objects together
    static constexpr int kSchemas = 2048;           // schemas within the schema
    static constexpr int kProperties = 256;         // of one object
    static constexpr int kEnumBytes = 64 << 10;     // of all values of const and enum together
    static constexpr std::int64_t kLength = 65536;  // minLength, maxLength
    static constexpr std::int64_t kItems = 4096;    // minItems, maxItems
};

// text: the schema as JSON. strict: see Specification.
Expected<std::string> rewrite_schema_text(std::string_view text, bool strict);
Expected<OrderedJson> rewrite_schema(const OrderedJson& schema, bool strict);

// JSON whose keys keep their order, bounded before it is parsed. `what` stands in errors.
Expected<OrderedJson> parse_bounded_json(std::string_view text, std::string_view what);

// The regular expression of a string format; empty for formats that are not supported.
std::string_view format_pattern(std::string_view format);

}  // namespace espalier::grammar
