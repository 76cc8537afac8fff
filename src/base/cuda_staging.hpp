// SPDX-License-Identifier: Apache-2.0
// Long uploads from pageable memory: a mapped checkpoint's weights. The driver's own copy of such
// memory is one thread that takes every page fault and fills one page-locked buffer after the
// other. Here several threads do that, each with two buffers of its own, and the GPU fetches one
// while the other is filled. Used by CudaDevice alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "base/thread_pool.hpp"

namespace espalier {

class CudaStaging {
  public:
    // Shorter uploads are left to the driver.
    static constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

    static Expected<std::unique_ptr<CudaStaging>> create();
    ~CudaStaging();
    CudaStaging(const CudaStaging&) = delete;
    CudaStaging& operator=(const CudaStaging&) = delete;

    // In the order of the stream; the source may be changed as soon as it returns.
    Expected<void> upload(cudaStream_t stream, std::byte* to, const std::byte* from,
                          std::size_t bytes);

  private:
    struct Piece {
        std::byte* memory = nullptr;    // page-locked, kPieceBytes
        cudaEvent_t fetched = nullptr;  // by the GPU: it may be filled again
    };
    struct Worker {
        Piece pieces[2];
        std::size_t next = 0;
    };

    explicit CudaStaging(int workers)
        : pool_(workers), workers_(static_cast<std::size_t>(workers)) {}
    Expected<void> reserve();
    cudaError_t send(Worker& worker, cudaStream_t stream, std::byte* to, const std::byte* from,
                     std::size_t bytes) const;

    ThreadPool pool_;
    std::vector<Worker> workers_;
    std::byte* memory_ = nullptr;
    int gpu_ = 0;
};

}  // namespace espalier
