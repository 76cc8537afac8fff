// SPDX-License-Identifier: Apache-2.0
// The ranks of one engine: processes (or, in tests, threads) that hold a part of the model each.
// They exchange bytes and never numbers: what is added is added by our own operations, in the
// one-rank order, so no library's reduction can reach a bit of a text.
//
// All ranks make the same calls in the same order; each is a collective and waits for the others.
// What arrives is checked against what this rank expects. A rank that is gone, does not answer or
// is elsewhere throws RankLost here and on every other rank, now and from every later call.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace espalier::parallel {

inline constexpr int kMaxRanks = 64;

class RankLost : public std::runtime_error {
  public:
    // name: "rank 3", "rank 3 (pid 4711)"; reason: "signal 9 (Killed)".
    RankLost(int rank, const std::string& name, const std::string& reason)
        : std::runtime_error(name + ": " + reason), rank_(rank) {}
    int rank() const { return rank_; }

  private:
    int rank_;
};

class Ranks {
  public:
    virtual ~Ranks() = default;
    virtual int rank() const = 0;
    virtual int count() const = 0;
    // "rank 3 (pid 4711)"
    virtual std::string name(int rank) const = 0;

    // Rank r gives bytes[r] bytes; they lie one behind the other in `all`, ascending by rank. The
    // sizes are the same on every rank. `mine` may lie at its place in `all`.
    virtual void all_gather(const void* mine, void* all, std::span<const std::size_t> bytes) = 0;
    // `send` has send_bytes[r] bytes for each rank r, one behind the other; `received` gets
    // receive_bytes[r] of each, likewise. This rank's own bytes are copied.
    virtual void all_to_all(const void* send, std::span<const std::size_t> send_bytes,
                            void* received, std::span<const std::size_t> receive_bytes) = 0;
    // `data` of the root becomes everybody's; more than `most` bytes is a failure.
    virtual void broadcast(std::vector<std::byte>& data, int root, std::size_t most) = 0;
    // On the root: what each rank gave, at most `most` bytes of each; elsewhere empty.
    virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine, int root,
                                                       std::size_t most) = 0;
    virtual void barrier() = 0;

    // A rank that has not come to an exchange for so long is lost; 0: never.
    virtual void set_timeout(std::chrono::seconds timeout) = 0;

    // This rank goes no further: the others' calls throw RankLost with this rank and reason.
    virtual void leave(const std::string& reason) noexcept = 0;

    // Every rank gives as many bytes.
    void all_gather_even(const void* mine, void* all, std::size_t bytes) {
        const std::vector<std::size_t> sizes(static_cast<std::size_t>(count()), bytes);
        all_gather(mine, all, sizes);
    }
};

}  // namespace espalier::parallel
