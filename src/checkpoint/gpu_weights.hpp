// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "base/mapped_file.hpp"
#include "checkpoint/safetensors_writer.hpp"

namespace espalier::checkpoint {

// The safetensors file of a synthetic model in memory that the current GPU fills and the host can
// read. It is refused, with both numbers, where the GPU has too little free memory for it.
Expected<MappedFile> fill_on_gpu(const Shard& shard, std::uint64_t seed);

}  // namespace espalier::checkpoint
