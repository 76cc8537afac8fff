// SPDX-License-Identifier: Apache-2.0
// What one chat template may cost. A template comes with a model and is not trusted, nor is what a
// request puts into it; the defaults leave a published template more than a hundred times what it
// needs for a prompt of a million tokens.
#pragma once

#include <cstdint>

namespace espalier::chat {

struct Limits {
    std::int64_t source_bytes = 256 << 10;   // the largest published ones have 15 KB
    std::int64_t nesting = 100;              // of statements and of expressions, each
    std::int64_t macro_depth = 40;           // a macro that calls itself
    std::int64_t steps = 2'000'000;          // statements and operations, elements of sequences
    std::int64_t output_bytes = 32 << 20;    // the rendered text
    std::int64_t touched_bytes = 256 << 20;  // read or written by all operations together
};

}  // namespace espalier::chat
