// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>

#include "base/cuda/device_facts.hpp"
#include "base/cuda/launch.hpp"
#include "base/cuda/portable/machine_code.hpp"
#include "base/cuda_error.hpp"

namespace espalier {
namespace {

// Stands for any kernel whose blocks take a multiprocessor each: with all of a block's shared
// memory two do not fit.
__global__ void occupant() {}

Expected<int> attribute(cudaDeviceAttr which, int ordinal) {
    int value = 0;
    ESPALIER_RETURN_IF_ERROR(
        checked(cudaDeviceGetAttribute(&value, which, ordinal), "a property of the GPU"));
    return value;
}

// Makes a GPU the current one until the end of the scope: occupancy is asked of that one alone.
class Current {
  public:
    explicit Current(int ordinal) {
        cudaGetDevice(&before_);
        cudaSetDevice(ordinal);
    }
    ~Current() { cudaSetDevice(before_); }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

  private:
    int before_ = 0;
};

Expected<int> clusters_of(int blocks, std::size_t block_bytes) {
    return resident_clusters(occupant, {.grid = grid_of(blocks),
                                        .threads = 32,
                                        .shared_bytes = block_bytes,
                                        .limit = SharedLimit::whole,
                                        .cluster = blocks});
}

struct Known {
    std::mutex mutex;
    std::map<Stream, const DeviceFacts*> streams;  // of devices
    std::map<int, DeviceFacts> gpus;               // by ordinal
};
Known& everything_known() {
    static Known known;
    return known;
}

}  // namespace

Expected<DeviceFacts> facts_of_gpu(int ordinal) {
    const Current current(ordinal);
    DeviceFacts facts{.ordinal = ordinal};
    ESPALIER_ASSIGN_OR_RETURN(facts.major, attribute(cudaDevAttrComputeCapabilityMajor, ordinal));
    ESPALIER_ASSIGN_OR_RETURN(facts.minor, attribute(cudaDevAttrComputeCapabilityMinor, ordinal));
    ESPALIER_ASSIGN_OR_RETURN(facts.multiprocessors,
                              attribute(cudaDevAttrMultiProcessorCount, ordinal));
    ESPALIER_ASSIGN_OR_RETURN(facts.l2_bytes, attribute(cudaDevAttrL2CacheSize, ordinal));
    ESPALIER_ASSIGN_OR_RETURN(const int processor_bytes,
                              attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, ordinal));
    facts.processor_shared_bytes = static_cast<std::size_t>(processor_bytes);
    ESPALIER_ASSIGN_OR_RETURN(const int block_bytes,
                              attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal));
    facts.block_shared_bytes = static_cast<std::size_t>(block_bytes);
    ESPALIER_ASSIGN_OR_RETURN(facts.processor_registers,
                              attribute(cudaDevAttrMaxRegistersPerMultiprocessor, ordinal));
    if (facts.family() == GpuFamily::none) return facts;
    if (facts.family() == GpuFamily::portable) {
        facts.portable_waits = portable_kernels_wait().value_or(false);
        return facts;
    }
    facts.clusters[1] = facts.multiprocessors;
    for (int blocks = 2; blocks <= kMostClusterBlocks; ++blocks) {
        ESPALIER_ASSIGN_OR_RETURN(facts.clusters[static_cast<std::size_t>(blocks)],
                                  clusters_of(blocks, facts.block_shared_bytes));
    }
    return facts;
}

const DeviceFacts& facts_of(Stream stream) {
    Known& known = everything_known();
    const std::lock_guard lock(known.mutex);
    if (const auto found = known.streams.find(stream); found != known.streams.end())
        return *found->second;
    int ordinal = 0;
    const cudaError_t status = cudaGetDevice(&ordinal);
    CHECK(status == cudaSuccess, "no current GPU: {}", cudaGetErrorString(status));
    if (const auto found = known.gpus.find(ordinal); found != known.gpus.end())
        return found->second;
    const Expected<DeviceFacts> facts = facts_of_gpu(ordinal);
    CHECK(facts.has_value(), "GPU {}: {}", ordinal, facts.error().message);
    return known.gpus.emplace(ordinal, *facts).first->second;
}

StreamFacts::StreamFacts(Stream stream, const DeviceFacts& facts) : stream_(stream), facts_(facts) {
    Known& known = everything_known();
    const std::lock_guard lock(known.mutex);
    known.streams[stream] = &facts_;
}

StreamFacts::~StreamFacts() {
    Known& known = everything_known();
    const std::lock_guard lock(known.mutex);
    known.streams.erase(stream_);
}

}  // namespace espalier
