// SPDX-License-Identifier: Apache-2.0
#include "parallel/mpi_ranks.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/check.hpp"

namespace espalier::parallel {
namespace {

constexpr int kTags = 1 << 14;

std::optional<int> number_of(const char* variable) {
    const char* const text = std::getenv(variable);
    if (text == nullptr) return std::nullopt;
    int value = 0;
    const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
    if (error != std::errc() || *end != '\0' || value < 0) return std::nullopt;
    return value;
}

Expected<const MpiCalls*> open_module() {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
    std::string reason;
    for (const fs::path& path : {folder / "libespalier-mpi.so",
                                 folder.parent_path() / "lib/espalier/libespalier-mpi.so"}) {
        // MPI's own modules look for its symbols in the whole process.
        void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
        if (module == nullptr) {
            reason += fmt::format("{}{}", reason.empty() ? "" : "; ", dlerror());
            continue;
        }
        const auto* const calls = static_cast<const MpiCalls*>(dlsym(module, kMpiCallsSymbol));
        if (calls == nullptr || calls->version != kMpiCallsVersion)
            return fail(ErrorKind::unsupported, "{} is of another version of espalier",
                        path.string());
        return calls;
    }
    return fail(ErrorKind::not_found,
                "mpirun started this process, but libespalier-mpi.so cannot be opened ({})",
                reason);
}

}  // namespace

std::optional<MpiWorld> mpi_world() {
    const auto rank = number_of("OMPI_COMM_WORLD_RANK"), count = number_of("OMPI_COMM_WORLD_SIZE");
    if (!rank || !count || *count < 2) return std::nullopt;
    return MpiWorld{*rank, *count,
                    std::max(1, number_of("OMPI_COMM_WORLD_LOCAL_SIZE").value_or(*count))};
}

Expected<std::unique_ptr<MpiRanks>> MpiRanks::join(std::chrono::seconds timeout) {
    ESPALIER_ASSIGN_OR_RETURN(const MpiCalls* const calls, open_module());
    int rank = 0, count = 0;
    char error[256] = {};
    if (!calls->join(&rank, &count, error, sizeof(error)))
        return fail(ErrorKind::io, "MPI: {}", error);
    if (count < 1 || count > kMaxRanks || rank < 0 || rank >= count)
        return fail(ErrorKind::unsupported, "MPI: rank {} of {}, at most {}", rank, count,
                    kMaxRanks);
    return std::make_unique<MpiRanks>(*calls, rank, count, timeout);
}

MpiRanks::~MpiRanks() {
    if (!lost_) calls_.finish();
}

std::string MpiRanks::name(int rank) const { return fmt::format("rank {}", rank); }

void MpiRanks::leave(const std::string& reason) noexcept {
    if (!lost_) lost_.emplace(rank_, name(rank_), reason);
}

void MpiRanks::lose(int other, const std::string& reason) {
    if (!lost_) lost_.emplace(other, name(other), reason);
    throw RankLost(*lost_);
}

void MpiRanks::begin(Exchange exchange) {
    if (lost_) throw RankLost(*lost_);
    exchange_ = exchange;
    ++serial_;
    sent_.clear();
    received_.clear();
}

MpiRanks::Head MpiRanks::head_for(std::size_t bytes) const {
    return {static_cast<std::uint32_t>(exchange_), serial_, bytes};
}

void MpiRanks::post(int to, const void* data, std::size_t bytes, bool synchronous) {
    const Head head = head_for(bytes);
    Mail& mail = sent_.emplace_back();
    mail.other = to;
    mail.bytes.resize(sizeof(Head) + bytes);
    std::memcpy(mail.bytes.data(), &head, sizeof(Head));
    if (bytes > 0) std::memcpy(mail.bytes.data() + sizeof(Head), data, bytes);
    mail.handle = calls_.send(mail.bytes.data(), std::ssize(mail.bytes), to,
                              static_cast<int>(serial_ % kTags), synchronous);
    if (mail.handle == nullptr) lose(to, "a message to it could not be sent");
}

void MpiRanks::await(int from, std::size_t most) {
    Mail& mail = received_.emplace_back();
    mail.other = from;
    mail.bytes.resize(sizeof(Head) + most);
    mail.handle = calls_.receive(mail.bytes.data(), std::ssize(mail.bytes), from,
                                 static_cast<int>(serial_ % kTags));
    if (mail.handle == nullptr) lose(from, "a message of it could not be awaited");
}

// Polls: MPI has no wait that ends. Soon with pauses, which grow to a millisecond: a rank without
// work waits here. Slices count as little more than themselves, as in MemoryRanks.
void MpiRanks::settle() {
    using std::chrono::microseconds;
    constexpr int kSpins = 2000, kYields = 200;
    constexpr microseconds kLongest{1000};
    microseconds waited{0}, pause{20};
    for (int turn = 0;; ++turn) {
        const Mail* open = nullptr;
        for (std::vector<Mail>* mails : {&received_, &sent_})
            for (Mail& mail : *mails) {
                if (mail.handle == nullptr) continue;
                std::int64_t bytes = 0;
                const int state = calls_.test(mail.handle, &bytes);
                if (state != 0) mail.handle = nullptr;
                if (state < 0) lose(mail.other, "its message is longer than expected, or lost");
                if (state == 0 && open == nullptr) open = &mail;
                if (state == 1 && mails == &received_)
                    mail.bytes.resize(static_cast<std::size_t>(bytes));
            }
        if (open == nullptr) return;
        if (turn < kSpins) continue;
        if (turn < kSpins + kYields) {
            sched_yield();
            continue;
        }
        std::this_thread::sleep_for(pause);
        waited += pause;
        pause = std::min(2 * pause, kLongest);
        if (timeout_.count() > 0 && waited >= timeout_)
            lose(open->other, fmt::format("no answer for {} s", timeout_.count() / 1000));
    }
}

std::span<const std::byte> MpiRanks::content(const Mail& mail, std::size_t bytes, bool exact) {
    Head head;
    if (mail.bytes.size() < sizeof(Head)) lose(mail.other, "a message without a head");
    std::memcpy(&head, mail.bytes.data(), sizeof(Head));
    const Head mine = head_for(head.bytes);
    if (head.exchange != mine.exchange || head.serial != mine.serial)
        lose(mail.other,
             fmt::format("exchange {} of kind {}, where {} is at {} of kind {}", head.serial,
                         head.exchange, name(rank_), mine.serial, mine.exchange));
    const std::size_t arrived = mail.bytes.size() - sizeof(Head);
    if (head.bytes != arrived || arrived > bytes || (exact && arrived != bytes))
        lose(mail.other, fmt::format("{} bytes, {} of them here, where {} expects {}", head.bytes,
                                     arrived, name(rank_), bytes));
    return std::span(mail.bytes).subspan(sizeof(Head));
}

void MpiRanks::all_gather(const void* mine, void* all, std::span<const std::size_t> bytes) {
    CHECK(std::ssize(bytes) == count_, "{} sizes of {} ranks", bytes.size(), count_);
    begin(Exchange::all_gather);
    const auto me = static_cast<std::size_t>(rank_);
    for (int other = 0; other < count_; ++other)
        if (other != rank_) await(other, bytes[static_cast<std::size_t>(other)]);
    for (int other = 0; other < count_; ++other)
        if (other != rank_) post(other, mine, bytes[me], false);
    settle();
    auto* to = static_cast<std::byte*>(all);
    std::size_t next = 0;
    for (std::size_t other = 0; other < bytes.size(); to += bytes[other], ++other) {
        if (other == me) {
            if (bytes[me] > 0 && to != mine) std::memcpy(to, mine, bytes[me]);
            continue;
        }
        std::ranges::copy(content(received_[next++], bytes[other], true), to);
    }
}

void MpiRanks::all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* received,
                          std::span<const std::size_t> receive_bytes) {
    CHECK(std::ssize(send_bytes) == count_ && std::ssize(receive_bytes) == count_,
          "{} and {} sizes of {} ranks", send_bytes.size(), receive_bytes.size(), count_);
    begin(Exchange::all_to_all);
    const auto me = static_cast<std::size_t>(rank_);
    const auto* from = static_cast<const std::byte*>(send);
    const std::byte* own = nullptr;
    for (int other = 0; other < count_; ++other)
        if (other != rank_) await(other, receive_bytes[static_cast<std::size_t>(other)]);
    for (std::size_t other = 0; other < send_bytes.size(); from += send_bytes[other], ++other) {
        if (other == me)
            own = from;
        else
            post(static_cast<int>(other), from, send_bytes[other], false);
    }
    settle();
    auto* to = static_cast<std::byte*>(received);
    std::size_t next = 0;
    for (std::size_t other = 0; other < receive_bytes.size(); to += receive_bytes[other], ++other) {
        if (other != me)
            std::ranges::copy(content(received_[next++], receive_bytes[other], true), to);
        else if (send_bytes[me] > 0)
            std::memcpy(to, own, send_bytes[me]);
    }
}

