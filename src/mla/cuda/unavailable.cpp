// SPDX-License-Identifier: Apache-2.0
// What stands for the CUDA backend in builds without one.
#include "mla/compat.hpp"
#include "mla/contract.hpp"

namespace espalier::mla {
namespace {

constexpr char kMissing[] = "this build has no CUDA backend";

}  // namespace

Expected<std::unique_ptr<Kernels>> make_cuda_kernels(const Device&) {
    return fail(ErrorKind::unsupported, kMissing);
}

Expected<void> cuda::build_compat_rows(OpContext&, const CompatCall&, const CompatRows&) {
    return fail(ErrorKind::unsupported, kMissing);
}

}  // namespace espalier::mla
