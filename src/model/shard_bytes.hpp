// SPDX-License-Identifier: Apache-2.0
// Memory that one rank's part of a checkpoint takes: its weights are listed, none is read.
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "model/shard_plan.hpp"

namespace espalier::model {

struct ShardBytes {
    std::uint64_t packed = 0;     // of weights in a CPU's layout, MTP layers too
    std::uint64_t stored = 0;     // of the same, with scales as the checkpoint has them
    std::uint64_t embedding = 0;  // read in the mapped file
};
Expected<ShardBytes> shard_bytes(const std::shared_ptr<const checkpoint::Checkpoint>& checkpoint,
                                 const Shard& shard);

}  // namespace espalier::model
