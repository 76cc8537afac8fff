// SPDX-License-Identifier: Apache-2.0
// CHECK(page < pages_, "page {} of {}", page, pages_): programmer errors only, never user input.
// A failed check throws CheckFailure with place and sentence; the library never aborts.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace espalier {

class CheckFailure : public std::logic_error {
  public:
    using std::logic_error::logic_error;
};

[[noreturn]] void throw_check_failure(const char* file, int line, const char* condition,
                                      const std::string& message);

}  // namespace espalier

#define CHECK(condition, ...)                                               \
    do {                                                                    \
        if (!(condition)) [[unlikely]]                                      \
            ::espalier::throw_check_failure(__FILE__, __LINE__, #condition, \
                                            fmt::format(__VA_ARGS__));      \
    } while (false)
