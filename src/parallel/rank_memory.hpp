// SPDX-License-Identifier: Apache-2.0
// Memory that all ranks of one machine share: a seat for each (what it has published, and how far
// it is), two windows of bytes for each, and the first loss. An inherited file descriptor is all
// that a child needs of it; nothing of it has a name in the file system.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.hpp"
#include "parallel/ranks.hpp"

namespace espalier::parallel {

enum class Exchange : std::uint32_t { none, all_gather, all_to_all, broadcast, gather, barrier };

// What a rank says of its part of an exchange.
struct Slip {
    std::uint32_t exchange = 0;        // an Exchange
    std::uint32_t piece = 0;           // of its bytes, in this round
    std::uint64_t bytes[kMaxRanks]{};  // in all, for each rank; [0] alone where all get the same
};

class RankMemory {
  public:
    static constexpr std::size_t kWindowBytes = std::size_t{1} << 20;

    // window_bytes: what a rank gives in one round, at most; all ranks get equal lanes of it.
    static Expected<RankMemory> create(int count, std::size_t window_bytes = kWindowBytes);
    // Of a descriptor that was inherited. Its size and first words are checked.
    static Expected<RankMemory> attach(int descriptor);
    RankMemory(RankMemory&& other) noexcept;
    RankMemory& operator=(RankMemory&&) = delete;
    ~RankMemory();

    int descriptor() const { return descriptor_; }
    int count() const { return count_; }
    std::size_t window_bytes() const { return window_bytes_; }

    struct alignas(64) Seat {
        std::atomic<std::uint32_t> published{0};  // rounds
        std::atomic<std::uint32_t> sleepers{0};   // that wait for it
        std::atomic<std::int32_t> pid{0};         // 0: a thread of this process
        Slip slips[2];                            // of even and odd rounds
    };
    Seat& seat(int rank) const;
    std::byte* window(int rank, std::uint32_t round) const;

    // "rank 3 (pid 4711)"
    std::string name(int rank) const;
    // The first loss stays; the others' waits end. Safe from any thread.
    void lose(int rank, const std::string& reason) const noexcept;
    bool lost() const;
    // Throws it, if there is one.
    void check() const;
    // Ends the sleep of all that wait for the rank's next round.
    void wake(int rank) const noexcept;
    // Returns after `slice`, when woken, or at once if the word has another value.
    void sleep(int rank, std::uint32_t published, std::chrono::milliseconds slice) const;

  private:
    struct Head;
    RankMemory(int descriptor, std::byte* data, std::size_t bytes, int count,
               std::size_t window_bytes);
    static std::size_t total_bytes(int count, std::size_t window_bytes);
    Head& head() const;

    int descriptor_ = -1;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
    int count_ = 0;
    std::size_t window_bytes_ = 0;
};

}  // namespace espalier::parallel
