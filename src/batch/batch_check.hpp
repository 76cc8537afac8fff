// SPDX-License-Identifier: Apache-2.0
// A batch that another process laid out: every number of it lies within what the operations may
// read and write. BatchBuilder makes no other; what it does not promise (which tokens, which mask)
// is not looked at.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "batch/batch_builder.hpp"

namespace espalier::batch {

struct BatchBounds {
    std::int64_t vocabulary = 0;
    std::int64_t page_count = 0;  // of the cache
};

// Against batch.most, whose block tables the rows read. An error names the number and its bound.
Expected<void> check_batch(const HostBatch& batch, const BatchBounds& bounds);

}  // namespace espalier::batch
