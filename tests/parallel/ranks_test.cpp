// SPDX-License-Identifier: Apache-2.0
// Exchanges of ranks against what they must give, at random sizes, windows and orders of arrival;
// ranks that throw, leave, give other sizes or never come.
#include "parallel/ranks.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "parallel/local_ranks.hpp"
#include "parallel/rank_memory.hpp"

namespace espalier::parallel {
namespace {

using Bytes = std::vector<std::byte>;

// What rank `from` gives rank `to` in exchange `serial`: known to every rank.
Bytes bytes_of(int from, int to, int serial, std::size_t count) {
    Bytes bytes(count);
    std::mt19937_64 noise(static_cast<std::uint64_t>((serial * 64 + from) * 64 + to));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(noise());
    return bytes;
}

void append(Bytes& all, const Bytes& part) { all.insert(all.end(), part.begin(), part.end()); }

// A rank comes late, by random times.
class Dawdler {
  public:
    explicit Dawdler(int rank) : noise_(static_cast<unsigned>(rank) + 1) {}
    void wait() {
        const unsigned draw = static_cast<unsigned>(noise_() % 16);
        if (draw < 3) std::this_thread::yield();
        if (draw == 3) std::this_thread::sleep_for(std::chrono::microseconds(noise_() % 700));
    }

