// SPDX-License-Identifier: Apache-2.0
#include "parallel/memory_ranks.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.hpp"

namespace espalier::parallel {
namespace {

using std::chrono::milliseconds;

constexpr std::array kNames{"nothing",   "all_gather", "all_to_all",
                            "broadcast", "gather",     "barrier"};

constexpr std::string_view name_of(std::uint32_t exchange) {
    return exchange < kNames.size() ? kNames[exchange] : "an unknown exchange";
}

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// The part of `bytes` that travels in a round.
struct Piece {
    std::size_t from = 0, bytes = 0;
};
Piece piece_of(std::size_t bytes, std::size_t room, std::size_t round) {
    const std::size_t from = std::min(bytes, round * room);
    return {from, std::min(room, bytes - from)};
}

std::size_t rounds_of(std::size_t most, std::size_t room) {
    return std::max<std::size_t>(1, most / room + (most % room != 0));
}

void copy_bytes(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

}  // namespace

MemoryRanks::MemoryRanks(std::shared_ptr<const RankMemory> memory, int rank,
                         std::chrono::seconds timeout)
    : memory_(std::move(memory)), rank_(rank), timeout_(timeout) {
    CHECK(rank >= 0 && rank < memory_->count(), "rank {} of {}", rank, memory_->count());
}

std::byte* MemoryRanks::begin(Exchange exchange, std::size_t round) {
    memory_->check();
    ++round_;
    Slip& slip = my_slip();
    slip.exchange = static_cast<std::uint32_t>(exchange);
    slip.piece = static_cast<std::uint32_t>(round);
    return memory_->window(rank_, round_);
}

Slip& MemoryRanks::my_slip() { return memory_->seat(rank_).slips[round_ % 2]; }

void MemoryRanks::publish() {
    RankMemory::Seat& seat = memory_->seat(rank_);
    seat.published.store(round_);
    if (seat.sleepers.load() > 0) memory_->wake(rank_);
}

// Spins for as long as a layer takes, then lets others run, then sleeps. A slice counts as little
// more than itself, so that time in which this process was stopped is not held against the other.
void MemoryRanks::wait_for(int other) {
    constexpr int kSpins = 2000, kYields = 100;
    constexpr milliseconds kSlice{50};
    const RankMemory::Seat& seat = memory_->seat(other);
    milliseconds waited{0};
    for (int turn = 0;; ++turn) {
        const std::uint32_t published = seat.published.load();
        if (static_cast<std::int32_t>(published - round_) >= 0) return;
        if (turn < kSpins) {
            pause();
            continue;
        }
        memory_->check();
        if (turn < kSpins + kYields) {
            sched_yield();
            continue;
        }
        const auto before = std::chrono::steady_clock::now();
        memory_->sleep(other, published, kSlice);
        const auto slept = std::chrono::steady_clock::now() - before;
        waited += std::min(std::chrono::duration_cast<milliseconds>(slept), 2 * kSlice);
        if (timeout_.count() > 0 && waited >= timeout_)
            refuse(other, fmt::format("no answer for {} s", timeout_.count() / 1000));
    }
}

// A copy, so that what was checked is what is used.
Slip MemoryRanks::slip_of(int other, Exchange exchange, std::size_t round) {
    wait_for(other);
    const Slip slip = memory_->seat(other).slips[round_ % 2];
    if (slip.exchange != static_cast<std::uint32_t>(exchange) || slip.piece != round)
        refuse(other, fmt::format("round {} of {}, where {} is in round {} of {}", slip.piece,
                                  name_of(slip.exchange), memory_->name(rank_), round,
                                  name_of(static_cast<std::uint32_t>(exchange))));
    return slip;
}

void MemoryRanks::refuse(int other, const std::string& reason) {
    memory_->lose(other, reason);
    memory_->check();
    throw RankLost(other, memory_->name(other), reason);  // while another thread writes its loss
}

void MemoryRanks::all_gather(const void* mine, void* all, std::span<const std::size_t> bytes) {
    CHECK(std::ssize(bytes) == count(), "{} sizes of {} ranks", bytes.size(), count());
    const std::size_t room = memory_->window_bytes();
    const std::size_t rounds = rounds_of(std::ranges::max(bytes), room);
    const std::size_t own = bytes[static_cast<std::size_t>(rank_)];
    for (std::size_t round = 0; round < rounds; ++round) {
        std::byte* const window = begin(Exchange::all_gather, round);
        my_slip().bytes[0] = own;
        const Piece given = piece_of(own, room, round);
        copy_bytes(window, static_cast<const std::byte*>(mine) + given.from, given.bytes);
        publish();
        std::size_t place = 0;
        for (int other = 0; other < count(); ++other) {
            const std::size_t expected = bytes[static_cast<std::size_t>(other)];
            std::byte* const to = static_cast<std::byte*>(all) + place;
            place += expected;
            if (other == rank_) {
                copy_bytes(to + given.from, static_cast<const std::byte*>(mine) + given.from,
                           given.bytes);
                continue;
            }
            const Slip slip = slip_of(other, Exchange::all_gather, round);
            if (slip.bytes[0] != expected)
                refuse(other, fmt::format("{} bytes in all_gather, where {} expects {}",
                                          slip.bytes[0], memory_->name(rank_), expected));
            const Piece taken = piece_of(expected, room, round);
            copy_bytes(to + taken.from, memory_->window(other, round_), taken.bytes);
        }
    }
}

void MemoryRanks::all_to_all(const void* send, std::span<const std::size_t> send_bytes,
                             void* received, std::span<const std::size_t> receive_bytes) {
    CHECK(std::ssize(send_bytes) == count() && std::ssize(receive_bytes) == count(),
          "{} and {} sizes of {} ranks", send_bytes.size(), receive_bytes.size(), count());
    const std::size_t lane = memory_->window_bytes() / static_cast<std::size_t>(count());
    const auto me = static_cast<std::size_t>(rank_);
    CHECK(send_bytes[me] == receive_bytes[me], "{} bytes to itself, {} from itself", send_bytes[me],
          receive_bytes[me]);
    // The longest part of any pair: what the others send to each other is in their slips.
    std::size_t longest = std::ranges::max(send_bytes);
    for (std::size_t round = 0; round < rounds_of(longest, lane); ++round) {
        std::byte* const window = begin(Exchange::all_to_all, round);
        std::size_t from = 0, place = 0;
        for (std::size_t to = 0; to < send_bytes.size(); ++to) {
            my_slip().bytes[to] = send_bytes[to];
            const Piece given = piece_of(send_bytes[to], lane, round);
            copy_bytes(window + to * lane, static_cast<const std::byte*>(send) + from + given.from,
                       given.bytes);
            from += send_bytes[to];
        }
        publish();
        for (std::size_t other = 0; other < receive_bytes.size(); ++other) {
            const std::size_t expected = receive_bytes[other];
            const std::byte* window_of_other = window;
            if (other != me) {
                const Slip slip = slip_of(static_cast<int>(other), Exchange::all_to_all, round);
                if (slip.bytes[me] != expected)
                    refuse(static_cast<int>(other),
                           fmt::format("{} bytes in all_to_all, where {} expects {}",
                                       slip.bytes[me], memory_->name(rank_), expected));
                for (int to = 0; to < count(); ++to)
                    longest = std::max<std::size_t>(longest, slip.bytes[to]);
                window_of_other = memory_->window(static_cast<int>(other), round_);
            }
            const Piece taken = piece_of(expected, lane, round);
            copy_bytes(static_cast<std::byte*>(received) + place + taken.from,
                       window_of_other + me * lane, taken.bytes);
            place += expected;
        }
    }
}

void MemoryRanks::broadcast(std::vector<std::byte>& data, int root, std::size_t most) {
    CHECK(root >= 0 && root < count(), "root {} of {} ranks", root, count());
    CHECK(rank_ != root || data.size() <= most, "{} bytes to broadcast, at most {}", data.size(),
          most);
    const std::size_t room = memory_->window_bytes();
    if (rank_ != root) data.clear();
    for (std::size_t round = 0; round < rounds_of(data.size(), room); ++round) {
        std::byte* const window = begin(Exchange::broadcast, round);
        my_slip().bytes[0] = data.size();
        if (rank_ == root) {
            const Piece given = piece_of(data.size(), room, round);
            copy_bytes(window, data.data() + given.from, given.bytes);
        }
        publish();
        for (int other = 0; other < count(); ++other) {
            if (other == rank_) continue;
            const Slip slip = slip_of(other, Exchange::broadcast, round);
            if (other != root) continue;
            if (round == 0) {
                if (slip.bytes[0] > most)
                    refuse(root, fmt::format("{} bytes in broadcast, where {} takes {}",
                                             slip.bytes[0], memory_->name(rank_), most));
                data.resize(slip.bytes[0]);
            }
            const Piece taken = piece_of(data.size(), room, round);
            copy_bytes(data.data() + taken.from, memory_->window(root, round_), taken.bytes);
        }
    }
}

std::vector<std::vector<std::byte>> MemoryRanks::gather(std::span<const std::byte> mine, int root,
                                                        std::size_t most) {
    CHECK(root >= 0 && root < count(), "root {} of {} ranks", root, count());
    CHECK(mine.size() <= most, "{} bytes to gather, at most {}", mine.size(), most);
    const std::size_t room = memory_->window_bytes();
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(rank_ == root ? count() : 0));
    if (rank_ == root) all[static_cast<std::size_t>(root)].assign(mine.begin(), mine.end());
    std::size_t longest = mine.size();
    for (std::size_t round = 0; round < rounds_of(longest, room); ++round) {
        std::byte* const window = begin(Exchange::gather, round);
        my_slip().bytes[0] = mine.size();
        const Piece given = piece_of(mine.size(), room, round);
        copy_bytes(window, mine.data() + given.from, given.bytes);
        publish();
        for (int other = 0; other < count(); ++other) {
            if (other == rank_) continue;
            const Slip slip = slip_of(other, Exchange::gather, round);
            if (slip.bytes[0] > most)
                refuse(other, fmt::format("{} bytes in gather, where {} takes {}", slip.bytes[0],
                                          memory_->name(rank_), most));
            longest = std::max<std::size_t>(longest, slip.bytes[0]);
            if (rank_ != root) continue;
            std::vector<std::byte>& part = all[static_cast<std::size_t>(other)];
            part.resize(slip.bytes[0]);
            const Piece taken = piece_of(part.size(), room, round);
            copy_bytes(part.data() + taken.from, memory_->window(other, round_), taken.bytes);
        }
    }
    return all;
}

void MemoryRanks::barrier() {
    begin(Exchange::barrier, 0);
    publish();
    for (int other = 0; other < count(); ++other)
        if (other != rank_) slip_of(other, Exchange::barrier, 0);
}

void MemoryRanks::leave(const std::string& reason) noexcept { memory_->lose(rank_, reason); }

}  // namespace espalier::parallel
