// SPDX-License-Identifier: Apache-2.0
// A device whose memory the host cannot touch, on any machine: what a GPU is to a program's
// mistakes. All memory comes from one reserved range without any access rights, except while an
// operation runs (isolated backends and kernels open the range for their duration) and inside the
// device's own copies. A host read of device memory is then a segmentation fault, and an operation
// that is handed memory of the host throws and names it.
#pragma once

#include <cstddef>
#include <memory>

#include "base/cpu_device.hpp"
#include "mla/contract.hpp"
#include "ops/ops.hpp"

namespace espalier::lossless {

class IsolatedDevice final : public CpuDevice {
  public:
    explicit IsolatedDevice(int workers);
    ~IsolatedDevice() override;

    std::string_view name() const override { return "isolated"; }
    bool reads_host_memory() const override { return false; }
    Expected<Buffer> allocate(std::size_t bytes) override;
    Expected<void> upload(Stream, void* to, const void* from, std::size_t bytes) override;
    Expected<void> download(Stream, void* to, const void* from, std::size_t bytes) override;
    Expected<void> fill(Stream, void* at, std::byte value, std::size_t bytes) override;
    Expected<void> copy(Stream, void* to, const void* from, std::size_t bytes) override;

    bool owns(const void* at) const;

    // The range is open while one of these lives. They nest; one thread makes them.
    class Access {
      public:
        explicit Access(IsolatedDevice& device) : device_(device) { device_.open(); }
        ~Access() { device_.close(); }
        Access(const Access&) = delete;
        Access& operator=(const Access&) = delete;

      private:
        IsolatedDevice& device_;
    };

  private:
    struct Range;
    void open();
    void close();

    std::unique_ptr<Range> range_;
    int open_ = 0;
};

// Backends and kernels for such a device, around ones for the CPU.
std::unique_ptr<ops::Backend> isolate(IsolatedDevice& device, std::unique_ptr<ops::Backend> inner);
std::unique_ptr<mla::Kernels> isolate(IsolatedDevice& device, std::unique_ptr<mla::Kernels> inner);

}  // namespace espalier::lossless
