// SPDX-License-Identifier: Apache-2.0
// The device's side of sampling: its copy of a step's batch, the committed counts of requests, and
// the results. Taken once, for a capacity.
#pragma once

#include <array>
#include <span>

#include "base/buffer.hpp"
#include "base/device.hpp"
#include "base/error.hpp"
#include "ops/sampling_batch.hpp"
#include "ops/sampling_builder.hpp"

namespace espalier::ops {

class SamplingMemory {
  public:
    // The device outlives it.
    static Expected<SamplingMemory> create(Device& device, const SamplingCapacity& capacity);

    // One upload of a finished batch, and one for each request whose counts are new here. The
    // builder may begin the next step when this returns.
    Expected<SamplingBatch> upload(Stream stream, const SamplingBatchBuilder& builder);
    // Brings the draws of the last uploaded batch; waits for them. alternatives:
    // [builder.alternatives()].
    Expected<void> download(Stream stream, std::span<Draw> draws,
                            std::span<TokenLogprob> alternatives) const;
    // The same transfers, for a caller that waits for other results too.
    std::array<Transfer, 2> transfers(std::span<Draw> draws,
                                      std::span<TokenLogprob> alternatives) const;
    // A batch of `nodes` that an operation fills on the device: its arrays lie at `arrays`, its
    // lists are the last upload's.
    SamplingBatch view_beside(std::byte* arrays, std::int64_t nodes, std::int64_t vocabulary) const;
    // For tests: 0xFF in all that the next upload does not write, except for committed counts.
    Expected<void> poison(Stream stream);

  private:
    SamplingMemory(Device& device, Buffer batch, Buffer counts, Buffer draws, Buffer alternatives);

    Device* device_;
    Buffer batch_, counts_, draws_, alternatives_;
};

}  // namespace espalier::ops
