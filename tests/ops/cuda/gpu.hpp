// SPDX-License-Identifier: Apache-2.0
// A GPU with the CUDA backend, and copies of host data in its memory. The tests need a GPU;
// without one they fail and say so.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "ops/cuda_backend.hpp"
#include "support/gpu.hpp"

namespace espalier::ops {

template <typename T>
T must(Expected<T> made) {
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

struct Gpu {
    DeviceLimits limits = test_gpu_limits();
    std::unique_ptr<Device> device = must(make_cuda_device(limits));
    std::unique_ptr<Backend> backend = must(make_cuda_backend(*device));
    Arena arena{must(device->allocate(backend->scratch_bytes(0, 512, 200000, 1)))};
    OpContext context{*device, arena};
};

template <typename T>
class OnGpu {
  public:
    OnGpu(Gpu& gpu, const std::vector<T>& values)
        : gpu_(gpu), size_(values.size()), memory_(must(gpu.device->allocate(bytes()))) {
        EXPECT_TRUE(
            gpu.device->upload(gpu.device->stream(), memory_.data(), values.data(), bytes()));
    }
    T* data() { return memory_.as<T>(); }
    Matrix matrix(std::int64_t rows, std::int64_t cols) {
        return Matrix::of(data(), rows, cols,
                          rows == 0 ? cols : static_cast<std::int64_t>(size_) / rows);
    }
    std::vector<T> values() const {
        std::vector<T> copy(size_);
        EXPECT_TRUE(
            gpu_.device->download(gpu_.device->stream(), copy.data(), memory_.data(), bytes()));
        return copy;
    }

  private:
    std::size_t bytes() const { return size_ * sizeof(T); }

    Gpu& gpu_;
    std::size_t size_;
    Buffer memory_;
};

}  // namespace espalier::ops
