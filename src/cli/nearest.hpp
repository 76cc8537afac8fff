// SPDX-License-Identifier: Apache-2.0
// The word that was probably meant where another was written.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace espalier::cli {

// The nearest by Levenshtein's distance, the first of equals; empty: there are none.
std::string nearest(std::string_view word, const std::vector<std::string>& known);
// The same where it is near enough to be a slip: at most a third of the word is different.
std::string near_slip(std::string_view word, const std::vector<std::string>& known);

}  // namespace espalier::cli
