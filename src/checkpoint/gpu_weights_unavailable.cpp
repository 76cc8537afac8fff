// SPDX-License-Identifier: Apache-2.0
// A build without CUDA.
#include "checkpoint/gpu_weights.hpp"

namespace espalier::checkpoint {

Expected<MappedFile> fill_on_gpu(const Shard&, std::uint64_t) {
    return fail(ErrorKind::unsupported, "this build has no CUDA backend");
}

}  // namespace espalier::checkpoint
