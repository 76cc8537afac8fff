// SPDX-License-Identifier: Apache-2.0
#include "base/user_cache.hpp"

#include <cstdlib>

namespace espalier {

std::filesystem::path user_cache(std::string_view part) {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return std::filesystem::path(value == nullptr ? "" : value);
    };
    const std::filesystem::path cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
    if (cache.is_absolute()) return cache / "espalier" / part;
    return home.is_absolute() ? home / ".cache" / "espalier" / part : std::filesystem::path();
}

}  // namespace espalier
