// SPDX-License-Identifier: Apache-2.0
// How large an engine is: the one list of sizes that its model, cache, scheduler and queue share.
// Plain data. runtime/sizes.hpp derives it from what a user asks for and what a model can do.
#pragma once

#include <cstdint>

namespace espalier {

struct EngineSizes {
    std::int64_t page_count = 0;     // of the cache, with the null page
    std::int64_t max_model_len = 0;  // tokens of a sequence, prompt and output
    std::int32_t max_rows = 256;     // requests in a batch; each has at most one row of each form
    std::int64_t max_step_tokens = 2048;  // at least max_rows + a prompt's quantum
    std::int64_t max_step_gather = 2048;  // rows of logits; at least max_rows
    // Partial results that attention may keep in a step, one for each split of an absorbed row's
    // keys. At least twice what one token behind max_model_len slots needs. 0: not bounded (the CPU
    // keeps none).
    std::int64_t max_step_splits = 0;
    std::int32_t max_waiting = 1024;  // requests (choices) that may wait when one is submitted
    std::int64_t max_waiting_tokens = std::int64_t{1} << 24;  // of their prompts

    // Visitors are those of trace/events.hpp. A field that is not listed does not compile.
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        auto& [page_count, max_model_len, max_rows, max_step_tokens, max_step_gather,
               max_step_splits, max_waiting, max_waiting_tokens] = self;
        visit.integer("page_count", page_count, 0, std::int64_t{1} << 26);
        visit.integer("max_model_len", max_model_len, 0, std::int64_t{1} << 26);
        visit.integer("max_rows", max_rows, 0, std::int64_t{1} << 16);
        visit.integer("max_step_tokens", max_step_tokens, 0, std::int64_t{1} << 20);
        visit.integer("max_step_gather", max_step_gather, 0, std::int64_t{1} << 20);
        visit.maybe_count("max_step_splits", max_step_splits, std::int64_t{1} << 53);
        visit.integer("max_waiting", max_waiting, 0, std::int64_t{1} << 20);
        visit.integer("max_waiting_tokens", max_waiting_tokens, 0, std::int64_t{1} << 53);
    }
    bool operator==(const EngineSizes&) const = default;
};

}  // namespace espalier
