// SPDX-License-Identifier: Apache-2.0
// How far down the descending order of logits (ties by lower id) a filter reaches, without sorting:
// histograms of integer mass narrow the logit where the limit is crossed, first by its distance
// from the maximum, then by eight bits of its key at a time; the last tie is found by counting. All
// sums are of integers, so no order of the threads shows.
#pragma once

#include "ops/cuda/node.cuh"

namespace espalier::ops::cuda {

// A prefix of the order: larger logits, and of equal ones the ids up to last_tie.
struct Prefix {
    float least;
    std::int32_t last_tie;

    __device__ bool holds(float logit, std::int32_t token) const {
        return logit > least || (logit == least && token <= last_tie);
    }
};
__device__ inline Prefix everything() { return {minus_infinity(), -1}; }  // above -inf

// End of a prefix: with its k-th token, or when it has reached top_p of `whole`.
struct Limit {
    bool weighted;
    std::uint64_t count;
    float top_p;
    std::uint64_t whole;

    __device__ std::uint64_t mass(const Row& row, float logit) const {
        return weighted ? row.weight(logit) : 1u;
    }
    __device__ bool reached(std::uint64_t sum) const {
        return weighted ? reaches(sum, top_p, whole) : sum >= count;
    }
};

struct PrefixMemory {
    std::uint64_t histogram[kBuckets];
    std::uint64_t sums[kNodeThreads / 32];
    std::uint64_t before;  // mass above the place that was found
    std::uint64_t mass;    // and at it
    std::int32_t place;
    std::int32_t token;
};

// Finds the first place of the histogram, `before` included, where the limit is reached; false:
// none.
__device__ inline bool find_place(PrefixMemory& memory, const Limit& limit, int places,
                                  std::uint64_t before) {
    const int each = (places + kNodeThreads - 1) / kNodeThreads;
    const int first = static_cast<int>(threadIdx.x) * each;
    const int end = min(first + each, places);
    std::uint64_t own = 0;
    for (int i = first; i < end; ++i) own += memory.histogram[i];
    std::uint64_t sum = before + sum_before<kNodeThreads>(own, memory.sums);
    if (threadIdx.x == 0) memory.place = places;
    __syncthreads();
    for (int i = first; i < end; ++i) {
        const std::uint64_t mass = memory.histogram[i];
        if (mass != 0 && limit.reached(sum + mass)) {
            atomicMin(&memory.place, i);
            break;
        }
        sum += mass;
    }
    __syncthreads();
    const int found = memory.place;
    if (found >= first && found < end) {
        memory.before = sum;
        memory.mass = memory.histogram[found];
    }
    __syncthreads();
    return found < places;
}

// Fills the histogram with the mass of what `within` holds by place(logit); < 0: left out.
template <typename Place>
__device__ void fill(const Row& row, const Prefix& within, const Limit& limit, int places,
                     PrefixMemory& memory, const Place& place) {
    for_each(places, [&](int i) { memory.histogram[i] = 0; });
    __syncthreads();
    for_each(row.size, [&](int i) {
        const float logit = row.logits[i];
        if (!within.holds(logit, i)) return;
        const int at = place(logit);
        if (at < 0) return;
        atomicAdd(reinterpret_cast<unsigned long long*>(&memory.histogram[at]),
                  static_cast<unsigned long long>(limit.mass(row, logit)));
    });
    __syncthreads();
}

// The id of the n-th logit (from 1, ascending ids) that equals `value`.
__device__ inline std::int32_t nth_tie(const Row& row, float value, std::uint64_t n,
                                       PrefixMemory& memory) {
    const int each = (row.size + kNodeThreads - 1) / kNodeThreads;
    const int first = static_cast<int>(threadIdx.x) * each;
    const int end = min(first + each, row.size);
    std::uint64_t own = 0;
    for (int i = first; i < end; ++i) own += row.logits[i] == value ? 1u : 0u;
    std::uint64_t seen = sum_before<kNodeThreads>(own, memory.sums);
    if (seen < n && n <= seen + own)
        for (int i = first; i < end; ++i)
            if (row.logits[i] == value && ++seen == n) memory.token = i;
    __syncthreads();
    return memory.token;
}

// The shortest prefix of `within` that reaches the limit; `within` itself where it does not.
__device__ inline Prefix shortest(const Row& row, const Prefix& within, const Limit& limit,
                                  PrefixMemory& memory) {
    constexpr int kDigits = 256;
    const float per_unit = kBucketsPerUnit * static_cast<float>(row.inverse);
    fill(row, within, limit, kBuckets, memory,
         [&](float logit) { return bucket_of(logit, row.maximum, per_unit); });
    if (!find_place(memory, limit, kBuckets, 0)) return within;
    const int bucket = memory.place;
    std::uint64_t before = memory.before;
    std::uint32_t key = 0;  // its highest digits so far
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        fill(row, within, limit, kDigits, memory, [&](float logit) {
            const std::uint32_t digits = key_of(logit) >> shift;
            const bool inside =
                bucket_of(logit, row.maximum, per_unit) == bucket && digits >> 8 == key;
            return inside ? kDigits - 1 - static_cast<int>(digits & 255u) : -1;
        });
        find_place(memory, limit, kDigits, before);
        before = memory.before;
        key = key << 8 | static_cast<std::uint32_t>(kDigits - 1 - memory.place);
    }
    const float least = value_of(key);
    const std::uint64_t each = limit.mass(row, least);
    std::uint64_t low = 1, high = memory.mass / each;
    while (low < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        if (limit.reached(before + middle * each))
            high = middle;
        else
            low = middle + 1;
    }
    __syncthreads();
    return {least, nth_tie(row, least, low, memory)};
}

// Tokens that lie no further below the maximum than `least`, a scaled distance ≤ 0.
__device__ inline Prefix distance_prefix(const Row& row, double least) {
    std::uint32_t low = key_of(-__FLT_MAX__), high = key_of(row.maximum);
    while (low < high) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (row.distance(value_of(middle)) >= least)
            high = middle;
        else
            low = middle + 1;
    }
    return {value_of(low), row.size - 1};
}

}  // namespace espalier::ops::cuda
