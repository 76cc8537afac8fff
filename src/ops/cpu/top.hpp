// SPDX-License-Identifier: Apache-2.0
// The largest logits of a node, for the alternatives reported with a token.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "ops/cpu/node_view.hpp"
#include "ops/sampling.hpp"

namespace espalier::ops {

struct TokenLogit {
    float logit;
    std::int32_t token;
};

// The `capacity` largest of what it was shown, descending. Tokens are shown in ascending order, so
// of equal logits the first one stays.
class TopList {
  public:
    explicit TopList(std::size_t capacity = 0);
    void offer(TokenLogit candidate);
    // Tokens [first, end) of a node: a block whose largest is too small is not looked at.
    void offer_range(const NodeView& node, std::int64_t first, std::int64_t end);
    std::span<const TokenLogit> entries() const { return {entries_.data(), count_}; }

  private:
    std::array<TokenLogit, kMaxTopLogprobs> entries_;
    std::size_t capacity_;
    std::size_t count_ = 0;
    float bar_;  // a logit must be larger to enter
};

// At most `count` tokens above -inf.
TopList largest_logits(const NodeView& node, std::size_t count);

}  // namespace espalier::ops
