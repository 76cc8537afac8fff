// SPDX-License-Identifier: Apache-2.0
// Timing decompressed attention of prompts on a GPU: latents in pages in, outputs out, the
// up-projection included.
#pragma once

#include "cli/mla_timing.hpp"

namespace espalier::cli {

// Prompts of 2,048 and 8,192 tokens, and chunks of 2,048 over 30,000 cached ones.
std::vector<MlaShape> prompt_shapes();

struct PromptCost {
    double attention_flops = 0;  // 2 · H · 320 for each pair of a token and a key that it sees
    double project_flops = 0;    // 2 · H · 256 · 512 for each key
};
PromptCost prompt_cost(const MlaShape& shape);

// Seconds of one call, the median.
Expected<double> time_decompressed(conformance::Device& device, const PagePool& pool,
                                   const MlaShape& shape, const MlaTimingOptions& options);

}  // namespace espalier::cli
