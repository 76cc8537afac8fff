// SPDX-License-Identifier: Apache-2.0
// The GPU of a build without CUDA.
#include "base/cuda_memory.hpp"
#include "base/device.hpp"

namespace espalier {

Expected<std::unique_ptr<Device>> make_cuda_device(const DeviceLimits&) {
    return fail(ErrorKind::unsupported, "this build has no CUDA backend");
}

Expected<CudaMemory> cuda_memory() {
    return fail(ErrorKind::unsupported, "this build has no CUDA backend");
}

}  // namespace espalier
