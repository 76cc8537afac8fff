// SPDX-License-Identifier: Apache-2.0
// The order of launches on one stream of a GPU, where a launch may be set up, and may read, before
// the one in front of it has ended (programmatic dependent launch). An operation declares what its
// launch touches and what of it comes early; from a log of the launches that may still run the
// order derives what the launch may do. It belongs to the operation's context (op_context.hpp).
// Devices without such launches have nothing to declare. docs/cuda.md tells the rules.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "base/check.hpp"
#include "base/matrix.hpp"

namespace espalier {

// Slots of a layer's pages. A batch appends its rows' own slots; what they had before is history.
enum class Slots : std::uint8_t { all, appended, history };

struct MemoryRange {
    const std::byte* begin = nullptr;
    const std::byte* end = nullptr;
    Slots slots = Slots::all;

    bool empty() const { return begin == end; }
    bool operator==(const MemoryRange&) const = default;
};

inline const MemoryRange kAllMemory{reinterpret_cast<const std::byte*>(std::uintptr_t{0}),
                                    reinterpret_cast<const std::byte*>(~std::uintptr_t{0})};

// All memory that two ranges have in common; appended slots are no history.
inline bool overlap(const MemoryRange& a, const MemoryRange& b) {
    const bool apart = (a.slots == Slots::appended && b.slots == Slots::history) ||
                       (a.slots == Slots::history && b.slots == Slots::appended);
    return !apart && a.begin < b.end && b.begin < a.end;
}

template <typename T>
MemoryRange range_of(const T* data, std::int64_t count) {
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    return {begin, data == nullptr ? begin : begin + count * static_cast<std::int64_t>(sizeof(T))};
}
// From the first element to the last: columns of other matrices between the rows included.
inline MemoryRange range_of(const Matrix& m) {
    if (m.data == nullptr || m.rows == 0 || m.cols == 0) return {};
    const auto bytes = static_cast<std::int64_t>(bytes_of(m.dtype));
    return {m.data, m.data + ((m.rows - 1) * m.stride + m.cols) * bytes};
}

// A few ranges; one that is empty, or lies in another one, is left out.
class Ranges {
  public:
    Ranges() = default;
    Ranges(std::initializer_list<MemoryRange> ranges) {
        for (const MemoryRange& range : ranges) add(range);
    }
    void add(const MemoryRange& range) {
        if (range.empty() || holds(range)) return;
        CHECK(count_ < kMost, "a launch that touches more than {} ranges", kMost);
        list_[count_++] = range;
    }
    void add(const Ranges& ranges) {
        for (const MemoryRange& range : ranges) add(range);
    }
    // For tests, which leave one out.
    void remove(std::size_t index) {
        for (; index + 1 < count_; ++index) list_[index] = list_[index + 1];
        --count_;
    }
    const MemoryRange* begin() const { return list_.data(); }
    const MemoryRange* end() const { return list_.data() + count_; }
    std::size_t size() const { return count_; }
    bool empty() const { return count_ == 0; }
    bool meet(const Ranges& others) const;

  private:
    bool holds(const MemoryRange& range) const;

    static constexpr std::size_t kMost = 16;
    std::array<MemoryRange, kMost> list_{};
    std::size_t count_ = 0;
};

// When a kernel lets the next one be set up and begin.
enum class Release : std::uint8_t {
    at_once,      // with its own first instructions
    behind_wait,  // when all in front of it has ended; or, of an ordinary launch, when itself has
};

// Memory that one launch touches, as its operation knows it. Weights, which no launch writes,
// are not listed.
struct LaunchNeeds {
    const char* name = "";
    Ranges reads{};   // and does not write
    Ranges writes{};  // and may read
    // Before its wait, if it may: reads besides those above; or all that it does.
    Ranges ahead{};
    bool early = false;
    // Ranges that an operation behind reads ahead: where an older launch may still write, this
    // lets none start before that has ended.
    Ranges holds_back{};
    Release release = Release::at_once;
    // Release of a kernel that was granted less than it asked for.
    Release release_early = Release::at_once;  // with all early
    Release release_ahead = Release::at_once;
};

// Freedoms and duties of a launch; a kernel's parameter.
struct LaunchGrant {
    bool early = false;       // it need not wait before its own end
    bool ahead = false;       // likewise before it reads what it wanted ahead
    bool holds_next = false;  // it lets the next one start only behind its wait

    bool operator==(const LaunchGrant&) const = default;
};

// Sees every launch before it is made: tests and debugging.
class OrderWatch {
  public:
    virtual ~OrderWatch() = default;
    virtual void declared(LaunchNeeds& needs) = 0;
    virtual void granted(const LaunchNeeds& needs, const LaunchGrant& grant) = 0;
};

class StreamOrder {
  public:
    // Called before each launch, in the order of the stream.
    LaunchGrant launch(LaunchNeeds needs);
    // Launches of which nothing is known are in front: they may still run, and write anything. So
    // it is at first.
    void forget();
    // All launches in front have ended.
    void settle();

    // Not owned; null: no watch.
    void watch(OrderWatch* watch) { watch_ = watch; }

  private:
    struct Entry {
        Ranges reads, writes;
    };
    // Launches that may still run when the next one starts.
    std::span<const Entry> running() const { return {log_.data(), count_}; }
    bool written(const Ranges& ranges) const;
    bool read(const Ranges& ranges) const;
    void append(const LaunchNeeds& needs);

    static constexpr std::size_t kMostRunning = 16;  // with more, nothing is known of them
    std::array<Entry, kMostRunning> log_{};
    std::size_t count_ = 0;
    bool unknown_ = true;  // older ones that nothing is known of
    OrderWatch* watch_ = nullptr;
};

}  // namespace espalier
