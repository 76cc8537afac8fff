// SPDX-License-Identifier: Apache-2.0
// Where a step reads its batch: memory of the device for the largest one of its builder, and the
// block tables of all requests. Addresses change only when a builder of larger batches comes, so a
// captured step finds every later batch of its capacity in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/buffer.hpp"
#include "base/device.hpp"
#include "base/error.hpp"
#include "batch/batch_builder.hpp"
#include "batch/block_tables.hpp"

namespace espalier::batch {

class DeviceBatch {
  public:
    // The device must outlive it. poison: for tests, see batch/poison.hpp.
    explicit DeviceBatch(Device& device, bool poison = false)
        : device_(&device), poison_(poison), tables_(0, 0) {}

    // Queues the batch and what has changed of the block tables. The next upload writes over it, in
    // the order of the stream.
    Expected<BatchView> upload(Stream stream, const HostBatch& batch);

  private:
    Expected<void> make_room(const StepCapacity& most);
    std::span<const std::byte> bytes_of(const HostBatch& batch);

    Device* device_;
    bool poison_;
    std::vector<std::byte> poisoned_;  // the last batch with 0xFF where nothing may be read
    Buffer memory_;
    Buffer table_memory_;
    BlockTables tables_;  // what table_memory_ holds
};

}  // namespace espalier::batch
