// SPDX-License-Identifier: Apache-2.0
// What a name from a file or a flag must be before it is joined to a directory: no separators, no
// "..".
#pragma once

#include <algorithm>
#include <string_view>

namespace espalier::checkpoint {

// Letters, digits, '.', '_', '-'; not starting with a dot (that also excludes "." and ".."); at
// most 255 bytes.
inline bool is_plain_name(std::string_view name) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '.' || c == '_' || c == '-';
    };
    return !name.empty() && name.size() <= 255 && name.front() != '.' &&
           std::all_of(name.begin(), name.end(), plain);
}

}  // namespace espalier::checkpoint
