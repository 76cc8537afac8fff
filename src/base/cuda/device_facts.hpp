// SPDX-License-Identifier: Apache-2.0
// Asks CUDA for a GPU's facts.
#pragma once

#include "base/device.hpp"
#include "base/device_facts.hpp"
#include "base/error.hpp"

namespace espalier {

Expected<DeviceFacts> facts_of_gpu(int ordinal);
// Those of the device whose stream it is, limits included; of a stream of the caller's own, those
// of the current GPU, where its launches go. (A stream that is captured does not tell its own.)
const DeviceFacts& facts_of(Stream stream);

// Entry that facts_of finds for a device's stream while the device lives.
class StreamFacts {
  public:
    StreamFacts(Stream stream, const DeviceFacts& facts);
    ~StreamFacts();
    StreamFacts(const StreamFacts&) = delete;
    StreamFacts& operator=(const StreamFacts&) = delete;

    const DeviceFacts& facts() const { return facts_; }

  private:
    Stream stream_;
    DeviceFacts facts_;
};

}  // namespace espalier