// The length first: a receiver has no room for anything before it knows that it may have it.
void MpiRanks::broadcast(std::vector<std::byte>& data, int root, std::size_t most) {
    CHECK(root >= 0 && root < count_, "root {} of {} ranks", root, count_);
    CHECK(rank_ != root || data.size() <= most, "{} bytes to broadcast, at most {}", data.size(),
          most);
    std::uint64_t bytes = data.size();
    begin(Exchange::broadcast);
    if (rank_ != root) {
        await(root, sizeof(bytes));
    } else {
        for (int other = 0; other < count_; ++other)
            if (other != root) post(other, &bytes, sizeof(bytes), true);
    }
    settle();
    if (rank_ != root) {
        std::memcpy(&bytes, content(received_.front(), sizeof(bytes), true).data(), sizeof(bytes));
        if (bytes > most)
            lose(root,
                 fmt::format("{} bytes in broadcast, where {} takes {}", bytes, name(rank_), most));
    }
    begin(Exchange::broadcast);
    if (rank_ != root) {
        await(root, static_cast<std::size_t>(bytes));
    } else {
        for (int other = 0; other < count_; ++other)
            if (other != root) post(other, data.data(), data.size(), false);
    }
    settle();
    if (rank_ == root) return;
    const auto arrived = content(received_.front(), static_cast<std::size_t>(bytes), true);
    data.assign(arrived.begin(), arrived.end());
}

