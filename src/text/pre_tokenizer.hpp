// SPDX-License-Identifier: Apache-2.0
// Cuts text into the words that BPE works on: a sequence of steps, each cutting the pieces of the
// one before.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "text/regex.hpp"

namespace espalier::text {

struct SplitStep {
    Regex regex;
    // Text between matches: a piece of its own (tokenizers' "Isolated"), or dropped (how
    // tiktoken finds words).
    bool keep_between = true;
    // Matches the text as it is, not with stand-ins.
    bool without_stand_ins = false;
};

class PreTokenizer {
  public:
    std::vector<SplitStep> steps;
    // ByteLevel's add_prefix_space: a piece that reaches it without a leading space gets one. The
    // steps from here on see the piece with the space; steps.size() when none follows.
    bool add_prefix_space = false;
    std::size_t prefix_before_step = 0;

    struct Word {
        std::uint32_t begin;
        std::uint32_t end;
    };
    // Appends the words of valid_text, in order. They lie in `valid_text`, or in `prefixed` where
    // spaces were added; the view returned says which.
    Expected<std::string_view> split(std::string_view valid_text, std::string& prefixed,
                                     std::vector<Word>& words) const;
};

}  // namespace espalier::text
