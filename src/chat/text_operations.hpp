// SPDX-License-Identifier: Apache-2.0
// What Python's str can do, as templates use it, on text whose content stays known. Positions that
// a template sees count code points. All charge the bytes they touch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "chat/budget.hpp"
#include "chat/text.hpp"

namespace espalier::chat {

std::size_t code_points(std::string_view bytes);

// Python's slice of a sequence of `length` elements: what begin:end:step picks.
struct SliceBounds {
    std::int64_t begin;
    std::int64_t count;
    std::int64_t step;
};
SliceBounds slice_bounds(std::size_t length, std::optional<std::int64_t> begin,
                         std::optional<std::int64_t> end, std::int64_t step);

Text slice_text(const Text& text, const SliceBounds& bounds, Budget& budget);
// Position in bytes of `needle` at or after `from`; npos if there is none. Linear time.
std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from,
                      Budget& budget);

enum class Side { left, right, both };
// Without `characters`: Python's white space.
Text strip_text(const Text& text, const Text* characters, Side side, Budget& budget);

// Without a separator: at runs of white space, none at the ends. Negative `splits`: all.
std::vector<Text> split_text(const Text& text, const Text* separator, std::int64_t splits,
                             Budget& budget);
std::vector<Text> split_text_from_right(const Text& text, const Text& separator,
                                        std::int64_t splits, Budget& budget);
// Negative `count`: all.
Text replace_text(const Text& text, const Text& old_text, const Text& new_text, std::int64_t count,
                  Budget& budget);

enum class Case { lower, upper, capitalized };
// ASCII; other letters are refused, for their mapping needs tables that nothing here else needs.
Text change_case(const Text& text, Case to, Budget& budget);

}  // namespace espalier::chat
