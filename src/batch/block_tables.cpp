// SPDX-License-Identifier: Apache-2.0
#include "batch/block_tables.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "cache/page.hpp"

namespace espalier::batch {
namespace {

constexpr std::int64_t kNearEntries = 64 * 1024 / sizeof(std::int32_t);

}  // namespace

BlockTables::BlockTables(std::int32_t rows, std::int64_t stride)
    : rows_(rows),
      stride_(stride),
      entries_(static_cast<std::size_t>(rows * stride), cache::kNullPage) {
    changes_.reserve(static_cast<std::size_t>(rows));
}

void BlockTables::set(std::int32_t row, std::span<const std::int32_t> pages) {
    const std::int64_t begin = row * stride_;
    CHECK(row >= 0 && row < rows_ && static_cast<std::int64_t>(pages.size()) <= stride_,
          "block table {} with {} pages: there are {} of {}", row, pages.size(), rows_, stride_);
    const auto old = std::span(entries_).subspan(static_cast<std::size_t>(begin), pages.size());
    const auto [from, to] = std::ranges::mismatch(pages, old);
    if (from == pages.end()) return;
    std::size_t last = pages.size();
    while (pages[last - 1] == old[last - 1]) --last;
    const std::int64_t first = begin + (from - pages.begin());
    std::copy(from, pages.begin() + static_cast<std::ptrdiff_t>(last), to);
    changes_.push_back({first, begin + static_cast<std::int64_t>(last)});
}

std::span<const BlockTables::Range> BlockTables::changes() {
    if (changes_.empty()) return {};
    std::ranges::sort(changes_, {}, &Range::first);
    std::size_t kept = 0;
    for (const Range& next : std::span(changes_).subspan(1)) {
        Range& range = changes_[kept];
        if (next.first - range.last < kNearEntries)
            range.last = std::max(range.last, next.last);
        else
            changes_[++kept] = next;
    }
    changes_.resize(kept + 1);
    return changes_;
}

}  // namespace espalier::batch
