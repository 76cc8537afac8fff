// SPDX-License-Identifier: Apache-2.0
// The JSON of a request's body, more strictly than JSON itself asks: an object, every key once,
// UTF-8, numbers that a double can hold, nested no deeper than kMaxBodyDepth.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/error.hpp"

namespace espalier::server {

inline constexpr int kMaxBodyDepth = 32;

Expected<nlohmann::json> parse_body(std::string_view body);

}  // namespace espalier::server
