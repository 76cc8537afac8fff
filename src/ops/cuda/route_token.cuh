// SPDX-License-Identifier: Apache-2.0
// The router's choice for one token by one warp, with the CPU's bits: scores by the same text, sums
// and ties in the same order. Lane l has experts l, l + 32, …, all of it in registers: at one token
// the chain of a warp's steps is what routing takes.
#pragma once

#include <limits>
#include <type_traits>

#include "base/portable_math.hpp"
#include "ops/cuda/block.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/kernels.hpp"

namespace espalier::ops::cuda {

struct RouteCall {
    Matrix logits;
    const float* bias;
    RouterRule rule;
    const std::int32_t* row_of_token;
    ExpertPlan plan;
};

// A warp's memory for one token.
struct TokenMemory {
    float* choice;  // [experts]: corrected scores, where groups are not whole warps
    float* group;   // [experts]: scores of groups
    float* weight;  // [kMaxTopK]
    std::int32_t* expert;

    static constexpr std::int64_t bytes(std::int64_t experts) {
        return (2 * experts + 2 * kMaxTopK) * 4;
    }
    __device__ TokenMemory(std::byte* memory, std::int32_t experts) {
        choice = reinterpret_cast<float*>(memory);
        group = choice + experts;
        weight = group + experts;
        expert = reinterpret_cast<std::int32_t*>(weight + kMaxTopK);
    }
};

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// The lanes share the indices below count; what they write is there for all of them afterwards.
template <typename Body>
__device__ void for_lanes(std::int32_t count, const Body& body) {
    for (int i = lane_id(); i < count; i += 32) body(i);
    __syncwarp();
}

// Whether candidate a comes before b.
__device__ inline bool beats(float a, int a_index, float b, int b_index) {
    return a > b || (a == b && a_index < b_index);
}

// Ascends with the value, which is no NaN; above 0. -0 is 0.
__device__ inline std::uint32_t ordered(float value) {
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline float unordered(std::uint32_t key) {
    return __uint_as_float(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}

template <int kPer>  // experts of a lane at most
class TokenRouter {
    static_assert(kPer <= 32);

  public:
    __device__ TokenRouter(const RouteCall& call, const TokenMemory& memory)
        : call_(call), rule_(call.rule), memory_(memory) {}

    // Finds the choices of token t; they are in the warp's memory too, -1 for those of a pad.
    __device__ void run(std::int64_t t) {
        // Another block may have written them while this kernel ran: not from the nearest cache.
        const float* logits = row_of(call_.logits, t);
        each([&](int j, int e) { score_[j] = __ldcg(logits + e); });
        float bias[kPer] = {};
        if (call_.bias != nullptr) each([&](int j, int e) { bias[j] = __ldg(call_.bias + e); });
        if (call_.row_of_token[t] < 0) {
            for_lanes(rule_.top_k, [&](int i) { call_.plan.pair_of[t * rule_.top_k + i] = -1; });
            return write(t, [](int) { return Chosen{-1, 0.0f}; });
        }
        make_scores();
        bool nan = false;
        each([&](int j, int) {
            choice_[j] = call_.bias == nullptr ? score_[j] : score_[j] + bias[j];
            nan |= choice_[j] != choice_[j];
        });
        if (__any_sync(kAllLanes, nan))
            return write(t, [](int i) { return Chosen{i, __int_as_float(0x7fc00000)}; });
        make_keys();
        list_choices(take_largest());
        float sum = 0.0f;
        for (int i = 0; i < rule_.top_k && rule_.normalise; ++i) sum += memory_.weight[i];
        __syncwarp();
        write(t, [&](int i) {
            const float score = memory_.weight[i];
            const float weight = rule_.normalise ? score / (sum + 1e-20f) : score;
            return Chosen{memory_.expert[i], weight * rule_.scaling};
        });
    }

  private:
    struct Chosen {
        std::int32_t expert;
        float weight;
    };

    // use(j, e) for every expert e of this lane.
    template <typename Use>
    __device__ void each(const Use& use) const {
#pragma unroll
        for (int j = 0; j < kPer; ++j)
            if (const int e = j * 32 + lane_id(); e < rule_.experts) use(j, e);
    }

    template <typename Choice>
    __device__ void write(std::int64_t t, const Choice& choice) {
        for_lanes(rule_.top_k, [&](int i) {
            const Chosen chosen = choice(i);
            memory_.expert[i] = chosen.expert;
            call_.plan.expert[t * rule_.top_k + i] = chosen.expert;
            call_.plan.weight[t * rule_.top_k + i] = chosen.weight;
        });
    }

    // From logits in score_.
    __device__ void make_scores() {
        if (rule_.score == RouterScore::sigmoid)
            return each([&](int j, int) { score_[j] = portable_sigmoid(score_[j]); });
        float maximum = -std::numeric_limits<float>::infinity();
        each([&](int j, int) { maximum = score_[j] > maximum ? score_[j] : maximum; });
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            const float other = __shfl_xor_sync(kAllLanes, maximum, step);
            maximum = other > maximum ? other : maximum;
        }
        each([&](int j, int) { score_[j] = portable_exp(score_[j] - maximum); });
        const auto sum = static_cast<float>(sum_scores());
        each([&](int j, int) { score_[j] /= sum; });
    }

    // In double, by ascending expert as everywhere. Numbers of 24 bits between 2⁻²⁰ and 1, of which
    // there are up to 2¹⁰, have sums of 53 bits at most: they are exact in any order.
    __device__ double sum_scores() const {
        bool exact = true;
        double sum = 0.0;
        each([&](int j, int) {
            exact &= score_[j] == 0.0f || (score_[j] >= 0x1p-20f && score_[j] <= 1.0f);
            sum += static_cast<double>(score_[j]);
        });
        static_assert(kMaxExperts <= 1024);
        if (__all_sync(kAllLanes, exact)) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
            return sum;
        }
        sum = 0.0;
#pragma unroll
        for (int j = 0; j < kPer; ++j)
            for (int lane = 0; lane < min(32, rule_.experts - j * 32); ++lane)
                sum += static_cast<double>(__shfl_sync(kAllLanes, score_[j], lane));
        return sum;
    }

    // Keys of the experts that may be chosen: all, or those in groups that are kept.
    __device__ void make_keys() {
#pragma unroll
        for (std::uint32_t& key : key_) key = 0;
        const int groups = rule_.group_score == GroupScore::none ? 1 : rule_.groups;
        if (groups == 1) return each([&](int j, int) { key_[j] = ordered(choice_[j]); });
        const int size = rule_.experts / groups;
        if (size % 32 == 0)
            score_whole_groups(size);
        else
            score_groups(groups, size);
        each([&](int j, int e) {
            int better = 0;
            for (int g = 0; g < groups; ++g)
                better += beats(memory_.group[g], g, memory_.group[e / size], e / size) ? 1 : 0;
            key_[j] = better < rule_.top_groups ? ordered(choice_[j]) : 0;
        });
    }

    // Groups of which every lane has the same number of experts.
    __device__ void score_whole_groups(int size) {
        std::uint32_t first = 0, second = 0;  // the lane's
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            if (j * 32 >= rule_.experts) break;
            const std::uint32_t key = ordered(choice_[j]);
            second = max(second, min(first, key));
            first = max(first, key);
            if ((j + 1) * 32 % size != 0) continue;
            const std::uint32_t best = __reduce_max_sync(kAllLanes, first);
            const unsigned holders = __ballot_sync(kAllLanes, first == best);
            const bool holds = lane_id() == __ffs(static_cast<int>(holders)) - 1;
            const std::uint32_t next = __reduce_max_sync(kAllLanes, holds ? second : first);
            if (lane_id() == 0)
                memory_.group[j * 32 / size] = rule_.group_score == GroupScore::maximum
                                                   ? unordered(best)
                                                   : unordered(best) + unordered(next);
            first = second = 0;
        }
        __syncwarp();
    }

