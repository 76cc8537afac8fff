// SPDX-License-Identifier: Apache-2.0
// JSON from files we do not trust: bounded depth, no exceptions, errors that name the file and the
// byte.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/error.hpp"

namespace espalier {

struct JsonLimits {
    int max_depth = 64;
};

// One pass over the bytes, before a parser sees them. `name` stands in error messages (a file
// name).
Expected<void> check_json_depth(std::string_view text, std::string_view name, JsonLimits limits);
Expected<nlohmann::json> parse_json(std::string_view text, std::string_view name,
                                    JsonLimits limits = {});

}  // namespace espalier
