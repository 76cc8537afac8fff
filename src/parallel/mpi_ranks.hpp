// SPDX-License-Identifier: Apache-2.0
// Ranks that mpirun started, on one machine or several. Every exchange is messages between two
// ranks, so that one that does not answer has a name, and every message says which exchange it
// belongs to and how long it is. A process that dies is mpirun's to notice: it ends all.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "parallel/mpi_calls.hpp"
#include "parallel/rank_memory.hpp"
#include "parallel/ranks.hpp"

namespace espalier::parallel {

// Variables that mpirun set for this process; none: it was not started by mpirun, or alone.
struct MpiWorld {
    int rank = 0, count = 1;
    int on_machine = 1;  // ranks
};
std::optional<MpiWorld> mpi_world();

class MpiRanks final : public Ranks {
  public:
    // Opens libespalier-mpi.so, beside the program or in lib/espalier beside its folder.
    static Expected<std::unique_ptr<MpiRanks>> join(std::chrono::seconds timeout);
    // For tests: over any such functions. The world was joined.
    MpiRanks(const MpiCalls& calls, int rank, int count, std::chrono::seconds timeout)
        : calls_(calls), rank_(rank), count_(count), timeout_(timeout) {}
    // An orderly end needs all ranks: after a loss there is none, and mpirun ends the others.
    ~MpiRanks() override;

    int rank() const override { return rank_; }
    int count() const override { return count_; }
    std::string name(int rank) const override;
    void all_gather(const void* mine, void* all, std::span<const std::size_t> bytes) override;
    void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* received,
                    std::span<const std::size_t> receive_bytes) override;
    void broadcast(std::vector<std::byte>& data, int root, std::size_t most) override;
    std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine, int root,
                                               std::size_t most) override;
    void barrier() override;
    void set_timeout(std::chrono::seconds timeout) override { timeout_ = timeout; }
    void leave(const std::string& reason) noexcept override;

  private:
    struct Head {
        std::uint32_t exchange = 0, serial = 0;
        std::uint64_t bytes = 0;
    };
    // A message to or from another rank: head and content as one.
    struct Mail {
        int other = 0;
        void* handle = nullptr;
        std::vector<std::byte> bytes;
    };

    void begin(Exchange exchange);
    Head head_for(std::size_t bytes) const;
    void post(int to, const void* data, std::size_t bytes, bool synchronous);
    void await(int from, std::size_t most);
    // Until all that was posted and awaited is done.
    void settle();
    // The content of a message; exact: of that many bytes, else of at most as many.
    std::span<const std::byte> content(const Mail& mail, std::size_t bytes, bool exact);
    [[noreturn]] void lose(int other, const std::string& reason);

    const MpiCalls& calls_;
    int rank_, count_;
    std::chrono::milliseconds timeout_;
    Exchange exchange_ = Exchange::none;
    std::uint32_t serial_ = 0;
    std::vector<Mail> sent_, received_;  // of the current exchange
    std::optional<RankLost> lost_;
};

}  // namespace espalier::parallel
