// SPDX-License-Identifier: Apache-2.0
#include "ops/order/fake_gpu.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace espalier::order_test {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kReserved = std::size_t{1} << 38;

Recording* current = nullptr;

std::uint64_t hash_of(const Ranges& ranges) {
    std::uint64_t hash = 14695981039346656037u;
    for (const MemoryRange& range : ranges)
        for (const std::byte* at = range.begin; at != range.end; ++at)
            hash = (hash ^ static_cast<std::uint64_t>(*at)) * 1099511628211u;
    return hash;
}

Release release_of(const LaunchNeeds& needs, const LaunchGrant& grant) {
    if (grant.holds_next) return Release::behind_wait;
    return grant.early ? needs.release_early : grant.ahead ? needs.release_ahead : needs.release;
}

// Launches that have ended when launch i starts, by what the kernels themselves do; the first
// stands for all that is older than the recording.
std::vector<std::size_t> ended_before(const std::vector<Kernel>& kernels) {
    std::vector<std::size_t> ended(kernels.size() + 1, 0);
    for (std::size_t i = 0; i < kernels.size(); ++i)
        ended[i + 1] = kernels[i].release == Release::behind_wait ? i + 1 : ended[i];
    return ended;
}

// The order of the calls, with all closed but what was declared. Returns what each launch wrote.
std::vector<std::uint64_t> run_in_turn(Recording& r) {
    std::vector<std::uint64_t> wrote;
    for (std::size_t i = 0; i < r.kernels.size(); ++i) {
        const LaunchNeeds& needs = r.launches[i].needs;
        if (r.kernels[i].ahead) {
            r.memory.open_only(needs.ahead, {});
            r.kernels[i].ahead();
        }
        Ranges reads = needs.reads;
        for (const MemoryRange& range : needs.ahead)
            if (range.slots == Slots::all) reads.add(range);  // reads has own slots
        r.memory.open_only(reads, needs.writes);
        r.kernels[i].body();
        r.memory.open_all();
        wrote.push_back(hash_of(needs.writes));
    }
    return wrote;
}

// Every launch starts as soon as it may, and those that may still run then end as late as they can.
// In front of all stands a launch that leaves the memory as it is at first.
class WorstOrder {
  public:
    WorstOrder(Recording& r, const std::vector<std::byte>& first)
        : r_(r), first_(first), wrote_(r.kernels.size()) {
        r_.memory.restore(std::vector<std::byte>(first.size(), std::byte{0x3e}));
    }
    std::vector<std::uint64_t> run() {
        const std::vector<std::size_t> ended = ended_before(r_.kernels);
        for (std::size_t i = 0; i < r_.kernels.size(); ++i) {
            end(ended[i]);
            if (r_.kernels[i].ahead) r_.kernels[i].ahead();
            if (r_.kernels[i].early) run_body(i);
        }
        end(r_.kernels.size() + 1);
        return wrote_;
    }

  private:
    void end(std::size_t count) {
        if (count > 0 && ended_ == 0) r_.memory.restore(first_);
        for (; ended_ < count; ++ended_)
            if (ended_ > 0 && !r_.kernels[ended_ - 1].early) run_body(ended_ - 1);
    }
    void run_body(std::size_t i) {
        r_.kernels[i].body();
        wrote_[i] = hash_of(r_.launches[i].needs.writes);
    }

    Recording& r_;
    const std::vector<std::byte>& first_;
    std::vector<std::uint64_t> wrote_;
    std::size_t ended_ = 0;
};

std::string matched(const Recording& r) {
    if (r.launches.size() != r.kernels.size())
        return fmt::format("{} launches were declared, {} made", r.launches.size(),
                           r.kernels.size());
    for (std::size_t i = 0; i < r.kernels.size(); ++i) {
        const auto& [needs, grant] = r.launches[i];
        const Kernel& kernel = r.kernels[i];
        if (kernel.name != needs.name)
            return fmt::format("launch {} is {}, declared as {}", i, kernel.name, needs.name);
        if (kernel.release != release_of(needs, grant))
            return fmt::format("launch {}, {}: the next one starts otherwise than declared", i,
                               needs.name);
        if (kernel.early != grant.early || (kernel.ahead != nullptr) != grant.ahead)
            return fmt::format("launch {}, {}: not what it was granted", i, needs.name);
    }
    return {};
}

}  // namespace

Memory::Memory() {
    void* base = mmap(nullptr, kReserved, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED, "no {} bytes of addresses", kReserved);
    base_ = static_cast<std::byte*>(base);
}
Memory::~Memory() { munmap(base_, kReserved); }

std::byte* Memory::take(std::int64_t bytes) {
    std::byte* block = base_ + used_;
    used_ += (static_cast<std::size_t>(bytes) + kPage - 1) / kPage * kPage;
    CHECK(used_ <= kReserved, "{} bytes taken", used_);
    return block;
}

void Memory::set(const MemoryRange& range, int rights) {
    const auto first = static_cast<std::size_t>(range.begin - base_) / kPage * kPage;
    const auto end = (static_cast<std::size_t>(range.end - base_) + kPage - 1) / kPage * kPage;
    CHECK(end <= used_, "a range outside the fake GPU's memory");
    CHECK(mprotect(base_ + first, end - first, rights) == 0, "mprotect failed");
}

void Memory::open_all() { set({base_, base_ + used_}, PROT_READ | PROT_WRITE); }

void Memory::open_only(const Ranges& reads, const Ranges& writes) {
    set({base_, base_ + used_}, PROT_NONE);
    for (const MemoryRange& range : reads) set(range, PROT_READ);
    for (const MemoryRange& range : writes) set(range, PROT_READ | PROT_WRITE);
}

void Memory::restore(const std::vector<std::byte>& bytes) {
    std::memcpy(base_, bytes.data(), bytes.size());
}

Recording& recording() {
    CHECK(current != nullptr, "a launch outside a recording");
    return *current;
}
void record_into(Recording* recording) { current = recording; }

std::string grants_of(const Recording& r) {
    std::string text;
    for (const auto& [needs, grant] : r.launches) {
        text += text.empty() ? "" : " | ";
        text += needs.name;
        if (grant.early) text += " [early]";
        if (grant.ahead) text += " [ahead]";
        if (grant.holds_next) text += " [holds]";
    }
    return text;
}

std::string verify(Recording& r) {
    if (std::string wrong = matched(r); !wrong.empty()) return wrong;
    const std::vector<std::byte> first = r.memory.bytes();
    const std::vector<std::uint64_t> in_turn = run_in_turn(r);
    const std::vector<std::byte> last = r.memory.bytes();
    const std::vector<std::uint64_t> worst = WorstOrder(r, first).run();
    for (std::size_t i = 0; i < in_turn.size(); ++i)
        if (in_turn[i] != worst[i])
            return fmt::format("launch {}, {}: other bits in the worst order", i,
                               r.launches[i].needs.name);
    if (last != r.memory.bytes()) return "the memory at the end is not what it was in turn";
    r.memory.restore(first);
    return {};
}

}  // namespace espalier::order_test
