// SPDX-License-Identifier: Apache-2.0
// Writes a checkpoint with its projections rounded (linalg/round_weights.hpp), in the layout of
// compressed-tensors: what LoadOptions::rounding makes in memory, as files. Loading them gives the
// same bits.
#pragma once

#include <filesystem>

#include "base/thread_pool.hpp"
#include "checkpoint/checkpoint.hpp"
#include "model/weights.hpp"

namespace espalier::model {

struct QuantizeOptions {
    WeightCode code = WeightCode::int4;  // or int8
    bool head_int8 = false;              // the heads too, as int8; an embedding that is tied stays
    std::uint64_t shard_limit_bytes = std::uint64_t{4} << 30;
    Progress progress = {};  // in bytes of the source
};

// Into `directory`, which is made if need be. A run that was cut short is taken up by the same
// command: files that are whole stay, and config.json comes last.
Expected<void> quantize(const checkpoint::Checkpoint& source,
                        const std::filesystem::path& directory, ThreadPool& pool,
                        const QuantizeOptions& options);

}  // namespace espalier::model