  private:
    std::mt19937 noise_;
};

// Sizes from nothing to several windows; the same draw on every rank.
std::size_t random_size(std::mt19937& noise, std::size_t window) {
    switch (noise() % 5) {
        case 0:
            return 0;
        case 1:
            return noise() % 64;
        case 2:
            return window;
        case 3:
            return window + noise() % 3 - 1;
        default:
            return noise() % (3 * window);
    }
}

void exchange_everything(Ranks& ranks, std::size_t window, unsigned seed, int exchanges) {
    const int n = ranks.count(), me = ranks.rank();
    std::mt19937 noise(seed);
    Dawdler dawdler(me);
    const auto sizes = [&](std::size_t count) {
        std::vector<std::size_t> drawn(count);
        for (std::size_t& size : drawn) size = random_size(noise, window);
        return drawn;
    };
    const auto ranks_total = static_cast<std::size_t>(n);
    for (int serial = 0; serial < exchanges; ++serial) {
        dawdler.wait();
        const unsigned kind = static_cast<unsigned>(noise() % 5);
        const int root = static_cast<int>(noise() % static_cast<unsigned>(n));
        if (kind == 0) {
            const auto each = sizes(ranks_total);
            Bytes expected;
            for (int r = 0; r < n; ++r)
                append(expected, bytes_of(r, 0, serial, each[static_cast<std::size_t>(r)]));
            Bytes all(expected.size());
            const Bytes mine = bytes_of(me, 0, serial, each[static_cast<std::size_t>(me)]);
            ranks.all_gather(mine.data(), all.data(), each);
            ASSERT_EQ(all, expected) << "rank " << me << ", exchange " << serial;
        } else if (kind == 1) {
            const auto pairs = sizes(ranks_total * ranks_total);  // [from][to]
            std::vector<std::size_t> send(ranks_total), receive(ranks_total);
            Bytes given, expected;
            for (int r = 0; r < n; ++r) {
                const auto at = static_cast<std::size_t>(r);
                send[at] = pairs[static_cast<std::size_t>(me) * ranks_total + at];
                receive[at] = pairs[at * ranks_total + static_cast<std::size_t>(me)];
                append(given, bytes_of(me, r, serial, send[at]));
                append(expected, bytes_of(r, me, serial, receive[at]));
            }
            Bytes received(expected.size());
            ranks.all_to_all(given.data(), send, received.data(), receive);
            ASSERT_EQ(received, expected) << "rank " << me << ", exchange " << serial;
        } else if (kind == 2) {
            const std::size_t size = random_size(noise, window);
            Bytes data = bytes_of(me, 0, serial, me == root ? size : 5);
            ranks.broadcast(data, root, 4 * window);
            ASSERT_EQ(data, bytes_of(root, 0, serial, size)) << "exchange " << serial;
        } else if (kind == 3) {
            const auto each = sizes(ranks_total);
            const auto all = ranks.gather(
                bytes_of(me, 0, serial, each[static_cast<std::size_t>(me)]), root, 4 * window);
            ASSERT_EQ(all.size(), me == root ? ranks_total : 0u);
            for (std::size_t r = 0; r < all.size(); ++r)
                ASSERT_EQ(all[r], bytes_of(static_cast<int>(r), 0, serial, each[r]));
        } else {
            ranks.barrier();
        }
    }
}

TEST(Ranks, ExchangesAtRandomSizesAndTimes) {
    for (const int n : {1, 2, 3, 4, 7})
        for (const std::size_t window : {std::size_t{64} * 84, std::size_t{64} * 84 * 8})
            run_local_ranks(n,
                            [&](Ranks& ranks) {
                                exchange_everything(ranks, window, static_cast<unsigned>(n), 150);
                            },
                            {.window_bytes = window});
}

TEST(Ranks, GatherInPlace) {
    run_local_ranks(3, [](Ranks& ranks) {
        std::vector<int> all(3, -1);
        all[static_cast<std::size_t>(ranks.rank())] = 10 + ranks.rank();
        ranks.all_gather_even(&all[static_cast<std::size_t>(ranks.rank())], all.data(),
                              sizeof(int));
        EXPECT_EQ(all, (std::vector<int>{10, 11, 12}));
    });
}

TEST(Ranks, BarrierHoldsUntilAllCame) {
    std::atomic<int> came{0};
    run_local_ranks(4, [&](Ranks& ranks) {
        for (int turn = 1; turn <= 50; ++turn) {
            came.fetch_add(1);
            ranks.barrier();
            EXPECT_GE(came.load(), 4 * turn);
            ranks.barrier();
        }
    });
}

// The message that every rank's call ends with.
std::vector<std::string> losses(int n, const std::function<void(Ranks&)>& body,
                                const LocalOptions& options = {}) {
    std::vector<std::string> messages(static_cast<std::size_t>(n));
    run_local_ranks(
        n,
        [&](Ranks& ranks) {
            std::string& message = messages[static_cast<std::size_t>(ranks.rank())];
            try {
                body(ranks);
            } catch (const RankLost& loss) {
                message = loss.what();
                EXPECT_THROW(ranks.barrier(), RankLost);  // and from every later call
            }
        },
        options);
    return messages;
}

TEST(Ranks, ARankThatThrowsReleasesTheOthers) {
    std::atomic<int> released{0};
    const auto body = [&](Ranks& ranks) {
        ranks.barrier();
        if (ranks.rank() == 2) throw std::logic_error("no such page");
        try {
            ranks.barrier();
        } catch (const RankLost& loss) {
            EXPECT_STREQ(loss.what(), "rank 2: no such page");
            EXPECT_EQ(loss.rank(), 2);
            ++released;
            throw;
        }
    };
    EXPECT_THROW(run_local_ranks(4, body), std::logic_error);
    EXPECT_EQ(released, 3);
}

TEST(Ranks, ARankThatDoesNotComeIsNamed) {
    std::atomic<int> waiting{1};
    const auto messages = losses(2,
                                 [&](Ranks& ranks) {
                                     if (ranks.rank() == 0) {
                                         try {
                                             ranks.barrier();
                                         } catch (const RankLost&) {
                                             waiting = 0;
                                             throw;
                                         }
                                     }
                                     while (waiting != 0) std::this_thread::yield();
                                     ranks.barrier();
                                 },
                                 {.timeout = std::chrono::seconds(1)});
    EXPECT_EQ(messages[0], "rank 1: no answer for 1 s");
    EXPECT_EQ(messages[1], "rank 1: no answer for 1 s");
}

TEST(Ranks, OtherSizesAreRefused) {
    const auto gathered = losses(2, [](Ranks& ranks) {
        const std::size_t wrong = ranks.rank() == 1 ? 24 : 16;
        const std::size_t sizes[]{16, wrong};
        Bytes mine(32), all(64);
        ranks.all_gather(mine.data(), all.data(), sizes);
        ranks.barrier();
    });
    EXPECT_EQ(gathered[0], "rank 1: 24 bytes in all_gather, where rank 0 expects 16");
    EXPECT_EQ(gathered[1], gathered[0]);
    const auto broadcast = losses(2, [](Ranks& ranks) {
        Bytes data(ranks.rank() == 0 ? 100 : 0);
        ranks.broadcast(data, 0, ranks.rank() == 0 ? 100 : 99);
        ranks.barrier();
    });
    EXPECT_EQ(broadcast[1], "rank 0: 100 bytes in broadcast, where rank 1 takes 99");
    const auto exchanged = losses(2, [](Ranks& ranks) {
        Bytes send(64), received(64);
        const std::size_t give[]{8, 8}, take[]{8, 8};
        if (ranks.rank() == 0) ranks.all_to_all(send.data(), give, received.data(), take);
        if (ranks.rank() == 1) {
            const std::size_t more[]{9, 8};
            ranks.all_to_all(send.data(), more, received.data(), take);
        }
        ranks.barrier();
    });
    EXPECT_EQ(exchanged[0], "rank 1: 9 bytes in all_to_all, where rank 0 expects 8");
}

TEST(Ranks, AnotherExchangeIsRefused) {
    const auto messages = losses(2, [](Ranks& ranks) {
        Bytes data;
        if (ranks.rank() == 0) ranks.broadcast(data, 0, 10);
        if (ranks.rank() == 1) ranks.barrier();
        ranks.barrier();
    });
    EXPECT_NE(messages[0].find("barrier"), std::string::npos) << messages[0];
    EXPECT_NE(messages[0].find("broadcast"), std::string::npos) << messages[0];
    EXPECT_EQ(messages[0], messages[1]);
}

TEST(RankMemory, ForeignMemoryIsRefused) {
    auto created = RankMemory::create(2, 64 * 8);
    ASSERT_TRUE(created);
    const auto attached = RankMemory::attach(dup(created->descriptor()));
    ASSERT_TRUE(attached);
    EXPECT_EQ(attached->count(), 2);
    EXPECT_EQ(attached->window_bytes(), 64u * 8);
    // Another size than the head says, and no head at all.
    ASSERT_EQ(ftruncate(created->descriptor(), 64 * 1024), 0);
    EXPECT_FALSE(RankMemory::attach(dup(created->descriptor())));
    ASSERT_EQ(ftruncate(created->descriptor(), 8), 0);
    const auto tiny = RankMemory::attach(dup(created->descriptor()));
    ASSERT_FALSE(tiny);
    EXPECT_NE(tiny.error().message.find("8 bytes"), std::string::npos);
    EXPECT_FALSE(RankMemory::attach(-1));
}

}  // namespace
}  // namespace espalier::parallel
