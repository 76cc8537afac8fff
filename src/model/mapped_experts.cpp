// SPDX-License-Identifier: Apache-2.0
#include "model/mapped_experts.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "base/check.hpp"

namespace espalier::model {
namespace {

constexpr std::size_t kPage = 4096;
// The system reads no more than its readahead window for one advice: 128 KiB unless the
// administrator has changed it.
constexpr std::size_t kPagesOfAdvice = 32;

struct Residency {
    std::size_t pages = 0;
    std::size_t in_memory = 0;
};

// Asks for what is missing of a range, and says what was there.
Residency ask_for(const std::byte* data, std::int64_t bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = address / kPage * kPage;
    const std::size_t pages =
        (address - first + static_cast<std::size_t>(bytes) + kPage - 1) / kPage;
    Residency found;
    std::array<unsigned char, kPagesOfAdvice> resident{};
    for (std::size_t at = 0; at < pages; at += kPagesOfAdvice) {
        const std::size_t count = std::min(kPagesOfAdvice, pages - at);
        void* place = reinterpret_cast<void*>(first + at * kPage);
        if (mincore(place, count * kPage, resident.data()) != 0) resident.fill(0);
        const auto there = static_cast<std::size_t>(
            std::count_if(resident.begin(), resident.begin() + static_cast<std::ptrdiff_t>(count),
                          [](unsigned char state) { return (state & 1) != 0; }));
        found.pages += count;
        found.in_memory += there;
        if (there < count) madvise(place, count * kPage, MADV_WILLNEED);
    }
    return found;
}

}  // namespace

double ExpertReads::hit_rate() const {
    const auto all = static_cast<double>(needed.load(std::memory_order_relaxed));
    return all > 0 ? static_cast<double>(in_memory.load(std::memory_order_relaxed)) / all : 1.0;
}

MappedExperts::MappedExperts(const linalg::WeightView& gate_up, const linalg::WeightView& down,
                             ExpertReads& reads)
    : gate_up_(gate_up), down_(down), reads_(&reads) {
    CHECK(gate_up.count == down.count, "{} experts and {}", gate_up.count, down.count);
}

void MappedExperts::read_ahead(const std::int32_t* indptr) const {
    Residency sum;
    const auto ask = [&](const std::byte* data, std::int64_t bytes) {
        if (bytes == 0) return;
        const Residency found = ask_for(data, bytes);
        sum.pages += found.pages;
        sum.in_memory += found.in_memory;
    };
    // In the order in which they are multiplied: all gates first.
    for (const linalg::WeightView* stack : {&gate_up_, &down_})
        for (std::int64_t expert = 0; expert < stack->count; ++expert) {
            if (indptr[expert] == indptr[expert + 1]) continue;
            const linalg::WeightView one = stack->at(expert);
            ask(one.data, one.matrix_bytes);
            ask(one.scales, one.scale_bytes);
        }
    reads_->needed.fetch_add(static_cast<std::int64_t>(sum.pages * kPage),
                             std::memory_order_relaxed);
    reads_->in_memory.fetch_add(static_cast<std::int64_t>(sum.in_memory * kPage),
                                std::memory_order_relaxed);
}

std::uint64_t expert_bytes(const checkpoint::Checkpoint& checkpoint) {
    std::uint64_t bytes = 0;
    for (const std::string& name : checkpoint.names())
        if (name.find(kExperts) != std::string::npos)
            bytes += checkpoint.stored(name)->loaded_bytes();
    return bytes;
}

}  // namespace espalier::model
