// SPDX-License-Identifier: Apache-2.0
// The host as a device: its own memory, and the thread pool that CPU operations run on.
#pragma once

#include "base/op_context.hpp"
#include "base/thread_pool.hpp"

namespace espalier {

class CpuDevice : public Device {
  public:
    // workers ≥ 1, the calling thread included.
    explicit CpuDevice(int workers) : pool_(workers) {}

    std::string_view name() const override { return "cpu"; }
    DeviceKind kind() const final { return DeviceKind::cpu; }
    bool reads_host_memory() const override { return true; }
    int workers() const final { return pool_.workers(); }
    Stream stream() const final { return nullptr; }

    // From 2 MiB up on huge pages where the system has them (they take the TLB out of weight
    // streaming). Untouched parts cost no memory.
    Expected<Buffer> allocate(std::size_t bytes) override;
    Expected<void> upload(Stream, void* to, const void* from, std::size_t bytes) override;
    Expected<void> download(Stream, void* to, const void* from, std::size_t bytes) override;
    Expected<void> download_all(Stream, std::span<const Transfer> transfers) final;
    Expected<void> fill(Stream, void* at, std::byte value, std::size_t bytes) override;
    Expected<void> copy(Stream, void* to, const void* from, std::size_t bytes) override;
    Expected<void> synchronize(Stream) override { return {}; }
    Expected<std::unique_ptr<RecordedWork>> record(Stream, Work work) override;
    Expected<std::unique_ptr<TimeMarks>> time_marks(std::size_t count) override;

    ThreadPool& pool() { return pool_; }

  private:
    ThreadPool pool_;
};

// The pool of an operation that runs on the CPU.
inline ThreadPool& pool_of(OpContext& context) {
    CHECK(context.device.kind() == DeviceKind::cpu, "a CPU operation on {}", context.device.name());
    return static_cast<CpuDevice&>(context.device).pool();
}

}  // namespace espalier
