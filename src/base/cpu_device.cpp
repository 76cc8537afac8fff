// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_device.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/mapping_guard.hpp"

namespace espalier {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kHugePage = std::size_t{2} << 20;

void unmap(void*, void* block, std::size_t bytes) { munmap(block, bytes); }

class RepeatedCalls final : public RecordedWork {
  public:
    explicit RepeatedCalls(Device::Work work) : work_(std::move(work)) {}
    Expected<void> queue() override { return work_(); }
    Expected<void> play() override { return work_(); }
    std::size_t bytes() const override { return 0; }
    Expected<double> timed_play() override {
        const auto start = Clock::now();
        ESPALIER_RETURN_IF_ERROR(work_());
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

  private:
    Device::Work work_;
};

class ClockMarks final : public TimeMarks {
  public:
    explicit ClockMarks(std::size_t count) : times_(count) {}
    Expected<void> set(Stream, std::size_t mark) override {
        times_.at(mark) = Clock::now();
        return {};
    }
    Expected<double> seconds(std::size_t from, std::size_t to) const override {
        return std::chrono::duration<double>(times_.at(to) - times_.at(from)).count();
    }

  private:
    std::vector<Clock::time_point> times_;
};

}  // namespace

Expected<Buffer> CpuDevice::allocate(std::size_t bytes) {
    if (bytes == 0) return Buffer();
    if (bytes > (std::size_t{1} << 47))
        return fail(ErrorKind::exhausted, "cannot allocate {} bytes", bytes);
    // Over-map by one huge page and trim, so that the kernel can back an aligned range with huge
    // pages.
    const bool huge = bytes >= kHugePage;
    const std::size_t wanted = huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes;
    const std::size_t mapped = huge ? wanted + kHugePage : wanted;
    void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return fail(ErrorKind::exhausted, "cannot allocate {} bytes: the system refused", bytes);
    if (!huge) return Buffer(base, wanted, unmap);

    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const std::uintptr_t aligned = (address + kHugePage - 1) / kHugePage * kHugePage;
    const std::size_t before = aligned - address;
    const std::size_t after = mapped - before - wanted;
    if (before > 0) munmap(base, before);
    if (after > 0) munmap(reinterpret_cast<void*>(aligned + wanted), after);
    madvise(reinterpret_cast<void*>(aligned), wanted, MADV_HUGEPAGE);
    return Buffer(reinterpret_cast<void*>(aligned), wanted, unmap);
}

Expected<void> CpuDevice::upload(Stream, void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
}

Expected<void> CpuDevice::download(Stream, void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return check_mapped_files();  // weights that are read in place
}

Expected<void> CpuDevice::download_all(Stream stream, std::span<const Transfer> transfers) {
    for (const Transfer& one : transfers)
        ESPALIER_RETURN_IF_ERROR(download(stream, one.to, one.from, one.bytes));
    return {};
}

Expected<void> CpuDevice::fill(Stream, void* at, std::byte value, std::size_t bytes) {
    if (bytes > 0) std::memset(at, static_cast<int>(value), bytes);
    return {};
}

Expected<void> CpuDevice::copy(Stream, void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return {};
}

Expected<std::unique_ptr<RecordedWork>> CpuDevice::record(Stream, Work work) {
    return std::make_unique<RepeatedCalls>(std::move(work));
}

Expected<std::unique_ptr<TimeMarks>> CpuDevice::time_marks(std::size_t count) {
    return std::make_unique<ClockMarks>(count);
}

}  // namespace espalier
