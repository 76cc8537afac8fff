// SPDX-License-Identifier: Apache-2.0
#include "mla/cpu/best_scores.hpp"

#include <algorithm>
#include <bit>

#include "base/check.hpp"

namespace espalier::mla::cpu {
namespace {

// Digits of a score's rank, from the topmost down.
struct Digit {
    int shift;
    int bits;
};
constexpr Digit kDigits[] = {{21, 11}, {10, 11}, {0, 10}};
constexpr int kMostBuckets = 1 << 11;

// Unsigned numbers in the order of the scores; NaN is 0, below −infinity.
std::uint32_t rank_of(float score) {
    if (!(score == score)) return 0;
    const auto bits = std::bit_cast<std::uint32_t>(score + 0.0f);  // −0 + 0 is 0
    return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The last rank that is chosen, and how many of it are.
struct Border {
    std::uint32_t rank = 0;
    std::int64_t of_rank = 0;
};

Border find_border(const float* scores, std::int64_t count, std::int64_t wanted) {
    Border border{0, wanted};
    std::uint32_t known = 0;  // bits of the rank that are found
    std::int64_t buckets[kMostBuckets];
    for (const auto [shift, bits] : kDigits) {
        const std::uint32_t digits = (1u << bits) - 1;
        std::fill_n(buckets, digits + 1, 0);
        for (std::int64_t i = 0; i < count; ++i)
            if (const std::uint32_t rank = rank_of(scores[i]); (rank & known) == border.rank)
                ++buckets[(rank >> shift) & digits];
        std::uint32_t digit = digits;
        for (; buckets[digit] < border.of_rank; --digit) border.of_rank -= buckets[digit];
        border.rank |= digit << shift;
        known |= digits << shift;
    }
    return border;
}

}  // namespace

bool choose_best(const float* scores, std::int64_t count, std::int64_t wanted,
                 std::int32_t* chosen) {
    CHECK(wanted > 0 && wanted < count, "the best {} of {} scores", wanted, count);
    Border border = find_border(scores, count, wanted);
    bool nan = false;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint32_t rank = rank_of(scores[i]);
        nan |= rank == 0;
        if (rank < border.rank || (rank == border.rank && border.of_rank-- <= 0)) continue;
        *chosen++ = static_cast<std::int32_t>(i);
    }
    return nan;
}

}  // namespace espalier::mla::cpu
