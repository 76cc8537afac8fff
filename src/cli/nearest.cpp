// SPDX-License-Identifier: Apache-2.0
#include "cli/nearest.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace espalier::cli {
namespace {

// Levenshtein's, and 1 for two neighbours that changed places.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        next[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t change = row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            next[j] = std::min({row[j] + 1, next[j - 1] + 1, change});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                next[j] = std::min(next[j], before[j - 2] + 1);
        }
        before = std::exchange(row, next);
    }
    return row.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
    const auto found = std::ranges::min_element(
        known, {}, [&](const std::string& one) { return distance(word, one); });
    return found == known.end() ? std::string() : *found;
}

std::string near_slip(std::string_view word, const std::vector<std::string>& known) {
    std::string best = nearest(word, known);
    return !best.empty() && 3 * distance(word, best) <= word.size() ? best : std::string();
}

}  // namespace espalier::cli
