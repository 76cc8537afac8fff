// SPDX-License-Identifier: Apache-2.0
// Where the suite runs: kernels with memory, copies and contexts, so that one set of checks serves
// the host and CUDA. Errors of kind `io` mean that the device itself failed and nothing after it
// can be trusted.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/buffer.hpp"
#include "base/op_context.hpp"
#include "mla/contract.hpp"

namespace espalier::conformance {

using Work = std::function<Expected<void>(OpContext&)>;

// Work that was recorded once and can be played again over changed arrays: a CUDA graph; on the
// host simply the same call.
class RecordedWork {
  public:
    virtual ~RecordedWork() = default;
    // Returns after the work is done.
    virtual Expected<void> play() = 0;
    // Seconds of the work alone.
    virtual Expected<double> timed_play() = 0;
};

// Guarded memory has poison before and behind that check_guards() looks at; exact memory has the
// size asked for, so that AddressSanitizer and compute-sanitizer see the first byte outside.
enum class Allocation { guarded, exact };
enum class Fill { poison, none };

class Device {
  public:
    Device(std::string name, std::unique_ptr<mla::Kernels> kernels)
        : name_(std::move(name)), kernels_(std::move(kernels)) {}
    virtual ~Device() = default;
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    const std::string& name() const { return name_; }
    const mla::Kernels& kernels() const { return *kernels_; }
    // Whether arrays of a call are host memory, which kernels may look at before they run.
    virtual bool is_host() const = 0;

    // 64-byte aligned. Nothing for 0 bytes.
    virtual Expected<Buffer> allocate(std::size_t bytes, Fill fill = Fill::poison) = 0;
    virtual Expected<void> upload(std::byte* to, const void* from, std::size_t bytes) = 0;
    virtual Expected<void> download(void* to, const std::byte* from, std::size_t bytes) = 0;
    // An error if a byte just outside the memory that allocate() gave has changed.
    virtual Expected<void> check_guards(const std::byte* data, std::size_t bytes) = 0;

    // Runs the work with this many workers in an arena of exactly `scratch` poisoned bytes and
    // waits for it.
    virtual Expected<void> run(int workers, std::size_t scratch, const Work& work) = 0;
    virtual Expected<std::unique_ptr<RecordedWork>> record(int workers, std::size_t scratch,
                                                           Work work) = 0;

  private:
    std::string name_;
    std::unique_ptr<mla::Kernels> kernels_;
};

std::unique_ptr<Device> make_host_device(std::string name, std::unique_ptr<mla::Kernels> kernels,
                                         Allocation allocation);
std::unique_ptr<Device> make_cpu_device(CpuVariant variant, Allocation allocation);
std::unique_ptr<Device> make_oracle_device(Allocation allocation);
// An error where the build has no CUDA backend or the machine no such GPU.
Expected<std::unique_ptr<Device>> make_cuda_device(Allocation allocation);

}  // namespace espalier::conformance
