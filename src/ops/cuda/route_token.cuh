// SPDX-License-Identifier: Apache-2.0
// The router's choice for one token by one warp, with the CPU's bits: scores by the same text, sums
// and ties in the same order. A lane has neighbouring experts, all of it in registers: at one token
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
    float* choice;  // [experts]: corrected scores, where groups are not whole lanes
    float* group;   // [experts]: scores of groups, there
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

// kPer: experts of a lane at most.
template <int kPer>
class TokenRouter {
    static_assert(kPer <= 32);

  public:
    __device__ TokenRouter(const RouteCall& call, const TokenMemory& memory)
        : call_(call), rule_(call.rule), memory_(memory), per_((call.rule.experts + 31) / 32) {}

    // Finds the choices of token t; they are in the warp's memory too, -1 for those of a pad.
    // alone: there is no other token, and its pairs lie as its choices do.
    __device__ void run(std::int64_t t, bool alone) {
        // Another block may have written them while this kernel ran: not from the nearest cache.
        const float* logits = row_of(call_.logits, t);
        float bias[kPer] = {};
        each([&](int j, int e) {
            score_[j] = __ldcg(logits + e);
            if (call_.bias != nullptr) bias[j] = __ldg(call_.bias + e);
        });
        if (call_.row_of_token[t] < 0) return leave_out(t, alone);
        make_scores();
        bool nan = false;
        each([&](int j, int) {
            choice_[j] = call_.bias == nullptr ? score_[j] : score_[j] + bias[j];
            nan |= choice_[j] != choice_[j];
        });
        if (__any_sync(kAllLanes, nan)) return take_first(t, alone);
        make_keys();
        list_choices(take_largest(), alone);
        float sum = 0.0f;
        for (int i = 0; i < rule_.top_k && rule_.normalise; ++i) sum += memory_.weight[i];
        for_lanes(rule_.top_k, [&](int i) {
            const float score = memory_.weight[i];
            const float weight = rule_.normalise ? score / (sum + 1e-20f) : score;
            write(t, i, memory_.expert[i], weight * rule_.scaling, alone);
        });
    }

  private:
    // use(j, e) for every expert e of this lane.
    template <typename Use>
    __device__ void each(const Use& use) const {
#pragma unroll
        for (int j = 0; j < kPer; ++j)
            if (const int e = lane_id() * per_ + j; j < per_ && e < rule_.experts) use(j, e);
    }

    __device__ void write(std::int64_t t, int i, std::int32_t expert, float weight, bool alone) {
        const std::int64_t at = t * rule_.top_k + i;
        call_.plan.expert[at] = expert;
        call_.plan.weight[at] = weight;
        if (!alone) return;
        call_.plan.source_token[i] = 0;
        call_.plan.pair_of[i] = i;
    }

    // A pad.
    __device__ void leave_out(std::int64_t t, bool alone) {
        for_lanes(rule_.top_k, [&](int i) {
            memory_.expert[i] = -1;
            write(t, i, -1, 0.0f, false);
            call_.plan.pair_of[t * rule_.top_k + i] = -1;
        });
        if (alone) for_lanes(rule_.experts + 1, [&](int e) { call_.plan.indptr[e] = 0; });
    }
    // A token with a NaN.
    __device__ void take_first(std::int64_t t, bool alone) {
        for_lanes(rule_.top_k, [&](int i) {
            memory_.expert[i] = i;
            write(t, i, i, __int_as_float(0x7fc00000), alone);
        });
        if (alone)
            for_lanes(rule_.experts + 1,
                      [&](int e) { call_.plan.indptr[e] = min(e, rule_.top_k); });
    }

    // From logits in score_.
    __device__ void make_scores() {
        if (rule_.score == RouterScore::sigmoid)
            return each([&](int j, int) { score_[j] = portable_sigmoid(score_[j]); });
        float maximum = -std::numeric_limits<float>::infinity();
        each([&](int j, int) { maximum = score_[j] > maximum ? score_[j] : maximum; });
        maximum = unordered(__reduce_max_sync(kAllLanes, ordered(maximum)));
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
        for (int lane = 0; lane < 32; ++lane)
#pragma unroll
            for (int j = 0; j < kPer; ++j) {
                const float score = __shfl_sync(kAllLanes, score_[j], lane);
                if (j < per_ && lane * per_ + j < rule_.experts) sum += static_cast<double>(score);
            }
        return sum;
    }