    // A lane for a group.
    __device__ void score_groups(int groups, int size) {
        each([&](int j, int e) { memory_.choice[e] = choice_[j]; });
        __syncwarp();
        for_lanes(groups, [&](int g) {
            const float* choice = memory_.choice + g * size;
            float first = choice[0];
            float second = -std::numeric_limits<float>::infinity();
            for (int i = 1; i < size; ++i) {
                second = fmaxf(second, fminf(first, choice[i]));
                first = fmaxf(first, choice[i]);
            }
            memory_.group[g] =
                rule_.group_score == GroupScore::maximum || size == 1 ? first : first + second;
        });
    }

    // The largest top_k, ties to the lower index. Returns this lane's as bits.
    __device__ std::uint32_t take_largest() {
        std::uint32_t taken_bits = 0, best = 0;
        int at = 0;
        const auto find = [&] {
            best = 0;
#pragma unroll
            for (int j = 0; j < kPer; ++j)
                if (key_[j] > best) {
                    best = key_[j];
                    at = j;
                }
        };
        find();
        for (int taken = 0; taken < rule_.top_k; ++taken) {
            const std::uint32_t largest = __reduce_max_sync(kAllLanes, best);
            const unsigned expert =
                best == largest ? static_cast<unsigned>(at * 32 + lane_id()) : ~0u;
            if (expert == __reduce_min_sync(kAllLanes, expert)) {
                taken_bits |= 1u << at;
#pragma unroll
                for (int j = 0; j < kPer; ++j)
                    if (j == at) key_[j] = 0;
                find();
            }
        }
        return taken_bits;
    }

