// SPDX-License-Identifier: Apache-2.0
#include "lossless/isolated_device.hpp"

#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <new>

namespace espalier::lossless {
namespace {

// Addresses, not memory: what is untouched is not there.
constexpr std::size_t kReserved = std::size_t{1} << 40;
constexpr std::size_t kPage = 4096;
// Closing and opening 64 MiB takes 32 µs on huge pages and 7.8 ms on small ones.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

}  // namespace

// Blocks of whole pages, dealt in ascending order; a released block serves the next of its size.
// Blocks of a huge page and more begin and end with one, so that none is ever split.
struct IsolatedDevice::Range {
    std::byte* mapped = nullptr;
    std::byte* begin = nullptr;  // the first huge page
    std::size_t dealt = 0;
    std::multimap<std::size_t, std::byte*> released;
    std::mutex guard;  // a buffer may go in another thread

    Range() {
        void* base = mmap(nullptr, kReserved + kHugePage, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) throw std::bad_alloc();
        mapped = static_cast<std::byte*>(base);
        const auto address = reinterpret_cast<std::uintptr_t>(base);
        begin = mapped + (round_up(address, kHugePage) - address);
        madvise(begin, kReserved, MADV_HUGEPAGE);
    }
    ~Range() { munmap(mapped, kReserved + kHugePage); }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;

    struct Block {
        std::byte* data = nullptr;  // null: there is no room
        bool used = false;          // and not zeros any more
    };
    Block take(std::size_t bytes) {
        const std::lock_guard lock(guard);
        if (const auto found = released.find(bytes); found != released.end()) {
            std::byte* data = found->second;
            released.erase(found);
            return {data, bytes < kHugePage};
        }
        const std::size_t first = bytes < kHugePage ? dealt : round_up(dealt, kHugePage);
        if (first > kReserved || bytes > kReserved - first) return {};
        dealt = first + bytes;
        return {begin + first, false};
    }
    static void give_back(void* range, void* block, std::size_t bytes) {
        auto* self = static_cast<Range*>(range);
        if (bytes >= kHugePage) madvise(block, bytes, MADV_DONTNEED);
        const std::lock_guard lock(self->guard);
        self->released.emplace(bytes, static_cast<std::byte*>(block));
    }
    void set_rights(int rights) {
        const std::lock_guard lock(guard);
        if (dealt == 0) return;
        CHECK(mprotect(begin, round_up(dealt, kHugePage), rights) == 0,
              "mprotect of {} bytes failed", dealt);
    }
};

IsolatedDevice::IsolatedDevice(int workers)
    : CpuDevice(workers), range_(std::make_unique<Range>()) {}
IsolatedDevice::~IsolatedDevice() = default;

bool IsolatedDevice::owns(const void* at) const {
    const auto* byte = static_cast<const std::byte*>(at);
    return byte >= range_->begin && byte < range_->begin + kReserved;
}

void IsolatedDevice::open() {
    if (open_++ == 0) range_->set_rights(PROT_READ | PROT_WRITE);
}

void IsolatedDevice::close() {
    if (--open_ == 0) range_->set_rights(PROT_NONE);
}

Expected<Buffer> IsolatedDevice::allocate(std::size_t bytes) {
    if (bytes == 0) return Buffer();
    if (bytes > kReserved)
        return fail(ErrorKind::exhausted, "cannot allocate {} bytes of {}", bytes, kReserved);
    const std::size_t whole = round_up(bytes, bytes < kHugePage ? kPage : kHugePage);
    const Range::Block block = range_->take(whole);
    if (block.data == nullptr)
        return fail(ErrorKind::exhausted, "cannot allocate {} bytes: {} are in use", bytes,
                    range_->dealt);
    if (open_ > 0) range_->set_rights(PROT_READ | PROT_WRITE);  // the new block as well
    if (block.used) {
        const Access access(*this);
        std::memset(block.data, 0, whole);
    }
    return Buffer(block.data, whole, Range::give_back, range_.get());
}

Expected<void> IsolatedDevice::upload(Stream stream, void* to, const void* from,
                                      std::size_t bytes) {
    if (bytes == 0) return {};
    CHECK(owns(to) && !owns(from), "an upload of {} bytes {}", bytes,
          owns(to) ? "from the device" : "to the host");
    const Access access(*this);
    return CpuDevice::upload(stream, to, from, bytes);
}

Expected<void> IsolatedDevice::download(Stream stream, void* to, const void* from,
                                        std::size_t bytes) {
    if (bytes == 0) return {};
    CHECK(owns(from) && !owns(to), "a download of {} bytes {}", bytes,
          owns(from) ? "to the device" : "from the host");
    const Access access(*this);
    return CpuDevice::download(stream, to, from, bytes);
}

Expected<void> IsolatedDevice::fill(Stream stream, void* at, std::byte value, std::size_t bytes) {
    if (bytes == 0) return {};
    CHECK(owns(at), "a fill of {} bytes of the host", bytes);
    const Access access(*this);
    return CpuDevice::fill(stream, at, value, bytes);
}

Expected<void> IsolatedDevice::copy(Stream stream, void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return {};
    CHECK(owns(to) && owns(from), "a copy of {} bytes on the device {} the host", bytes,
          owns(to) ? "from" : "to");
    const Access access(*this);
    return CpuDevice::copy(stream, to, from, bytes);
}

}  // namespace espalier::lossless
