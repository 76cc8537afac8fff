// SPDX-License-Identifier: Apache-2.0
// The host as a device of the suite: memory from the allocator, thread pools by size.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>

#include "conformance/device.hpp"

namespace espalier::conformance {
namespace {

constexpr std::size_t kGuard = 256;
constexpr int kPoison = 0xff;

class HostRecording final : public RecordedWork {
  public:
    HostRecording(ThreadPool& pool, Buffer scratch, Work work)
        : arena_(std::move(scratch)), context_{pool, arena_}, work_(std::move(work)) {}
    Expected<void> play() override { return work_(context_); }
    Expected<double> timed_play() override {
        const auto start = std::chrono::steady_clock::now();
        ESPALIER_RETURN_IF_ERROR(work_(context_));
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }

  private:
    Arena arena_;
    OpContext context_;
    Work work_;
};

class HostDevice final : public Device {
  public:
    HostDevice(std::string name, std::unique_ptr<mla::Kernels> kernels, Allocation allocation)
        : Device(std::move(name), std::move(kernels)),
          guarded_(allocation == Allocation::guarded) {}

    bool is_host() const override { return true; }

    Expected<Buffer> allocate(std::size_t bytes, Fill fill) override {
        if (bytes == 0) return Buffer();
        if (fill == Fill::none) return Buffer::host(bytes);  // untouched parts cost no memory
        void* base = nullptr;
        const std::size_t guard = guarded_ ? kGuard : 0;
        if (posix_memalign(&base, 64, bytes + 2 * guard) != 0)
            return fail(ErrorKind::exhausted, "cannot allocate {} bytes", bytes);
        std::memset(base, kPoison, bytes + 2 * guard);
        return Buffer(static_cast<std::byte*>(base) + guard, bytes,
                      guarded_ ? release_guarded : release_exact);
    }
    Expected<void> upload(std::byte* to, const void* from, std::size_t bytes) override {
        if (bytes > 0) std::memcpy(to, from, bytes);
        return {};
    }
    Expected<void> download(void* to, const std::byte* from, std::size_t bytes) override {
        if (bytes > 0) std::memcpy(to, from, bytes);
        return {};
    }
    Expected<void> check_guards(const std::byte* data, std::size_t bytes) override {
        if (!guarded_ || data == nullptr) return {};
        const auto changed = [](std::byte value) { return value != std::byte{kPoison}; };
        if (std::any_of(data - kGuard, data, changed))
            return fail(ErrorKind::invalid, "memory before an array of {} bytes was written",
                        bytes);
        if (std::any_of(data + bytes, data + bytes + kGuard, changed))
            return fail(ErrorKind::invalid, "memory behind an array of {} bytes was written",
                        bytes);
        return {};
    }

    Expected<void> run(int workers, std::size_t scratch, const Work& work) override {
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory,
                                  allocate(std::max<std::size_t>(scratch, 64), Fill::poison));
        const std::byte* data = memory.data();
        const std::size_t bytes = memory.bytes();
        Arena arena(std::move(memory));
        OpContext context{pool(workers), arena};
        ESPALIER_RETURN_IF_ERROR(work(context));
        return check_guards(data, bytes);
    }
    Expected<std::unique_ptr<RecordedWork>> record(int workers, std::size_t scratch,
                                                   Work work) override {
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory,
                                  allocate(std::max<std::size_t>(scratch, 64), Fill::poison));
        return std::make_unique<HostRecording>(pool(workers), std::move(memory), std::move(work));
    }

  private:
    static void release_exact(void* data, std::size_t) { std::free(data); }
    static void release_guarded(void* data, std::size_t) {
        std::free(static_cast<std::byte*>(data) - kGuard);
    }
    ThreadPool& pool(int workers) {
        std::unique_ptr<ThreadPool>& found = pools_[workers];
        if (found == nullptr) found = std::make_unique<ThreadPool>(workers);
        return *found;
    }

    bool guarded_;
    std::map<int, std::unique_ptr<ThreadPool>> pools_;
};

}  // namespace

std::unique_ptr<Device> make_host_device(std::string name, std::unique_ptr<mla::Kernels> kernels,
                                         Allocation allocation) {
    return std::make_unique<HostDevice>(std::move(name), std::move(kernels), allocation);
}

std::unique_ptr<Device> make_cpu_device(CpuVariant variant, Allocation allocation) {
    return make_host_device(std::string(name_of(variant)), mla::make_cpu_kernels(variant),
                            allocation);
}

std::unique_ptr<Device> make_oracle_device(Allocation allocation) {
    return make_host_device("oracle", mla::make_reference_kernels(), allocation);
}

}  // namespace espalier::conformance
