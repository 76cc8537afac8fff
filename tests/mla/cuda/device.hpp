// SPDX-License-Identifier: Apache-2.0
// Device memory, a stream and graphs for the CUDA tests of the attention library. The tests need a
// Hopper GPU; without one they fail and say so.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>

#include "mla/simple.hpp"
#include "support/gpu.hpp"

namespace espalier::mla::simple {

inline void expect_cuda(cudaError_t status) {
    EXPECT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

// A copy of host data on the device.
template <typename T>
class OnDevice {
  public:
    explicit OnDevice(const std::vector<T>& from) : count_(from.size()) {
        void* memory = nullptr;
        expect_cuda(cudaMalloc(&memory, std::max<std::size_t>(1, bytes())));
        data_ = static_cast<T*>(memory);
        upload(from);
    }
    ~OnDevice() { cudaFree(data_); }
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;

    void upload(const std::vector<T>& from) {
        EXPECT_LE(from.size(), count_);
        expect_cuda(
            cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> download() const {
        std::vector<T> to(count_);
        expect_cuda(cudaMemcpy(to.data(), data_, bytes(), cudaMemcpyDeviceToHost));
        return to;
    }
    T* data() const { return data_; }
    std::size_t bytes() const { return count_ * sizeof(T); }

  private:
    std::size_t count_;
    T* data_ = nullptr;
};

class CudaTest : public testing::Test {
  protected:
    CudaTest() {
        auto made = make_cuda_kernels(*gpu);
        EXPECT_TRUE(made) << (made ? "" : made.error().message);
        if (made) kernels = std::move(*made);
        expect_cuda(cudaStreamCreate(&stream));
        context.stream = stream;
    }
    ~CudaTest() override { cudaStreamDestroy(stream); }
    void SetUp() override { ASSERT_NE(kernels, nullptr); }

    void finish(const Expected<void>& done) {
        EXPECT_TRUE(done) << (done ? "" : done.error().message);
        expect_cuda(cudaStreamSynchronize(stream));
    }

    cudaStream_t stream = nullptr;
    std::unique_ptr<Kernels> kernels;
    std::unique_ptr<Device> gpu = device_or_throw();
    Arena arena{Buffer{}};
    OpContext context{*gpu, arena};

  private:
    static std::unique_ptr<Device> device_or_throw() {
        auto made = make_cuda_device(test_gpu_limits());
        if (!made) throw std::runtime_error(made.error().message);
        return std::move(*made);
    }
};

inline constexpr KvFormat kCudaFormats[] = {KvFormat::bf16, KvFormat::fp16, KvFormat::fp8_tensor,
                                            KvFormat::fp8_token};

}  // namespace espalier::mla::simple
