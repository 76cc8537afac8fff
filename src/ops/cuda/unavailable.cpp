// SPDX-License-Identifier: Apache-2.0
// The CUDA backend of a build without CUDA.
#include "ops/cuda_backend.hpp"

namespace espalier::ops {

Expected<std::unique_ptr<Backend>> make_cuda_backend(Device&) {
    return fail(ErrorKind::unsupported, "this build has no CUDA backend");
}

}  // namespace espalier::ops
