// SPDX-License-Identifier: Apache-2.0
#include "mla/cuda/hopper/tensor_map.hpp"

#include "base/check.hpp"
#include "mla/cuda/launch.hpp"

namespace espalier::mla::cuda {
namespace {

constexpr std::size_t kMostAxes = 4;
using Encode = decltype(&cuTensorMapEncodeTiled);

Expected<Encode> encoder() {
    static const Encode entry = [] {
        void* address = nullptr;
        cudaDriverEntryPointQueryResult found{};
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                             cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            address = nullptr;
        return reinterpret_cast<Encode>(address);
    }();
    if (entry == nullptr)
        return fail(ErrorKind::unsupported, "this CUDA driver has no cuTensorMapEncodeTiled");
    return entry;
}

}  // namespace

Expected<void> encode(CUtensorMap& map, CUtensorMapDataType type, const std::byte* data,
                      std::span<const Axis> axes, CUtensorMapSwizzle swizzle) {
    CHECK(!axes.empty() && axes.size() <= kMostAxes, "a map of {} axes", axes.size());
    ESPALIER_ASSIGN_OR_RETURN(const Encode entry, encoder());
    std::array<cuuint64_t, kMostAxes> extents{};
    std::array<cuuint64_t, kMostAxes> strides{};
    std::array<cuuint32_t, kMostAxes> box{};
    std::array<cuuint32_t, kMostAxes> steps{};
    for (std::size_t i = 0; i < axes.size(); ++i) {
        extents[i] = static_cast<cuuint64_t>(axes[i].extent);
        if (i > 0) strides[i - 1] = static_cast<cuuint64_t>(axes[i].stride);
        box[i] = static_cast<cuuint32_t>(axes[i].box);
        steps[i] = 1;
    }
    const CUresult result = entry(
        &map, type, static_cast<cuuint32_t>(axes.size()), const_cast<std::byte*>(data),
        extents.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fail(ErrorKind::invalid,
                    "the copy engine takes no map of {} pages or rows at this address and stride "
                    "(CUDA error {})",
                    axes.back().extent, static_cast<int>(result));
    return {};
}

}  // namespace espalier::mla::cuda
