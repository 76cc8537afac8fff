// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/prefix.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/check.hpp"
#include "ops/draw.hpp"

namespace espalier::ops {
namespace {

constexpr std::int64_t kSortable = 1024;  // this many are sorted rather than narrowed further

// Order-preserving map of finite floats to integers and back; -0 and 0 share a key, as they are
// equal.
std::uint32_t key_of(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return (bits & 0x80000000u) != 0 ? 0u - bits : bits | 0x80000000u;
}
float value_of(std::uint32_t key) {
    return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : 0u - key);
}

constexpr int kBucketBits = std::countr_zero(static_cast<std::uint32_t>(kBuckets));
constexpr float kLeastFinite = std::numeric_limits<float>::lowest();

// The smallest finite logit that satisfies a predicate which, once true, stays true upwards; true
// at `top`.
template <typename Predicate>
float smallest_where(float top, const Predicate& satisfied) {
    std::uint32_t low = key_of(kLeastFinite);
    std::uint32_t high = key_of(top);
    while (low < high) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (satisfied(value_of(middle))) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return value_of(low);
}

struct Range {
    float low;
    float high;
};

// Mass of a token: 1 when counting, its weight otherwise.
struct Mass {
    bool weighted;

    void fill(const NodeView& node, const float* logits, std::int64_t n, std::uint64_t* out) const {
        if (weighted) {
            node.kernels.weights(logits, node.scaling, n, out);
        } else {
            std::fill_n(out, n, 1u);
        }
    }
    std::uint64_t of(const NodeView& node, float logit) const {
        return weighted ? weight_of(scaled(logit, node.scaling.inverse) - node.scaling.maximum)
                        : 1u;
    }
};

BucketScale bucket_scale(const NodeView& node) {
    return {node.maximum, kBucketsPerUnit * static_cast<float>(node.scaling.inverse)};
}

// Σ of mass by bucket_of, over what `within` holds, into node.histograms[0 … kBuckets).
void fill_histogram(const NodeView& node, const Prefix& within, Mass mass) {
    const std::int64_t copies = node.pool != nullptr ? node.chunks() : 1;
    std::fill_n(node.histograms, copies * kHistogram, 0u);
    node.for_chunks([&](std::int64_t chunk, std::int64_t first, std::int64_t end) {
        std::uint64_t* histogram =
            node.histograms + (node.pool != nullptr ? chunk * kHistogram : 0);
        std::array<std::uint64_t, kScan> masses;
        std::array<std::int32_t, kScan> bucket;
        for (std::int64_t at = first; at < end; at += kScan) {
            const std::int64_t count = std::min(kScan, end - at);
            const float* logits = node.logits + at;
            if (node.kernels.scan(logits, count).maximum < within.least) continue;
            const std::int64_t ties = std::clamp<std::int64_t>(within.last_tie - at + 1, 0, count);
            mass.fill(node, logits, count, masses.data());
            node.kernels.buckets(logits, bucket_scale(node), within.least,
                                 static_cast<std::int32_t>(ties), count, bucket.data());
            for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
                histogram[bucket[i]] += masses[i];
        }
    });
    for (std::int64_t copy = 1; copy < copies; ++copy)
        for (std::int64_t b = 0; b < kBuckets; ++b)
            node.histograms[b] += node.histograms[copy * kHistogram + b];
}

// Calls visit(token) in ascending order for what `within` holds and the range contains.
template <typename Visit>
void visit_range(const NodeView& node, const Prefix& within, Range range, const Visit& visit) {
    for (std::int64_t at = 0; at < node.vocabulary; at += kScan) {
        const std::int64_t end = std::min(at + kScan, node.vocabulary);
        if (node.kernels.scan(node.logits + at, end - at).maximum < range.low) continue;
        for (std::int64_t token = at; token < end; ++token) {
            const float logit = node.logits[token];
            const int inside =
                static_cast<int>(logit >= range.low) & static_cast<int>(logit <= range.high);
            if (inside != 0 && within.holds(logit, token)) visit(token);
        }
    }
}

// Narrows the range where the limit is crossed; `before` is the mass above the range.
template <typename Reached>
class Search {
  public:
    Search(const NodeView& node, const Prefix& within, Mass mass, Reached reached, Range range,
           std::uint64_t before)
        : node_(node),
          within_(within),
          mass_(mass),
          reached_(reached),
          range_(range),
          before_(before) {}

    Prefix run() {
        for (;;) {
            std::int64_t count = 0;
            visit_range(node_, within_, range_, [&](std::int64_t token) {
                if (count < kSortable)
                    few_[static_cast<std::size_t>(count)] = static_cast<std::int32_t>(token);
                ++count;
            });
            if (count <= kSortable) return among_few(count);
            if (range_.low == range_.high) return among_ties(count);
            narrow();
        }
    }

