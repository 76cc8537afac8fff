// SPDX-License-Identifier: Apache-2.0
// The directory of the user's in which programs keep what can be made again.
#pragma once

#include <filesystem>
#include <string_view>

namespace espalier {

// "espalier/PART" in XDG_CACHE_HOME, or in HOME's .cache; empty: neither is set.
std::filesystem::path user_cache(std::string_view part);

}  // namespace espalier
