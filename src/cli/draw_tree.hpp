// SPDX-License-Identifier: Apache-2.0
// Draws a verified tree of a trace as text: one line per node, the accepted path lit, who proposed
// each node beside it. Used by espalier replay --tree and by the demo.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "text/tokenizer.hpp"
#include "trace/reader.hpp"

namespace espalier::cli {

// A tree as it was verified, with what was drawn.
struct DrawnTree {
    std::int64_t step = 0;
    std::int64_t request = 0;
    std::vector<std::int32_t> tokens, parents;  // the verified nodes
    std::vector<std::int32_t> drafters;         // bits, by node; empty: not known
    std::vector<std::int32_t> path;             // accepted nodes, the root first
    std::int32_t next = -1;                     // drawn after them by the target itself
};

// Reads the trace to its end. step > 0: the trees of that step. 0: the one that shows most: a long
// accepted path, best over branches that were not the first choice, in a tree that fits a screen.
Expected<std::vector<DrawnTree>> trees_of(trace::Reader& reader, std::int64_t step);

std::string draw(const DrawnTree& tree, const std::vector<std::string>& drafters,
                 const text::Tokenizer& tokenizer, bool colour);

}  // namespace espalier::cli
