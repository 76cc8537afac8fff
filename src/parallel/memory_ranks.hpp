// SPDX-License-Identifier: Apache-2.0
// A rank over shared memory: its pieces go into its own windows, the others' are read where they
// lie. A window is written again two rounds later: a rank that has published the round between has
// read it, so one wait a round is enough. Each rank is one thread at a time.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "parallel/rank_memory.hpp"
#include "parallel/ranks.hpp"

namespace espalier::parallel {

class MemoryRanks final : public Ranks {
  public:
    // timeout: a rank that has not come to an exchange for so long is lost; 0: never.
    MemoryRanks(std::shared_ptr<const RankMemory> memory, int rank, std::chrono::seconds timeout);

    int rank() const override { return rank_; }
    int count() const override { return memory_->count(); }
    std::string name(int rank) const override { return memory_->name(rank); }
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
    std::byte* begin(Exchange exchange, std::size_t round);
    Slip& my_slip();
    void publish();
    void wait_for(int other);
    Slip slip_of(int other, Exchange exchange, std::size_t round);
    [[noreturn]] void refuse(int other, const std::string& reason);

    std::shared_ptr<const RankMemory> memory_;
    int rank_;
    std::chrono::milliseconds timeout_;
    std::uint32_t round_ = 0;  // of this rank's windows
};

}  // namespace espalier::parallel
