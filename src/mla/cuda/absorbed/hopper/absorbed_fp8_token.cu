// SPDX-License-Identifier: Apache-2.0
#include "mla/cuda/absorbed/hopper/absorbed_launch.cuh"

namespace espalier::mla::cuda {

cudaError_t launch_fp8_token(const AbsorbedParams& p, cudaStream_t stream) {
    if (p.query_rows == 16) return launch_format<KvFormat::fp8_token, 16>(p, stream);
    return launch_format<KvFormat::fp8_token>(p, stream);
}

}  // namespace espalier::mla::cuda
