// SPDX-License-Identifier: Apache-2.0
// The current GPU as a device: its memory, one stream, graphs as recordings.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/cuda/device_facts.hpp"
#include "base/cuda/portable/machine_code.hpp"
#include "base/cuda_error.hpp"
#include "base/cuda_memory.hpp"
#include "base/cuda_staging.hpp"
#include "base/cuda_time_marks.hpp"
#include "base/device.hpp"

namespace espalier {
namespace {

cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream); }

Expected<void> wait_for(Stream stream) {
    return checked(cudaStreamSynchronize(cuda(stream)), "waiting for the kernels");
}

// Releases what a destructor must not fail on; an error shows at the next checked call.
void release(void*, void* block, std::size_t) { cudaFree(block); }

class CudaGraph final : public RecordedWork {
  public:
    explicit CudaGraph(cudaStream_t stream) : stream_(stream) {}
    ~CudaGraph() override {
        if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    }

    Expected<void> capture(const Device::Work& work) {
        ESPALIER_RETURN_IF_ERROR(checked(
            cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin of capture"));
        const Expected<void> done = work();
        cudaGraph_t graph = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
        ESPALIER_RETURN_IF_ERROR(done);
        ESPALIER_RETURN_IF_ERROR(checked(ended, "end of capture"));
        std::size_t before = 0, after = 0, total = 0, nodes = 0;
        cudaGraphGetNodes(graph, nullptr, &nodes);
        cudaMemGetInfo(&before, &total);
        cudaError_t made = cudaGraphInstantiate(&executable_, graph, 0);
        cudaGraphDestroy(graph);
        if (made == cudaSuccess) made = cudaGraphUpload(executable_, stream_);
        ESPALIER_RETURN_IF_ERROR(checked(made, "instantiating the graph"));
        ESPALIER_RETURN_IF_ERROR(wait_for(stream_));
        cudaMemGetInfo(&after, &total);
        // Memory that others on the GPU took meanwhile is not the graph's.
        bytes_ = std::min(before > after ? before - after : 0, nodes * kMostNodeBytes);
        return {};
    }
    Expected<void> queue() override {
        return checked(cudaGraphLaunch(executable_, stream_), "graph launch");
    }
    Expected<void> play() override {
        ESPALIER_RETURN_IF_ERROR(queue());
        return wait_for(stream_);
    }
    std::size_t bytes() const override { return bytes_; }
    Expected<double> timed_play() override {
        if (around_ == nullptr) {
            ESPALIER_ASSIGN_OR_RETURN(around_, CudaTimeMarks::create(2));
        }
        ESPALIER_RETURN_IF_ERROR(around_->set(stream_, 0));
        ESPALIER_RETURN_IF_ERROR(queue());
        ESPALIER_RETURN_IF_ERROR(around_->set(stream_, 1));
        ESPALIER_RETURN_IF_ERROR(wait_for(stream_));
        return around_->seconds(0, 1);
    }

  private:
    // Bytes of one kernel's node: all of Sapling's recordings together take 4 MB.
    static constexpr std::size_t kMostNodeBytes = std::size_t{64} << 10;

    cudaStream_t stream_;
    cudaGraphExec_t executable_ = nullptr;
    std::unique_ptr<CudaTimeMarks> around_;  // once a replay was timed
    std::size_t bytes_ = 0;
};

class CudaDevice final : public Device {
  public:
    CudaDevice(cudaStream_t stream, const DeviceFacts& facts)
        : stream_(stream), facts_(std::in_place, stream, facts) {}
    ~CudaDevice() override {
        facts_.reset();  // another device may get the stream's handle
        uploads_.reset();
        cudaFreeHost(staging_);
        cudaStreamDestroy(stream_);
    }

    std::string_view name() const override { return "cuda"; }
    DeviceKind kind() const override { return DeviceKind::cuda; }
    bool reads_host_memory() const override { return false; }
    int workers() const override { return 1; }
    Stream stream() const override { return stream_; }
    const DeviceFacts& facts() const override { return facts_->facts(); }

    Expected<Buffer> allocate(std::size_t bytes) override {
        if (bytes == 0) return Buffer();
        void* block = nullptr;
        if (const cudaError_t status = cudaMalloc(&block, bytes); status != cudaSuccess) {
            cudaGetLastError();  // too little memory does not stick
            std::size_t free = 0, total = 0;
            cudaMemGetInfo(&free, &total);
            return fail(
                ErrorKind::exhausted,
                "cannot allocate {} bytes on the GPU, which has {} of {} left: CUDA says {}", bytes,
                free, total, cudaGetErrorString(status));
        }
        Buffer memory(block, bytes, release);
        ESPALIER_RETURN_IF_ERROR(fill(stream_, block, std::byte{0}, bytes));
        ESPALIER_RETURN_IF_ERROR(wait_for(stream_));  // any stream may come next
        return memory;
    }
    // Short uploads from pageable memory CUDA has copied aside when the call returns.
    Expected<void> upload(Stream stream, void* to, const void* from, std::size_t bytes) override {
        if (bytes < CudaStaging::kLeastBytes || !pageable(from))
            return moved(stream, to, from, bytes, cudaMemcpyDefault, "upload");
        if (uploads_ == nullptr) {
            ESPALIER_ASSIGN_OR_RETURN(uploads_, CudaStaging::create());
        }
        return uploads_->upload(cuda(stream), static_cast<std::byte*>(to),
                                static_cast<const std::byte*>(from), bytes);
    }
    Expected<void> download(Stream stream, void* to, const void* from, std::size_t bytes) override {
        ESPALIER_RETURN_IF_ERROR(
            moved(stream, to, from, bytes, cudaMemcpyDeviceToHost, "download"));
        return wait_for(stream);
    }
    // Through memory that the GPU writes to while the host goes on: copies to other memory wait one
    // by one.
    Expected<void> download_all(Stream stream, std::span<const Transfer> transfers) override {
        std::size_t bytes = 0;
        for (const Transfer& one : transfers) bytes += one.bytes;
        ESPALIER_RETURN_IF_ERROR(take_staging(bytes));
        std::byte* next = staging_;
        for (const Transfer& one : transfers) {
            ESPALIER_RETURN_IF_ERROR(
                moved(stream, next, one.from, one.bytes, cudaMemcpyDeviceToHost, "download"));
            next += one.bytes;
        }
        ESPALIER_RETURN_IF_ERROR(wait_for(stream));
        next = staging_;
        for (const Transfer& one : transfers) {
            if (one.bytes > 0) std::memcpy(one.to, next, one.bytes);
            next += one.bytes;
        }
        return {};
    }
    Expected<void> fill(Stream stream, void* at, std::byte value, std::size_t bytes) override {
        if (bytes == 0) return {};
        return checked(cudaMemsetAsync(at, static_cast<int>(value), bytes, cuda(stream)), "fill");
    }
    Expected<void> copy(Stream stream, void* to, const void* from, std::size_t bytes) override {
        return moved(stream, to, from, bytes, cudaMemcpyDeviceToDevice, "copy");
    }
    Expected<void> synchronize(Stream stream) override { return wait_for(stream); }

    Expected<std::unique_ptr<RecordedWork>> record(Stream stream, Work work) override {
        ESPALIER_RETURN_IF_ERROR(wait_for(stream));
        auto recorded = std::make_unique<CudaGraph>(cuda(stream));
        ESPALIER_RETURN_IF_ERROR(recorded->capture(work));
        return recorded;
    }
    Expected<std::unique_ptr<TimeMarks>> time_marks(std::size_t count) override {
        return CudaTimeMarks::create(count);
    }

  private:
    Expected<void> moved(Stream stream, void* to, const void* from, std::size_t bytes,
                         cudaMemcpyKind kind, std::string_view what) {
        if (bytes == 0) return {};
        return checked(cudaMemcpyAsync(to, from, bytes, kind, cuda(stream)), what);
    }

    Expected<void> take_staging(std::size_t bytes) {
        if (bytes <= staging_bytes_) return {};
        void* block = nullptr;
        ESPALIER_RETURN_IF_ERROR(checked(cudaMallocHost(&block, bytes), "memory for downloads"));
        cudaFreeHost(staging_);
        staging_ = static_cast<std::byte*>(block);
        staging_bytes_ = bytes;
        return {};
    }

    static bool pageable(const void* memory) {
        cudaPointerAttributes attributes{};
        return cudaPointerGetAttributes(&attributes, memory) == cudaSuccess &&
               attributes.type == cudaMemoryTypeUnregistered;
    }

    cudaStream_t stream_;
    std::optional<StreamFacts> facts_;
    std::unique_ptr<CudaStaging> uploads_;  // once there was a long one
    std::byte* staging_ = nullptr;          // page-locked memory of the host, for downloads
    std::size_t staging_bytes_ = 0;
};

}  // namespace

Expected<std::unique_ptr<Device>> make_cuda_device(const DeviceLimits& limits) {
    bool portable_waits = false;
    if (limits.portable_kernels) {
        ESPALIER_ASSIGN_OR_RETURN(portable_waits, portable_kernels_wait());
    }
    cudaStream_t stream = nullptr;
    if (const cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        status != cudaSuccess) {
        cudaGetLastError();
        return fail(ErrorKind::not_found, "no GPU can be used: CUDA says {}",
                    cudaGetErrorString(status));
    }
    DeviceFacts facts = limited(facts_of(stream), limits);
    facts.portable_waits |= portable_waits;
    return std::make_unique<CudaDevice>(stream, facts);
}

Expected<CudaMemory> cuda_memory() {
    std::size_t free = 0, total = 0;
    if (const cudaError_t status = cudaMemGetInfo(&free, &total); status != cudaSuccess) {
        cudaGetLastError();
        return fail(ErrorKind::not_found, "no GPU can be used: CUDA says {}",
                    cudaGetErrorString(status));
    }
    return CudaMemory{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
}

}  // namespace espalier