    // The chosen experts, ascending, with their scores.
    __device__ void list_choices(std::uint32_t taken_bits) {
        int before = 0;
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            if (j * 32 >= rule_.experts) break;
            const bool chosen = (taken_bits >> j & 1u) != 0;
            const unsigned lanes = __ballot_sync(kAllLanes, chosen);
            const int place = before + __popc(lanes & ((1u << lane_id()) - 1));
            if (chosen) {
                memory_.expert[place] = j * 32 + lane_id();
                memory_.weight[place] = score_[j];
            }
            before += __popc(lanes);
        }
        __syncwarp();
    }

    const RouteCall& call_;
    const RouterRule& rule_;
    TokenMemory memory_;
    float score_[kPer];
    float choice_[kPer];
    std::uint32_t key_[kPer];
};

inline constexpr std::int64_t kFewChoices = 256;  // that one block places

// One block: the choices of all tokens, then the places of all pairs. memory: of its warps.
template <int kPer>
__device__ void route_and_place(const RouteCall& call, std::byte* memory) {
    __shared__ __align__(16) std::int32_t chosen[kFewChoices];
    constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();  // behind all experts
    const RouterRule& rule = call.rule;
    const TokenMemory mine(memory + warp_id() * TokenMemory::bytes(rule.experts), rule.experts);
    const auto choices = static_cast<std::int32_t>(call.logits.rows) * rule.top_k;
    if (threadIdx.x < 4 && choices + threadIdx.x < kFewChoices)
        chosen[choices + threadIdx.x] = kNone;
    for (std::int64_t t = warp_id(); t < call.logits.rows; t += blockDim.x / 32) {
        TokenRouter<kPer>(call, mine).run(t);
        for_lanes(rule.top_k, [&](int i) {
            chosen[t * rule.top_k + i] = mine.expert[i] < 0 ? kNone : mine.expert[i];
        });
    }
    __syncthreads();
    // Thread i has choice i and expert i: how many choices come before each?
    const std::int32_t last = max(choices, rule.experts + 1);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < last;
         i += static_cast<int>(blockDim.x)) {
        const std::int32_t own = i < choices ? chosen[i] : kNone;
        std::int32_t pair = 0, start = 0;
#pragma unroll 4
        for (std::int32_t j = 0; j < choices; j += 4) {
            const int4 four = *reinterpret_cast<const int4*>(chosen + j);
            const std::int32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                pair += others[k] < own || (others[k] == own && j + k < i) ? 1 : 0;
                start += others[k] < i ? 1 : 0;
            }
        }
        if (own != kNone) {
            call.plan.source_token[pair] = i / rule.top_k;
            call.plan.pair_of[i] = pair;
        }
        if (i <= rule.experts) call.plan.indptr[i] = start;
    }
}

// Calls use(std::integral_constant) with the number of experts that a lane has.
template <int kMost, typename Use>
void with_lane_experts(std::int32_t experts, const Use& use) {
    if (experts <= 64) return use(std::integral_constant<int, 2>());
    if (experts <= 256) return use(std::integral_constant<int, 8>());
    if (experts <= 512) return use(std::integral_constant<int, 16>());
    if constexpr (kMost > 512) use(std::integral_constant<int, 32>());
}

}  // namespace espalier::ops::cuda
