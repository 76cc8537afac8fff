// SPDX-License-Identifier: Apache-2.0
// The first rank's end of its commands (engine/commands.hpp) to the others, and what they answer.
// One thread at a time. Every call throws parallel::RankLost when a rank is gone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "engine/commands.hpp"
#include "parallel/ranks.hpp"

namespace espalier::engine {

// Bytes of an answer at most.
inline constexpr std::size_t kMostAnswerBytes = std::size_t{1} << 20;

class RankChannel {
  public:
    // On rank 0; the ranks outlive it.
    explicit RankChannel(parallel::Ranks& ranks) : ranks_(ranks) {}

    parallel::Ranks& ranks() const { return ranks_; }

    // fill: writes what follows the command's head.
    template <typename Fill>
    void send(Command command, Fill&& fill) {
        FlatWriter writer(buffer_);
        begin_command(writer, command, ++serial_);
        std::forward<Fill>(fill)(writer);
        ranks_.broadcast(buffer_, 0, kMostCommandBytes);
    }
    void send(Command command) {
        send(command, [](FlatWriter&) {});
    }
    // For destructors: a rank that is gone has nothing to end.
    void send_end(Command command) noexcept;

    // Answers of the other ranks to the last command: [count], this rank's is empty. An error: the
    // first rank that could not carry it out, by name, with its reason.
    Expected<std::vector<std::vector<std::byte>>> answers();

  private:
    parallel::Ranks& ranks_;
    std::vector<std::byte> buffer_;
    std::uint64_t serial_ = 0;
};

// The other end: sends an answer. fill: writes it where the command was carried out.
void answer(parallel::Ranks& ranks, const Expected<std::vector<std::byte>>& result);

}  // namespace espalier::engine
