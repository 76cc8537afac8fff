// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory_limit.hpp"

#include <fstream>

namespace espalier::runtime {

std::optional<std::int64_t> control_group_limit(const std::string& root) {
    for (const char* file : {"/memory.max", "/memory/memory.limit_in_bytes"}) {
        std::ifstream in(root + file);
        std::int64_t limit = 0;
        if (in >> limit && limit > 0) return limit;  // not where there is no such file, or "max"
    }
    return std::nullopt;
}

}  // namespace espalier::runtime
