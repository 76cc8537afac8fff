// SPDX-License-Identifier: Apache-2.0
// Timing one shape of absorbed attention on a device with a cold cache: consecutive calls read
// other pages of a pool that is far larger than any cache, in shuffled order. A device's plan is
// made once for all of them, as an engine makes it once for the layers of a step.
#pragma once

#include "cli/mla_shapes.hpp"
#include "conformance/device.hpp"

namespace espalier::cli {

struct MlaTimingOptions {
    mla::KvFormat format = mla::KvFormat::bf16;
    DType query = DType::bf16;
    DType out = DType::bf16;
    bool tree = false;
    bool invariant = false;
    std::int64_t partial_bytes = 0;  // CUDA, invariant; 0: the usual workspace
    bool warm = false;               // every call reads the same pages
    int workers = 1;                 // CPU
    int repetitions = 7;             // the median is reported
};

// Pages of 64 slots filled with normal numbers, allocated once for all shapes.
class PagePool {
  public:
    static Expected<PagePool> create(conformance::Device& device, mla::KvFormat format,
                                     std::int64_t bytes);
    const mla::KvPages& kv() const { return kv_; }

  private:
    mla::KvPages kv_;
    Buffer memory_;
};

// Bytes of a pool through which these shapes can be rotated.
std::int64_t pool_bytes(const std::vector<MlaShape>& shapes, mla::KvFormat format,
                        std::int64_t least);

// Seconds of one replay; the first one warms up.
Expected<double> median_play(RecordedWork& recorded, int repetitions);

struct CallTimes {
    double seconds = 0;       // of one call
    double plan_seconds = 0;  // of the plan that all calls share; 0: the device needs none
};

// Medians.
Expected<CallTimes> time_absorbed(conformance::Device& device, const PagePool& pool,
                                  const MlaShape& shape, const MlaTimingOptions& options);

}  // namespace espalier::cli
