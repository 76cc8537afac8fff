// SPDX-License-Identifier: Apache-2.0
// Exchanges over MPI against what they must give, at random sizes; every rank draws the same. Run
// by mpirun; ends with 0 where all was right.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "parallel/mpi_ranks.hpp"

namespace {

using namespace espalier;
using Bytes = std::vector<std::byte>;

// Bytes that rank `from` gives rank `to` in exchange `serial`: known to every rank.
Bytes bytes_of(int from, int to, int serial, std::size_t count) {
    Bytes bytes(count);
    std::mt19937_64 noise(static_cast<std::uint64_t>((serial * 64 + from) * 64 + to));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(noise());
    return bytes;
}

void append(Bytes& all, const Bytes& part) { all.insert(all.end(), part.begin(), part.end()); }

class Checked {
  public:
    explicit Checked(parallel::Ranks& ranks) : ranks_(ranks), me_(ranks.rank()) {}

    void run(int serial, std::mt19937& noise) {
        const int kind = static_cast<int>(noise() % 5), count = ranks_.count();
        const int root = static_cast<int>(noise() % static_cast<unsigned>(count));
        std::vector<std::size_t> sizes(static_cast<std::size_t>(count * count));
        for (std::size_t& size : sizes) size = noise() % 4 == 0 ? noise() % 300'000 : noise() % 64;
        const auto size = [&](int from, int to) {
            return sizes[static_cast<std::size_t>(from * count + to)];
        };
        const auto mine = [&](int to) { return bytes_of(me_, to, serial, size(me_, to)); };
        if (kind == 0) return ranks_.barrier();
        if (kind == 1) {
            std::vector<std::size_t> of;
            Bytes want;
            for (int from = 0; from < count; ++from) {
                of.push_back(size(from, 0));
                append(want, bytes_of(from, 0, serial, size(from, 0)));
            }
            Bytes got(want.size());
            ranks_.all_gather(mine(0).data(), got.data(), of);
            expect(got == want, "all_gather", serial);
        } else if (kind == 2) {
            std::vector<std::size_t> given, taken;
            Bytes send, want;
            for (int other = 0; other < count; ++other) {
                // A rank gives itself what it takes of itself.
                given.push_back(size(me_, other));
                taken.push_back(size(other, me_));
                append(send, mine(other));
                append(want, bytes_of(other, me_, serial, size(other, me_)));
            }
            Bytes got(want.size());
            ranks_.all_to_all(send.data(), given, got.data(), taken);
            expect(got == want, "all_to_all", serial);
        } else if (kind == 3) {
            Bytes data = me_ == root ? mine(0) : Bytes(7);
            ranks_.broadcast(data, root, 300'000);
            expect(data == bytes_of(root, 0, serial, size(root, 0)), "broadcast", serial);
        } else {
            const auto all = ranks_.gather(mine(0), root, 300'000);
            expect(all.empty() == (me_ != root), "gather", serial);
            for (std::size_t from = 0; from < all.size(); ++from)
                expect(all[from] == bytes_of(static_cast<int>(from), 0, serial,
                                             size(static_cast<int>(from), 0)),
                       "gather", serial);
        }
    }
    int failures() const { return failures_; }

  private:
    void expect(bool holds, const char* what, int serial) {
        if (holds) return;
        fmt::print(stderr, "rank {}: {} {} is wrong\n", me_, what, serial);
        ++failures_;
    }

    parallel::Ranks& ranks_;
    int me_, failures_ = 0;
};

// A rank that gives other sizes than the others expect: all of them say so.
bool refuses_other_sizes(parallel::Ranks& ranks) {
    std::vector<std::size_t> sizes(static_cast<std::size_t>(ranks.count()), 8);
    if (ranks.rank() == 1) sizes[1] = 9;
    std::size_t total = 0;
    for (const std::size_t size : sizes) total += size;
    const Bytes mine(9);
    Bytes all(total);
    try {
        ranks.all_gather(mine.data(), all.data(), sizes);
    } catch (const parallel::RankLost& lost) {
        return ranks.rank() != 1 && lost.rank() == 1;
    }
    return ranks.rank() == 1;
}

}  // namespace

int main() {
    auto ranks = parallel::MpiRanks::join(std::chrono::seconds(60));
    if (!ranks) {
        fmt::print(stderr, "{}\n", ranks.error().message);
        return 1;
    }
    Checked checked(**ranks);
    std::mt19937 noise(1);
    for (int serial = 0; serial < 400; ++serial) checked.run(serial, noise);
    (*ranks)->barrier();
    const bool refused = refuses_other_sizes(**ranks);
    if ((*ranks)->rank() == 0) fmt::print("{} ranks, 400 exchanges\n", (*ranks)->count());
    std::fflush(stdout);
    // After a loss there is no orderly end, so that mpirun reports a failure; the line says it all.
    if (!refused) fmt::print(stderr, "rank {}: other sizes are taken\n", (*ranks)->rank());
    return checked.failures() == 0 && refused ? 0 : 1;
}
