// SPDX-License-Identifier: Apache-2.0
// How large a step may be. These are all the sizes that operations take from the host; they stay
// fixed while a captured step is replayed, and true counts are data in device memory. Two batches
// of one capacity have the same layout, the same launches and the same workspace.
#pragma once

#include <cstdint>

#include "base/error.hpp"

namespace espalier::batch {

struct StepCapacity {
    std::int64_t absorbed_tokens = 0;
    std::int64_t decompressed_tokens = 0;
    std::int32_t absorbed_rows = 0;
    std::int32_t decompressed_rows = 0;
    std::int64_t gather = 0;      // tokens whose logits are wanted
    std::int32_t max_q_len = 0;   // tokens of a row
    std::int32_t max_kv_len = 0;  // slots of a row, its own tokens included
    // Block tables [table_rows, block_stride] stay in device memory, a row for each request;
    // a batch says how many it needs at least, a view how many there are.
    std::int32_t table_rows = 0;
    std::int64_t block_stride = 0;
    // Partial results of invariant attention (mla::RaggedRows); 0: what rows of max_kv_len need.
    // More than its workspace holds at once are made by several launches (docs/mla_contract.md).
    std::int64_t total_splits = 0;

    std::int64_t tokens() const { return absorbed_tokens + decompressed_tokens; }
    bool operator==(const StepCapacity&) const = default;

    // An error that names the first size of `need` that is larger than here, and both numbers.
    Expected<void> check_holds(const StepCapacity& need) const;
};

}  // namespace espalier::batch
