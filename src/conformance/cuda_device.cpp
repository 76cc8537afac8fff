// SPDX-License-Identifier: Apache-2.0
// CUDA as a device of the suite: memory of the current GPU, one stream, graphs for replays. Every
// error of the runtime is of kind `io`: most of them stick, and nothing after one can be trusted.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "conformance/device.hpp"

namespace espalier::conformance {
namespace {

constexpr std::size_t kGuard = 512;
constexpr int kPoison = 0xff;

Expected<void> checked(cudaError_t status, std::string_view what) {
    if (status == cudaSuccess) return {};
    return fail(ErrorKind::io, "{}: CUDA says {}", what, cudaGetErrorString(status));
}

Expected<void> wait_for(cudaStream_t stream) {
    return checked(cudaStreamSynchronize(stream), "waiting for the kernels");
}

// Releases what a destructor must not fail on; an error shows at the next checked call.
void release_exact(void* data, std::size_t) { cudaFree(data); }
void release_guarded(void* data, std::size_t) { cudaFree(static_cast<std::byte*>(data) - kGuard); }

class CudaGraph final : public RecordedWork {
  public:
    CudaGraph(cudaStream_t stream, ThreadPool& pool, Buffer scratch)
        : stream_(stream), arena_(std::move(scratch)), context_{pool, arena_, stream} {}
    ~CudaGraph() override {
        if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
        if (begin_ != nullptr) cudaEventDestroy(begin_);
        if (end_ != nullptr) cudaEventDestroy(end_);
    }

    Expected<void> capture(const Work& work) {
        ESPALIER_RETURN_IF_ERROR(checked(cudaEventCreate(&begin_), "an event"));
        ESPALIER_RETURN_IF_ERROR(checked(cudaEventCreate(&end_), "an event"));
        ESPALIER_RETURN_IF_ERROR(checked(
            cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin of capture"));
        const Expected<void> done = work(context_);
        cudaGraph_t graph = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
        ESPALIER_RETURN_IF_ERROR(done);
        ESPALIER_RETURN_IF_ERROR(checked(ended, "end of capture"));
        const cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
        cudaGraphDestroy(graph);
        return checked(made, "instantiating the graph");
    }
    Expected<void> play() override {
        ESPALIER_RETURN_IF_ERROR(checked(cudaGraphLaunch(executable_, stream_), "graph launch"));
        return wait_for(stream_);
    }
    Expected<double> timed_play() override {
        ESPALIER_RETURN_IF_ERROR(checked(cudaEventRecord(begin_, stream_), "an event"));
        ESPALIER_RETURN_IF_ERROR(checked(cudaGraphLaunch(executable_, stream_), "graph launch"));
        ESPALIER_RETURN_IF_ERROR(checked(cudaEventRecord(end_, stream_), "an event"));
        ESPALIER_RETURN_IF_ERROR(wait_for(stream_));
        float milliseconds = 0;
        ESPALIER_RETURN_IF_ERROR(
            checked(cudaEventElapsedTime(&milliseconds, begin_, end_), "the time of a replay"));
        return static_cast<double>(milliseconds) * 1e-3;
    }

  private:
    cudaStream_t stream_;
    Arena arena_;
    OpContext context_;
    cudaGraphExec_t executable_ = nullptr;
    cudaEvent_t begin_ = nullptr;
    cudaEvent_t end_ = nullptr;
};

class CudaDevice final : public Device {
  public:
    CudaDevice(std::string name, std::unique_ptr<mla::Kernels> kernels, Allocation allocation,
               cudaStream_t stream)
        : Device(std::move(name), std::move(kernels)),
          guarded_(allocation == Allocation::guarded),
          stream_(stream) {}
    ~CudaDevice() override { cudaStreamDestroy(stream_); }

    bool is_host() const override { return false; }

    Expected<Buffer> allocate(std::size_t bytes, Fill fill) override {
        if (bytes == 0) return Buffer();
        void* base = nullptr;
        const bool guard = guarded_ && fill == Fill::poison;
        const std::size_t total = bytes + (guard ? 2 * kGuard : 0);
        if (const cudaError_t status = cudaMalloc(&base, total); status != cudaSuccess) {
            cudaGetLastError();  // too little memory does not stick
            return fail(ErrorKind::exhausted, "cannot allocate {} bytes on the GPU: {}", bytes,
                        cudaGetErrorString(status));
        }
        Buffer memory(static_cast<std::byte*>(base) + (guard ? kGuard : 0), bytes,
                      guard ? release_guarded : release_exact);
        if (fill == Fill::poison) {
            ESPALIER_RETURN_IF_ERROR(
                checked(cudaMemsetAsync(base, kPoison, total, stream_), "poisoning memory"));
        }
        return memory;
    }
    Expected<void> upload(std::byte* to, const void* from, std::size_t bytes) override {
        if (bytes == 0) return {};
        ESPALIER_RETURN_IF_ERROR(
            checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "upload"));
        return wait_for(stream_);
    }
    Expected<void> download(void* to, const std::byte* from, std::size_t bytes) override {
        if (bytes == 0) return {};
        ESPALIER_RETURN_IF_ERROR(
            checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "download"));
        return wait_for(stream_);
    }
    Expected<void> check_guards(const std::byte* data, std::size_t bytes) override {
        if (!guarded_ || data == nullptr) return {};
        std::vector<std::byte> guards(2 * kGuard);
        ESPALIER_RETURN_IF_ERROR(download(guards.data(), data - kGuard, kGuard));
        ESPALIER_RETURN_IF_ERROR(download(guards.data() + kGuard, data + bytes, kGuard));
        const auto changed = std::find_if(guards.begin(), guards.end(), [](std::byte value) {
            return value != std::byte{kPoison};
        });
        if (changed == guards.end()) return {};
        return fail(ErrorKind::invalid, "memory {} an array of {} bytes was written",
                    changed < guards.begin() + kGuard ? "before" : "behind", bytes);
    }

    Expected<void> run(int, std::size_t scratch, const Work& work) override {
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory,
                                  allocate(std::max<std::size_t>(scratch, 64), Fill::poison));
        const std::byte* data = memory.data();
        const std::size_t bytes = memory.bytes();
        Arena arena(std::move(memory));
        OpContext context{pool_, arena, stream_};
        const Expected<void> done = work(context);
        ESPALIER_RETURN_IF_ERROR(wait_for(stream_));  // before the scratch goes, whatever happened
        ESPALIER_RETURN_IF_ERROR(done);
        return check_guards(data, bytes);
    }
    Expected<std::unique_ptr<RecordedWork>> record(int, std::size_t scratch, Work work) override {
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory,
                                  allocate(std::max<std::size_t>(scratch, 64), Fill::poison));
        ESPALIER_RETURN_IF_ERROR(wait_for(stream_));
        auto recorded = std::make_unique<CudaGraph>(stream_, pool_, std::move(memory));
        ESPALIER_RETURN_IF_ERROR(recorded->capture(work));
        return recorded;
    }

  private:
    bool guarded_;
    cudaStream_t stream_;
    ThreadPool pool_{1};
};

}  // namespace

Expected<std::unique_ptr<Device>> make_cuda_device(Allocation allocation) {
    ESPALIER_ASSIGN_OR_RETURN(auto kernels, mla::make_cuda_kernels());
    cudaStream_t stream = nullptr;
    ESPALIER_RETURN_IF_ERROR(
        checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream"));
    return std::make_unique<CudaDevice>("cuda", std::move(kernels), allocation, stream);
}

}  // namespace espalier::conformance
