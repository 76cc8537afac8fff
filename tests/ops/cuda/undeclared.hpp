// SPDX-License-Identifier: Apache-2.0
// A watch that holds a GPU's launches to their declarations: memory that none of them may write
// stays as it is. Slow: all of it comes to the host in front of every launch.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "ops/cuda/gpu.hpp"

namespace espalier::ops {

class UndeclaredWrites final : public OrderWatch {
  public:
    UndeclaredWrites(Gpu& gpu, std::vector<MemoryRange> memory)
        : gpu_(gpu), memory_(std::move(memory)), before_(read()) {
        gpu_.context.order.watch(this);
    }
    ~UndeclaredWrites() { gpu_.context.order.watch(nullptr); }

    // A kernel that may decline a call (norm_route) is declared behind its launch.
    void declared(LaunchNeeds& needs) override { compare(&needs); }
    void granted(const LaunchNeeds& needs, const LaunchGrant&) override { last_ = needs; }
    // Behind the last launch.
    void compare(const LaunchNeeds* launched = nullptr) {
        const std::vector<std::vector<std::byte>> after = read();
        for (std::size_t i = 0; i < memory_.size(); ++i)
            for (std::size_t at = 0; at < after[i].size(); ++at)
                if (after[i][at] != before_[i][at] && !may_write(last_, memory_[i].begin + at) &&
                    (launched == nullptr || !may_write(*launched, memory_[i].begin + at))) {
                    ADD_FAILURE() << last_.name << " wrote byte " << at << " of range " << i;
                    break;
                }
        before_ = after;
    }

  private:
    static bool may_write(const LaunchNeeds& needs, const std::byte* at) {
        return std::any_of(needs.writes.begin(), needs.writes.end(),
                           [&](const MemoryRange& one) { return one.begin <= at && at < one.end; });
    }
    std::vector<std::vector<std::byte>> read() const {
        std::vector<std::vector<std::byte>> all;
        for (const MemoryRange& range : memory_) {
            all.emplace_back(static_cast<std::size_t>(range.end - range.begin));
            EXPECT_TRUE(gpu_.device->download(gpu_.device->stream(), all.back().data(), range.begin,
                                              all.back().size()));
        }
        return all;
    }

    Gpu& gpu_;
    std::vector<MemoryRange> memory_;
    std::vector<std::vector<std::byte>> before_;
    LaunchNeeds last_{};
};

}  // namespace espalier::ops