std::vector<std::vector<std::byte>> MpiRanks::gather(std::span<const std::byte> mine, int root,
                                                     std::size_t most) {
    CHECK(root >= 0 && root < count_, "root {} of {} ranks", root, count_);
    CHECK(mine.size() <= most, "{} bytes to gather, at most {}", mine.size(), most);
    begin(Exchange::gather);
    if (rank_ != root) {
        post(root, mine.data(), mine.size(), true);
        settle();
        return {};
    }
    for (int other = 0; other < count_; ++other)
        if (other != root) await(other, most);
    settle();
    std::vector<std::vector<std::byte>> all(static_cast<std::size_t>(count_));
    all[static_cast<std::size_t>(root)].assign(mine.begin(), mine.end());
    for (const Mail& mail : received_) {
        const auto part = content(mail, most, false);
        all[static_cast<std::size_t>(mail.other)].assign(part.begin(), part.end());
    }
    return all;
}

void MpiRanks::barrier() {
    begin(Exchange::barrier);
    for (int other = 0; other < count_; ++other)
        if (other != rank_) await(other, 0);
    for (int other = 0; other < count_; ++other)
        if (other != rank_) post(other, nullptr, 0, false);
    settle();
    for (const Mail& mail : received_) content(mail, 0, true);
}

}  // namespace espalier::parallel
