// SPDX-License-Identifier: Apache-2.0
#include "base/check.hpp"

namespace espalier {

void throw_check_failure(const char* file, int line, const char* condition,
                         const std::string& message) {
    throw CheckFailure(fmt::format("{}:{}: CHECK({}) failed: {}", file, line, condition, message));
}

}  // namespace espalier
