// SPDX-License-Identifier: Apache-2.0
// How well a model predicts a text, and how far it is from another one: added up token by token.
#pragma once

#include <cstdint>
#include <span>

namespace espalier::cli {

class EvalFigures {
  public:
    // The logits before a token, and how many bytes of text the token stands for.
    void add(std::span<const float> logits, std::int32_t token, std::size_t bytes);
    // The same place as another model sees it.
    void compare(std::span<const float> logits, std::span<const float> other);

    std::int64_t tokens() const { return tokens_; }
    double bits_per_byte() const;
    double bits_per_token() const;
    // Mean of KL(other ‖ this) in bits, and share of places with the same likeliest token (the
    // lowest of equals).
    double mean_kl_bits() const;
    double top_agreement() const;

  private:
    std::int64_t tokens_ = 0, compared_ = 0, agreed_ = 0;
    std::uint64_t bytes_ = 0;
    double bits_ = 0, kl_bits_ = 0;
};

}  // namespace espalier::cli
