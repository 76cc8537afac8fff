// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/top.hpp"

#include <algorithm>
#include <limits>

namespace espalier::ops {
TopList::TopList(std::size_t capacity)
    : capacity_(capacity),
      bar_(capacity == 0 ? std::numeric_limits<float>::infinity()
                         : -std::numeric_limits<float>::infinity()) {}

void TopList::offer(TokenLogit candidate) {
    if (!(candidate.logit > bar_)) return;
    std::size_t place = count_ < capacity_ ? count_++ : count_ - 1;
    for (; place > 0 && entries_[place - 1].logit < candidate.logit; --place)
        entries_[place] = entries_[place - 1];
    entries_[place] = candidate;
    if (count_ == capacity_) bar_ = entries_[count_ - 1].logit;
}

void TopList::offer_range(const NodeView& node, std::int64_t first, std::int64_t end) {
    for (std::int64_t at = first; at < end; at += kScan) {
        const std::int64_t block_end = std::min(at + kScan, end);
        if (!(node.kernels.scan(node.logits + at, block_end - at).maximum > bar_)) continue;
        for (std::int64_t token = at; token < block_end; ++token)
            offer({node.logits[token], static_cast<std::int32_t>(token)});
    }
}

TopList largest_logits(const NodeView& node, std::size_t count) {
    TopList all(count);
    if (node.pool == nullptr) {
        all.offer_range(node, 0, node.vocabulary);
        return all;
    }
    std::array<TopList, kMaxChunks> parts;
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        TopList& part = parts[static_cast<std::size_t>(chunk)];
        part = TopList(count);
        part.offer_range(node, first, end);
    });
    for (std::int64_t chunk = 0; chunk < node.chunks(); ++chunk)
        for (const TokenLogit& entry : parts[static_cast<std::size_t>(chunk)].entries())
            all.offer(entry);
    return all;
}

}  // namespace espalier::ops
