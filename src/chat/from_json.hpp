// SPDX-License-Identifier: Apache-2.0
// A request's JSON as values of a template.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "chat/value.hpp"

namespace espalier::chat {

// Every text, keys included, is content: the request wrote it. Invalid UTF-8 is refused, and
// values nested deeper than 64.
Value from_json(const nlohmann::json& json, Budget& budget);
Value from_json(const nlohmann::ordered_json& json, Budget& budget);

}  // namespace espalier::chat
