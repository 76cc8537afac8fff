// SPDX-License-Identifier: Apache-2.0
#include "mla/cuda/absorbed/hopper/absorbed_launch.cuh"

namespace espalier::mla::cuda {

cudaError_t launch_one_token_bf16(const AbsorbedParams& p, cudaStream_t stream) {
    return launch_one_token<KvFormat::bf16, kFewRows>(p, stream);
}

}  // namespace espalier::mla::cuda
