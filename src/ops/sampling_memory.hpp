// SPDX-License-Identifier: Apache-2.0
// The device's side of sampling: its copy of a step's batch, the committed counts of requests, and
// the results. Taken once, for a capacity.
#pragma once

#include <span>

#include "base/buffer.hpp"
#include "base/error.hpp"
#include "ops/sampling_batch.hpp"
#include "ops/sampling_builder.hpp"

namespace espalier::ops {

class SamplingMemory {
  public:
    static Expected<SamplingMemory> create(const SamplingCapacity& capacity);

    // One upload of a finished batch, and one for each request whose counts are new here. The
    // builder may begin the next step when this returns.
    SamplingBatch upload(const SamplingBatchBuilder& builder);
    // What was drawn for the batch of the last upload. alternatives: [builder.alternatives()].
    void download(std::span<Draw> draws, std::span<TokenLogprob> alternatives) const;

  private:
    SamplingMemory(Buffer batch, Buffer counts, Buffer draws, Buffer alternatives);

    Buffer batch_, counts_, draws_, alternatives_;
};

}  // namespace espalier::ops
