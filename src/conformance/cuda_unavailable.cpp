// SPDX-License-Identifier: Apache-2.0
// The CUDA device of builds that have none: says what make_cuda_kernels() says.
#include "conformance/device.hpp"

namespace espalier::conformance {

Expected<std::unique_ptr<Device>> make_cuda_device(Allocation) {
    ESPALIER_ASSIGN_OR_RETURN(auto kernels, mla::make_cuda_kernels());
    return fail(ErrorKind::unsupported, "this build's suite cannot reach CUDA memory");
}

}  // namespace espalier::conformance
