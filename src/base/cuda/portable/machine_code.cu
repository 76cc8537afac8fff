// SPDX-License-Identifier: Apache-2.0
// Which machine code of the portable kernels runs on the current GPU: this file is compiled for the
// same ones.
#include <cuda_runtime.h>

#include "base/cuda/portable/machine_code.hpp"
#include "base/cuda_error.hpp"

namespace espalier {
namespace {

// Stands for any portable kernel.
__global__ void one_of_them() {}

}  // namespace

Expected<bool> portable_kernels_wait() {
    constexpr int kLeastVersion = 90;  // with the instructions that wait (kernel_order.cuh)
    cudaFuncAttributes code{};
    const cudaError_t status = cudaFuncGetAttributes(&code, one_of_them);
    if (status == cudaErrorNoKernelImageForDevice) cudaGetLastError();  // does not stick
    ESPALIER_RETURN_IF_ERROR(checked(status, "machine code of the portable kernels"));
    return code.ptxVersion >= kLeastVersion;
}

}  // namespace espalier
