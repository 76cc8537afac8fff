// SPDX-License-Identifier: Apache-2.0
// What stands for the CUDA backend in builds without one.
#include "mla/contract.hpp"

namespace espalier::mla {

Expected<std::unique_ptr<Kernels>> make_cuda_kernels() {
    return fail(ErrorKind::unsupported, "this build has no CUDA backend");
}

}  // namespace espalier::mla
