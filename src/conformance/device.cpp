// SPDX-License-Identifier: Apache-2.0
#include "conformance/device.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace espalier::conformance {
namespace {

constexpr std::size_t kGuard = 512;  // keeps the alignment of any device
constexpr std::byte kPoison{0xff};

// Scratch and work in one: a recording outlives the call that made it.
class RecordedInArena final : public RecordedWork {
  public:
    RecordedInArena(espalier::Device& device, Buffer scratch, Work work)
        : arena_(std::move(scratch)), context_{device, arena_}, work_(std::move(work)) {}
    Expected<void> record() {
        ESPALIER_ASSIGN_OR_RETURN(
            recorded_, context_.device.record(context_.stream, [this] { return work_(context_); }));
        return {};
    }
    Expected<void> queue() override { return recorded_->queue(); }
    Expected<void> play() override { return recorded_->play(); }
    std::size_t bytes() const override { return recorded_->bytes(); }
    Expected<double> timed_play() override { return recorded_->timed_play(); }

  private:
    Arena arena_;
    OpContext context_;
    Work work_;
    std::unique_ptr<RecordedWork> recorded_;
};

// From malloc, whose ends AddressSanitizer knows.
Expected<Buffer> host_memory(std::size_t bytes) {
    void* block = nullptr;
    if (posix_memalign(&block, 64, bytes) != 0)
        return fail(ErrorKind::exhausted, "cannot allocate {} bytes", bytes);
    return Buffer(block, bytes, [](void*, void* memory, std::size_t) { std::free(memory); });
}

}  // namespace

Device::Device(std::string name, std::unique_ptr<mla::Kernels> kernels,
               std::unique_ptr<espalier::Device> base, Allocation allocation)
    : name_(std::move(name)),
      kernels_(std::move(kernels)),
      base_(std::move(base)),
      allocation_(allocation) {}

Expected<Buffer> Device::allocate(std::size_t bytes, Fill fill) {
    if (bytes == 0 || fill == Fill::none) return base_->allocate(bytes);
    const std::size_t guard = allocation_ == Allocation::guarded ? kGuard : 0;
    const std::size_t total = bytes + 2 * guard;
    ESPALIER_ASSIGN_OR_RETURN(Buffer memory,
                              is_host() ? host_memory(total) : base_->allocate(total));
    ESPALIER_RETURN_IF_ERROR(base_->fill(base_->stream(), memory.data(), kPoison, total));
    return std::move(memory).narrowed(guard, bytes);
}

Expected<void> Device::upload(std::byte* to, const void* from, std::size_t bytes) {
    return base_->upload(base_->stream(), to, from, bytes);
}

Expected<void> Device::download(void* to, const std::byte* from, std::size_t bytes) {
    return base_->download(base_->stream(), to, from, bytes);
}

Expected<void> Device::check_guards(const std::byte* data, std::size_t bytes) {
    if (allocation_ == Allocation::exact || data == nullptr) return {};
    std::array<std::byte, 2 * kGuard> guards;
    ESPALIER_RETURN_IF_ERROR(download(guards.data(), data - kGuard, kGuard));
    ESPALIER_RETURN_IF_ERROR(download(guards.data() + kGuard, data + bytes, kGuard));
    const auto* changed = std::find_if(guards.begin(), guards.end(),
                                       [](std::byte value) { return value != kPoison; });
    if (changed == guards.end()) return {};
    return fail(ErrorKind::invalid, "memory {} an array of {} bytes was written",
                changed < guards.begin() + kGuard ? "before" : "behind", bytes);
}

espalier::Device& Device::with_workers(int workers) {
    if (base_->kind() != DeviceKind::cpu) return *base_;
    return by_workers_.try_emplace(workers, workers).first->second;
}

Expected<void> Device::run(int workers, std::size_t scratch, const Work& work) {
    ESPALIER_ASSIGN_OR_RETURN(Buffer memory, allocate(std::max<std::size_t>(scratch, 64)));
    const std::byte* data = memory.data();
    const std::size_t bytes = memory.bytes();
    Arena arena(std::move(memory));
    OpContext context{with_workers(workers), arena};
    const Expected<void> done = work(context);
    // Before the scratch goes, whatever happened.
    ESPALIER_RETURN_IF_ERROR(context.device.synchronize(context.stream));
    ESPALIER_RETURN_IF_ERROR(done);
    return check_guards(data, bytes);
}

Expected<std::unique_ptr<RecordedWork>> Device::record(int workers, std::size_t scratch,
                                                       Work work) {
    ESPALIER_ASSIGN_OR_RETURN(Buffer memory, allocate(std::max<std::size_t>(scratch, 64)));
    auto recorded = std::make_unique<RecordedInArena>(with_workers(workers), std::move(memory),
                                                      std::move(work));
    ESPALIER_RETURN_IF_ERROR(recorded->record());
    return recorded;
}

std::unique_ptr<Device> make_host_device(std::string name, std::unique_ptr<mla::Kernels> kernels,
                                         Allocation allocation) {
    return std::make_unique<Device>(std::move(name), std::move(kernels),
                                    std::make_unique<CpuDevice>(1), allocation);
}

std::unique_ptr<Device> make_cpu_device(CpuVariant variant, Allocation allocation) {
    return make_host_device(std::string(name_of(variant)), mla::make_cpu_kernels(variant),
                            allocation);
}

std::unique_ptr<Device> make_oracle_device(Allocation allocation) {
    return make_host_device("oracle", mla::make_reference_kernels(), allocation);
}

Expected<std::unique_ptr<Device>> make_cuda_device(Allocation allocation,
                                                   const DeviceLimits& limits) {
    ESPALIER_ASSIGN_OR_RETURN(auto base, espalier::make_cuda_device(limits));
    ESPALIER_ASSIGN_OR_RETURN(auto kernels, mla::make_cuda_kernels(*base));
    return std::make_unique<Device>("cuda", std::move(kernels), std::move(base), allocation);
}

}  // namespace espalier::conformance