  private:
    Prefix among_few(std::int64_t count) {
        const auto end = few_.begin() + count;
        std::sort(few_.begin(), end, [&](std::int32_t a, std::int32_t b) {
            const float left = node_.logits[a];
            const float right = node_.logits[b];
            return left > right || (left == right && a < b);
        });
        std::uint64_t sum = before_;
        for (auto token = few_.begin(); token != end; ++token) {
            sum += mass_.of(node_, node_.logits[*token]);
            if (reached_(sum)) return {node_.logits[*token], *token};
        }
        throw_check_failure(__FILE__, __LINE__, "reached",
                            "a range without the crossing it was chosen for");
    }

    // Thousands of equal logits: their number is found by halving, the id by counting up to it.
    Prefix among_ties(std::int64_t count) {
        const std::uint64_t each = mass_.of(node_, range_.low);
        std::int64_t low = 1;
        std::int64_t high = count;
        while (low < high) {
            const std::int64_t middle = low + (high - low) / 2;
            if (reached_(before_ + static_cast<std::uint64_t>(middle) * each)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        std::int64_t seen = 0;
        std::int32_t last = 0;
        visit_range(node_, within_, range_, [&](std::int64_t token) {
            if (++seen == low) last = static_cast<std::int32_t>(token);
        });
        return {range_.low, last};
    }

    void narrow() {
        const std::uint32_t top = key_of(range_.high);
        const std::uint32_t span = top - key_of(range_.low);
        // Sub-buckets 0 … span >> shift must be fewer than kBuckets.
        const int shift = std::max(0, static_cast<int>(std::bit_width(span)) - kBucketBits);
        std::uint64_t* histogram = node_.histograms;
        std::fill_n(histogram, kBuckets, 0u);
        visit_range(node_, within_, range_, [&](std::int64_t token) {
            const float logit = node_.logits[token];
            histogram[(top - key_of(logit)) >> shift] += mass_.of(node_, logit);
        });
        std::uint32_t bucket = 0;
        while (bucket < (span >> shift) && !reached_(before_ + histogram[bucket]))
            before_ += histogram[bucket++];
        const std::uint32_t high = top - (bucket << shift);
        const std::uint32_t width = (std::uint32_t{1} << shift) - 1;
        range_ = {std::max(range_.low, value_of(high - std::min(width, high - key_of(range_.low)))),
                  value_of(high)};
    }

    const NodeView& node_;
    const Prefix& within_;
    Mass mass_;
    Reached reached_;
    Range range_;
    std::uint64_t before_;
    std::array<std::int32_t, kSortable> few_;
};

// From a filled histogram to the prefix where reached(mass) first holds.
template <typename Reached>
Prefix find_crossing(const NodeView& node, const Prefix& within, Mass mass,
                     const Reached& reached) {
    std::uint64_t before = 0;
    std::int32_t bucket = 0;
    while (bucket < kBuckets && !reached(before + node.histograms[bucket]))
        before += node.histograms[bucket++];
    if (bucket == kBuckets) return within;
    const BucketScale scale = bucket_scale(node);
    const auto at_most = [&](std::int32_t limit) {
        return smallest_where(node.maximum, [&](float logit) {
            return bucket_of(logit, scale.maximum, scale.per_unit) <= limit;
        });
    };
    const float low = at_most(bucket);
    const float high = bucket == 0 ? node.maximum : value_of(key_of(at_most(bucket - 1)) - 1);
    return Search<Reached>(node, within, mass, reached, {low, high}, before).run();
}

}  // namespace

Prefix everything() { return {kLeastFinite, std::numeric_limits<std::int32_t>::max()}; }

Prefix distance_prefix(const NodeView& node, double least) {
    const float logit = smallest_where(node.maximum, [&](float candidate) {
        return scaled(candidate, node.scaling.inverse) - node.scaling.maximum >= least;
    });
    return {logit, std::numeric_limits<std::int32_t>::max()};
}

Prefix top_k_prefix(const NodeView& node, const Prefix& within, std::int64_t k) {
    if (k >= node.vocabulary) return within;
    const Mass count{.weighted = false};
    fill_histogram(node, within, count);
    return find_crossing(node, within, count, [k](std::uint64_t tokens) {
        return tokens >= static_cast<std::uint64_t>(k);
    });
}

Prefix top_p_prefix(const NodeView& node, const Prefix& within, float top_p, std::uint64_t& whole) {
    const Mass weight{.weighted = true};
    fill_histogram(node, within, weight);
    whole = 0;
    for (std::int32_t b = 0; b < kBuckets; ++b) whole += node.histograms[b];
    return find_crossing(node, within, weight, [top_p, whole](std::uint64_t prefix) {
        return reaches(prefix, top_p, whole);
    });
}

}  // namespace espalier::ops
