// SPDX-License-Identifier: Apache-2.0
// Where the suite runs: kernels and the device they are for, whose memory gets guards and poison,
// so that one set of checks serves the host and CUDA.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/cpu_device.hpp"
#include "mla/contract.hpp"

namespace espalier::conformance {

using Work = std::function<Expected<void>(OpContext&)>;

// Guarded memory has poison before and behind that check_guards() looks at; exact memory has the
// size asked for, so that AddressSanitizer and compute-sanitizer see the first byte outside.
enum class Allocation { guarded, exact };
enum class Fill { poison, none };

class Device {
  public:
    Device(std::string name, std::unique_ptr<mla::Kernels> kernels,
           std::unique_ptr<espalier::Device> base, Allocation allocation);

    const std::string& name() const { return name_; }
    const mla::Kernels& kernels() const { return *kernels_; }
    // True if arrays of a call are host memory, which kernels may look at before they run.
    bool is_host() const { return base_->reads_host_memory(); }

    // 64-byte aligned. Nothing for 0 bytes.
    Expected<Buffer> allocate(std::size_t bytes, Fill fill = Fill::poison);
    Expected<void> upload(std::byte* to, const void* from, std::size_t bytes);
    Expected<void> download(void* to, const std::byte* from, std::size_t bytes);
    // An error if a byte just outside the memory that allocate() gave has changed.
    Expected<void> check_guards(const std::byte* data, std::size_t bytes);

    // Runs the work with this many workers in an arena of exactly `scratch` poisoned bytes and
    // waits for it.
    Expected<void> run(int workers, std::size_t scratch, const Work& work);
    Expected<std::unique_ptr<RecordedWork>> record(int workers, std::size_t scratch, Work work);

  private:
    espalier::Device& with_workers(int workers);

    std::string name_;
    std::unique_ptr<mla::Kernels> kernels_;
    std::unique_ptr<espalier::Device> base_;
    Allocation allocation_;
    std::map<int, CpuDevice> by_workers_;  // of the host
};

std::unique_ptr<Device> make_host_device(std::string name, std::unique_ptr<mla::Kernels> kernels,
                                         Allocation allocation);
std::unique_ptr<Device> make_cpu_device(CpuVariant variant, Allocation allocation);
std::unique_ptr<Device> make_oracle_device(Allocation allocation);
// An error where the build has no CUDA backend or the machine no such GPU.
Expected<std::unique_ptr<Device>> make_cuda_device(Allocation allocation,
                                                   const DeviceLimits& limits = {});

}  // namespace espalier::conformance
