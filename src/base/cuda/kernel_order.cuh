// SPDX-License-Identifier: Apache-2.0
// A kernel's place among those in front of it and behind it in the stream: programmatic dependent
// launch. Instructions of compute capability 9.0 and above; below, a kernel begins when the one in
// front has ended (DeviceFacts::starts_early).
#pragma once

namespace espalier {
inline namespace ptx {

// The kernel behind may be set up from now on.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// All memory is as the kernel in front left it. Before this, a kernel may read weights alone.
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The first statement of a kernel that has nothing to do in between.
__device__ __forceinline__ void begin_kernel() {
    let_next_kernel_start();
    wait_for_previous_kernel();
}

// For a kernel that reads what others wrote without waiting for the one in front: nothing of it is
// in this multiprocessor's cache as it was before.
__device__ __forceinline__ void see_settled_memory() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

}  // namespace ptx
}  // namespace espalier
