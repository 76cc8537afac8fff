// SPDX-License-Identifier: Apache-2.0
// The JSON of a request's body, more strictly than JSON itself asks: an object, every key once,
// UTF-8, numbers that a double can hold, nested no deeper than kMaxBodyDepth.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>

#include "base/error.hpp"

namespace espalier::server {

inline constexpr int kMaxBodyDepth = 32;

// Keys of one object whose order is kept; a search among them is linear.
inline constexpr std::size_t kMaxOrderedKeys = 4096;

Expected<nlohmann::json> parse_body(std::string_view body);

// Fields whose order counts: schemas, which models follow, and tools, which templates print.
inline constexpr const char* kOrdered[] = {"tools", "response_format", "structured_outputs",
                                           "json_schema"};

// The fields of the body in which the order of keys has a meaning, with that order. parsed: the
// same body.
Expected<nlohmann::ordered_json> parse_ordered(std::string_view body, const nlohmann::json& parsed,
                                               std::span<const char* const> names = kOrdered);

// One field of parse_ordered()'s result; null where it is missing.
nlohmann::ordered_json ordered_field(const nlohmann::ordered_json& ordered, const char* name);

}  // namespace espalier::server
