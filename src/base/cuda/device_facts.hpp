// SPDX-License-Identifier: Apache-2.0
// Asks CUDA for a GPU's facts.
#pragma once

#include "base/device.hpp"
#include "base/device_facts.hpp"
#include "base/error.hpp"

namespace espalier {

Expected<DeviceFacts> facts_of_gpu(int ordinal);
// Those of the GPU that the stream belongs to; asked for once.
const DeviceFacts& facts_of(Stream stream);

}  // namespace espalier
