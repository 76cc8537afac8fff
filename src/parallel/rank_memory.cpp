// SPDX-License-Identifier: Apache-2.0
#include "parallel/rank_memory.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

#include "base/check.hpp"

namespace espalier::parallel {
namespace {

constexpr std::uint64_t kMagic = 0x314b4e4152505345;  // "ESPRANK1"
constexpr std::size_t kMostWindow = std::size_t{1} << 30;

enum Loss : std::uint32_t { kNone, kWriting, kWritten };

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace

struct alignas(64) RankMemory::Head {
    std::uint64_t magic = kMagic;
    std::uint64_t window_bytes = 0;
    std::int32_t count = 0;
    std::atomic<std::uint32_t> loss{kNone};
    std::int32_t lost_rank = 0;
    char reason[512]{};
};

std::size_t RankMemory::total_bytes(int count, std::size_t window_bytes) {
    return sizeof(Head) + static_cast<std::size_t>(count) * (sizeof(Seat) + 2 * window_bytes);
}

RankMemory::RankMemory(int descriptor, std::byte* data, std::size_t bytes, int count,
                       std::size_t window_bytes)
    : descriptor_(descriptor),
      data_(data),
      bytes_(bytes),
      count_(count),
      window_bytes_(window_bytes) {}

RankMemory::RankMemory(RankMemory&& other) noexcept
    : RankMemory(std::exchange(other.descriptor_, -1), std::exchange(other.data_, nullptr),
                 other.bytes_, other.count_, other.window_bytes_) {}

RankMemory::~RankMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
    if (descriptor_ >= 0) close(descriptor_);
}

Expected<RankMemory> RankMemory::create(int count, std::size_t window_bytes) {
    CHECK(count >= 1 && count <= kMaxRanks, "{} ranks, not 1…{}", count, kMaxRanks);
    const std::size_t lanes = 64 * static_cast<std::size_t>(count);
    CHECK(window_bytes >= lanes && window_bytes <= kMostWindow, "window of {} bytes for {} ranks",
          window_bytes, count);
    window_bytes -= window_bytes % lanes;
    const std::size_t bytes = total_bytes(count, window_bytes);
    const int descriptor = memfd_create("espalier-ranks", MFD_CLOEXEC);
    if (descriptor < 0)
        return fail(ErrorKind::io, "memory of {} ranks: {}", count, std::strerror(errno));
    void* data = MAP_FAILED;
    if (ftruncate(descriptor, static_cast<off_t>(bytes)) == 0)
        data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) {
        const int error = errno;
        close(descriptor);
        return fail(ErrorKind::io, "memory of {} ranks, {} bytes: {}", count, bytes,
                    std::strerror(error));
    }
    RankMemory memory(descriptor, static_cast<std::byte*>(data), bytes, count, window_bytes);
    Head* const head = new (data) Head;
    head->window_bytes = window_bytes;
    head->count = count;
    for (int rank = 0; rank < count; ++rank) new (&memory.seat(rank)) Seat;
    return memory;
}

Expected<RankMemory> RankMemory::attach(int descriptor) {
    struct stat status {};
    if (fstat(descriptor, &status) != 0)
        return fail(ErrorKind::io, "memory of ranks: descriptor {}: {}", descriptor,
                    std::strerror(errno));
    const auto bytes = static_cast<std::size_t>(std::max<off_t>(status.st_size, 0));
    if (bytes < sizeof(Head))
        return fail(ErrorKind::invalid, "memory of ranks: descriptor {} has {} bytes, not {}",
                    descriptor, bytes, sizeof(Head));
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED)
        return fail(ErrorKind::io, "memory of ranks: {} bytes: {}", bytes, std::strerror(errno));
    const Head& head = *static_cast<const Head*>(data);
    RankMemory memory(descriptor, static_cast<std::byte*>(data), bytes, head.count,
                      static_cast<std::size_t>(head.window_bytes));
    const bool known = head.magic == kMagic && memory.count_ >= 1 && memory.count_ <= kMaxRanks &&
                       memory.window_bytes_ > 0 && memory.window_bytes_ <= kMostWindow &&
                       memory.window_bytes_ % (64 * static_cast<std::size_t>(memory.count_)) == 0;
    if (!known || total_bytes(memory.count_, memory.window_bytes_) != bytes)
        return fail(ErrorKind::invalid,
                    "memory of ranks: descriptor {} has {} bytes of another kind or build",
                    descriptor, bytes);
    return memory;
}

RankMemory::Head& RankMemory::head() const { return *reinterpret_cast<Head*>(data_); }

RankMemory::Seat& RankMemory::seat(int rank) const {
    CHECK(rank >= 0 && rank < count_, "rank {} of {}", rank, count_);
    return reinterpret_cast<Seat*>(data_ + sizeof(Head))[rank];
}

std::byte* RankMemory::window(int rank, std::uint32_t round) const {
    CHECK(rank >= 0 && rank < count_, "rank {} of {}", rank, count_);
    std::byte* const windows =
        data_ + sizeof(Head) + static_cast<std::size_t>(count_) * sizeof(Seat);
    return windows + (static_cast<std::size_t>(rank) * 2 + round % 2) * window_bytes_;
}

std::string RankMemory::name(int rank) const {
    const std::int32_t pid = seat(rank).pid.load(std::memory_order_relaxed);
    return pid == 0 ? fmt::format("rank {}", rank) : fmt::format("rank {} (pid {})", rank, pid);
}

void RankMemory::lose(int rank, const std::string& reason) const noexcept {
    Head& shared = head();
    std::uint32_t none = kNone;
    if (!shared.loss.compare_exchange_strong(none, kWriting)) return;
    shared.lost_rank = rank;
    const std::size_t length = std::min(reason.size(), sizeof(shared.reason) - 1);
    std::memcpy(shared.reason, reason.data(), length);
    shared.reason[length] = '\0';
    shared.loss.store(kWritten);
    for (int other = 0; other < count_; ++other) wake(other);
}

bool RankMemory::lost() const { return head().loss.load() == kWritten; }

void RankMemory::check() const {
    if (!lost()) return;
    const Head& shared = head();
    const int rank = std::clamp(shared.lost_rank, 0, count_ - 1);
    throw RankLost(rank, name(rank),
                   std::string(shared.reason, strnlen(shared.reason, sizeof(shared.reason))));
}

// No private futexes: the word is another process's, too.
void RankMemory::wake(int rank) const noexcept {
    syscall(SYS_futex, &seat(rank).published, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void RankMemory::sleep(int rank, std::uint32_t published, std::chrono::milliseconds slice) const {
    Seat& other = seat(rank);
    timespec wait{};
    wait.tv_sec = slice.count() / 1000;
    wait.tv_nsec = slice.count() % 1000 * 1'000'000;
    other.sleepers.fetch_add(1);
    syscall(SYS_futex, &other.published, FUTEX_WAIT, published, &wait, nullptr, 0);
    other.sleepers.fetch_sub(1);
}

}  // namespace espalier::parallel
