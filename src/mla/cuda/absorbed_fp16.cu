// SPDX-License-Identifier: Apache-2.0
#include "mla/cuda/absorbed_launch.cuh"

namespace espalier::mla::cuda {

cudaError_t launch_fp16(const AbsorbedParams& p, cudaStream_t stream) {
    return launch_width<KvFormat::fp16, 64>(p, stream);
}

}  // namespace espalier::mla::cuda
