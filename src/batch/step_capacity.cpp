// SPDX-License-Identifier: Apache-2.0
#include "batch/step_capacity.hpp"

#include <string_view>

namespace espalier::batch {

Expected<void> StepCapacity::check_holds(const StepCapacity& need) const {
    struct Size {
        std::string_view what;
        std::int64_t needed, possible;
    };
    const Size sizes[] = {
        {"absorbed tokens", need.absorbed_tokens, absorbed_tokens},
        {"decompressed tokens", need.decompressed_tokens, decompressed_tokens},
        {"absorbed rows", need.absorbed_rows, absorbed_rows},
        {"decompressed rows", need.decompressed_rows, decompressed_rows},
        {"rows of logits", need.gather, gather},
        {"tokens in a row", need.max_q_len, max_q_len},
        {"slots in a row", need.max_kv_len, max_kv_len},
        {"block tables", need.table_rows, table_rows},
        {"pages in a block table", need.block_stride, block_stride},
        {"splits", total_splits == 0 ? 0 : need.total_splits, total_splits},
    };
    for (const Size& size : sizes)
        if (size.needed > size.possible)
            return fail(ErrorKind::exhausted, "a batch of {} {}: its capacity is {}", size.needed,
                        size.what, size.possible);
    return {};
}

}  // namespace espalier::batch
