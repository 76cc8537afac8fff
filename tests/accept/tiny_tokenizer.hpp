// SPDX-License-Identifier: Apache-2.0
// A tokenizer whose tokens break text in the worst places: bytes, halves of code points, halves
// glued to letters, and pieces that contain each other.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace espalier::accept {

const text::Tokenizer& tiny_tokenizer();
std::int32_t id_of(std::string_view bytes);

inline constexpr std::string_view kEos = "[EOS]";      // special
inline constexpr std::string_view kTurn = "<|turn|>";  // special
inline constexpr std::string_view kTool = "<tool>";    // added, but not special

// Tokens worth drawing.
const std::vector<std::int32_t>& tiny_palette();

}  // namespace espalier::accept