    // Keys of the experts that may be chosen: all, or those in groups that are kept.
    __device__ void make_keys() {
        const int groups = rule_.group_score == GroupScore::none ? 1 : rule_.groups;
        if (groups == 1) return each([&](int j, int) { key_[j] = ordered(choice_[j]); });
        const int size = rule_.experts / groups, lanes = size / per_;
        if (size % per_ == 0 && (lanes & (lanes - 1)) == 0) return open_groups(groups, lanes);
        each([&](int j, int e) { memory_.choice[e] = choice_[j]; });
        __syncwarp();
        for_lanes(groups,
                  [&](int g) { memory_.group[g] = group_score(memory_.choice + g * size, size); });
        each([&](int j, int e) {
            int better = 0;
            for (int g = 0; g < groups; ++g)
                better += beats(memory_.group[g], g, memory_.group[e / size], e / size) ? 1 : 0;
            key_[j] = better < rule_.top_groups ? ordered(choice_[j]) : 0;
        });
    }

    // Groups that are whole lanes, a power of two of them.
    __device__ void open_groups(int groups, int lanes) {
        std::uint32_t first = 0, second = 0;
        each([&](int j, int) {
            key_[j] = ordered(choice_[j]);
            second = max(second, min(first, key_[j]));
            first = max(first, key_[j]);
        });
        for (int step = 1; step < lanes; step *= 2) {
            const std::uint32_t other = __shfl_xor_sync(kAllLanes, first, step);
            const std::uint32_t next = __shfl_xor_sync(kAllLanes, second, step);
            second = max(min(first, other), max(second, next));
            first = max(first, other);
        }
        const bool best_alone = rule_.group_score == GroupScore::maximum || second == 0;
        const float mine = best_alone ? unordered(first) : unordered(first) + unordered(second);
        int better = 0;
        for (int g = 0; g < groups; ++g) {
            const float other = __shfl_sync(kAllLanes, mine, g * lanes);
            better += beats(other, g, mine, lane_id() / lanes) ? 1 : 0;
        }
        if (better >= rule_.top_groups)
#pragma unroll
            for (std::uint32_t& key : key_) key = 0;
    }

    __device__ float group_score(const float* choice, int count) const {
        float first = choice[0];
        float second = -std::numeric_limits<float>::infinity();
        for (int i = 1; i < count; ++i) {
            second = fmaxf(second, fminf(first, choice[i]));
            first = fmaxf(first, choice[i]);
        }
        return rule_.group_score == GroupScore::maximum || count == 1 ? first : first + second;
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
            const unsigned holders = __ballot_sync(kAllLanes, best == largest);
            if (lane_id() == __ffs(static_cast<int>(holders)) - 1) {
                taken_bits |= 1u << at;
#pragma unroll
                for (int j = 0; j < kPer; ++j)
                    if (j == at) key_[j] = 0;
                find();
            }
        }
        return taken_bits;
    }

    // The chosen experts, ascending, with their scores; of a token alone, where pairs begin.
    __device__ void list_choices(std::uint32_t taken_bits, bool alone) {
        int before = 0;
#pragma unroll
        for (int j = 0; j < kPer; ++j) {
            if (j >= per_) break;
            const unsigned lanes = __ballot_sync(kAllLanes, (taken_bits >> j & 1u) != 0);
            before += __popc(lanes & ((1u << lane_id()) - 1));
        }
        each([&](int j, int e) {
            const int place = before + __popc(taken_bits & ((1u << j) - 1));
            if (alone) call_.plan.indptr[e] = place;
            if ((taken_bits >> j & 1u) == 0) return;
            memory_.expert[place] = e;
            memory_.weight[place] = score_[j];
        });
        if (alone && lane_id() == 0) call_.plan.indptr[rule_.experts] = rule_.top_k;
        __syncwarp();
    }

    const RouteCall& call_;
    const RouterRule& rule_;
    TokenMemory memory_;
    int per_;  // experts of a lane: the last lanes may have fewer
    float score_[kPer] = {};
    float choice_[kPer];
    std::uint32_t key_[kPer] = {};  // choice as an ordered integer; 0: not to be chosen (any more)
};

inline constexpr std::int64_t kFewChoices = 256;  // that one block places

// One block: the choices of all tokens, then the places of all pairs. memory: of its warps.
template <int kPer>
__device__ void route_and_place(const RouteCall& call, std::byte* memory) {
    __shared__ __align__(16) std::int32_t chosen[kFewChoices];
    constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();  // behind all experts
    const RouterRule& rule = call.rule;
    const TokenMemory mine(memory + warp_id() * TokenMemory::bytes(rule.experts), rule.experts);
    if (call.logits.rows == 1) {
        if (warp_id() == 0) TokenRouter<kPer>(call, mine).run(0, true);
        return;
    }
    const auto choices = static_cast<std::int32_t>(call.logits.rows) * rule.top_k;
    if (threadIdx.x < 4 && choices + threadIdx.x < kFewChoices)
        chosen[choices + threadIdx.x] = kNone;
    for (std::int64_t t = warp_id(); t < call.logits.rows; t += blockDim.x / 32) {
        TokenRouter<kPer>(call, mine).run(t, false);
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
