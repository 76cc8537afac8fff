// SPDX-License-Identifier: Apache-2.0
// The first rank's end of its commands (engine/commands.hpp) to the others, and what they answer.
// One thread at a time. Every call throws parallel::RankLost when a rank is gone.
#pragma once

#include <chrono>
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
    // On rank 0; the ranks outlive it. timeout: without an answer in a step.
    explicit RankChannel(parallel::Ranks& ranks,
                         std::chrono::seconds timeout = std::chrono::seconds(30))
        : ranks_(ranks), timeout_(timeout) {
        ranks_.set_timeout(timeout);
    }

    parallel::Ranks& ranks() const { return ranks_; }

    // While it lives there is no limit: reading weights takes one rank longer than another.
    class Unhurried {
      public:
        explicit Unhurried(RankChannel& channel) : channel_(channel) {
            if (channel_.unhurried_++ == 0) channel_.ranks_.set_timeout(std::chrono::seconds(0));
        }
        ~Unhurried() {
            if (--channel_.unhurried_ == 0) channel_.ranks_.set_timeout(channel_.timeout_);
        }
        Unhurried(const Unhurried&) = delete;
        Unhurried& operator=(const Unhurried&) = delete;

      private:
        RankChannel& channel_;
    };

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
    std::chrono::seconds timeout_;
    std::vector<std::byte> buffer_;
    std::uint64_t serial_ = 0;
    int unhurried_ = 0;
};

// The other end: sends an answer. fill: writes it where the command was carried out.
void answer(parallel::Ranks& ranks, const Expected<std::vector<std::byte>>& result);

}  // namespace espalier::engine
