// SPDX-License-Identifier: Apache-2.0
// What a regular expression says, between reading (regex_reader.hpp) and writing
// (regex_writer.hpp).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "grammar/code_points.hpp"

namespace espalier::grammar {

struct RegexNode {
    enum class Kind : std::uint8_t { empty, characters, sequence, choice, repetition };

    Kind kind = Kind::empty;
    CodePointSet set{};                    // characters
    std::vector<RegexNode> children{};     // sequence, choice; of a repetition one
    std::int64_t least = 1;                // repetition
    std::optional<std::int64_t> most = 1;  // none: no limit

    bool is_empty() const { return kind == Kind::empty; }
};

}  // namespace espalier::grammar
