// SPDX-License-Identifier: Apache-2.0
// A file of settings: TOML's lines `key = value` with strings, numbers, booleans and lists of these
// on one line, # comments, no sections. Keys are flags without their dashes in front.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace espalier::cli {

struct Setting {
    std::string key;  // with hyphens, as flags are written
    std::vector<std::string> values;
    int line = 0;
};

// `name` stands in error messages.
Expected<std::vector<Setting>> parse_settings(std::string_view text, const std::string& name);

}  // namespace espalier::cli
