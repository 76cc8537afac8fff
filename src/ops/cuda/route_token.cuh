// SPDX-License-Identifier: Apache-2.0
// The router's choice for one token by one warp, with the CPU's bits: scores by the same text, sums
// and ties in the same order; and the places of few tokens' pairs by one block. Loops are loops on
// purpose: in a step's graph a kernel's instructions are not in the nearest caches, and written out
// the choice of 256 experts had 60 KB of them (34 now, most of it for other rules).
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

// Memory for one token.
struct TokenMemory {
    float* score;   // [experts]: logits at first
    float* choice;  // [experts]: the bias; corrected scores, where groups are not whole lanes
    float* group;   // [experts]: scores of groups, there
    float* weight;  // [kMaxTopK]
    std::int32_t* expert;

    static constexpr std::int64_t bytes(std::int64_t experts) {
        return (3 * experts + 2 * kMaxTopK) * 4;
    }
    __device__ TokenMemory(std::byte* memory, std::int32_t experts) {
        score = reinterpret_cast<float*>(memory);
        choice = score + experts;
        group = choice + experts;
        weight = group + experts;
        expert = reinterpret_cast<std::int32_t*>(weight + kMaxTopK);
    }
};

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x / 32); }
__device__ inline int block_warps() { return static_cast<int>(blockDim.x / 32); }

// The lanes share the indices below count; what they write is there for all of them afterwards.
template <typename Body>
__device__ void for_lanes(std::int32_t count, const Body& body) {
#pragma unroll 1
    for (int i = lane_id(); i < count; i += 32) body(i);
    __syncwarp();
}

// True if candidate a comes before b.
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

// All warps of a block: logits and bias of tokens first … first + count - 1, at most as many as
// there are warps, to the tokens' memory; sigmoid scores instead of logits where those are asked
// for. Several warps share a token if there are enough.
__device__ inline void load_scores(const RouteCall& call, std::int64_t first, int count,
                                   std::byte* memory) {
    constexpr int kAtOnce = 4;
    const std::int32_t experts = call.rule.experts;
    const int team = block_warps() / count, index = warp_id() / team;
    if (index >= count) return;
    const TokenMemory token(memory + index * TokenMemory::bytes(experts), experts);
    const float* logits = row_of(call.logits, first + index);
    const int step = 32 * team, begin = warp_id() % team * 32 + lane_id();
#pragma unroll 1
    for (int base = begin; base < experts; base += kAtOnce * step) {
        float logit[kAtOnce] = {}, bias[kAtOnce] = {};
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int e = base + i * step; e < experts) {
                // Another block may have written them while this kernel ran: not from the nearest
                // cache.
                logit[i] = __ldcg(logits + e);
                if (call.bias != nullptr) bias[i] = __ldg(call.bias + e);
            }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int e = base + i * step; e < experts) {
                token.score[e] = logit[i];
                token.choice[e] = bias[i];
            }
    }
    if (call.rule.score != RouterScore::sigmoid) return;
#pragma unroll 1
    for (int e = begin; e < experts; e += step) token.score[e] = portable_sigmoid(token.score[e]);
}

// kPer: experts of a lane at most.
template <int kPer>
class TokenRouter {
    static_assert(kPer <= 32);

  public:
    __device__ TokenRouter(const RouteCall& call, const TokenMemory& memory)
        : call_(call), rule_(call.rule), memory_(memory), per_((call.rule.experts + 31) / 32) {}

    // Finds the experts of token t from the scores or logits in memory_, and leaves their ids in
    // memory_ too, -1 for those of a pad. alone: t is the only token of the call, so its pairs lie
    // in the order of its choices.
    __device__ void run(std::int64_t t, bool alone) {
        if (call_.row_of_token[t] < 0) return leave_out(t, alone);
        if (rule_.score == RouterScore::softmax) make_softmax();
        bool nan = false;
        each([&](int j, int e) {
            choice_[j] = memory_.score[e] + memory_.choice[e];
            nan |= choice_[j] != choice_[j];
        });
        if (__any_sync(kAllLanes, nan)) return take_first(t, alone);
        make_keys();
        list_choices(take_largest(), alone);
        float sum = 0.0f;
        if (rule_.normalise)
#pragma unroll 1
            for (int i = 0; i < rule_.top_k; ++i) sum += memory_.weight[i];
        for_lanes(rule_.top_k, [&](int i) {
            const float score = memory_.weight[i];
            const float weight = rule_.normalise ? score / (sum + 1e-20f) : score;
            write(t, i, memory_.expert[i], weight * rule_.scaling, alone);
        });
    }

  private:
    // use(j, e) for every expert e of this lane: neighbours.
    template <typename Use>
    __device__ void each(const Use& use) const {
#pragma unroll
        for (int j = 0; j < kPer; ++j)
            if (const int e = lane_id() * per_ + j; j < per_ && e < rule_.experts) use(j, e);
    }
    // The loop of each(), not unrolled: for values in memory, not in registers.
    template <typename Use>
    __device__ void each_in_turn(const Use& use) const {
        const int begin = lane_id() * per_, end = min(begin + per_, rule_.experts);
#pragma unroll 1
        for (int e = begin; e < end; ++e) use(e);
    }

    __device__ void write(std::int64_t t, int i, std::int32_t expert, float weight, bool alone) {
        const std::int64_t at = t * rule_.top_k + i;
        call_.plan.expert[at] = expert;
        call_.plan.weight[at] = weight;
        if (!alone) return;
        call_.plan.source_token[i] = 0;
        call_.plan.pair_of[i] = i;
    }

    // Routes a pad: no experts.
    __device__ void leave_out(std::int64_t t, bool alone) {
        for_lanes(rule_.top_k, [&](int i) {
            memory_.expert[i] = -1;
            write(t, i, -1, 0.0f, false);
            call_.plan.pair_of[t * rule_.top_k + i] = -1;
        });
        if (alone) for_lanes(rule_.experts + 1, [&](int e) { call_.plan.indptr[e] = 0; });
    }
    // Routes a token with a NaN: the first experts, with weights of NaN.
    __device__ void take_first(std::int64_t t, bool alone) {
        for_lanes(rule_.top_k, [&](int i) {
            memory_.expert[i] = i;
            write(t, i, i, __int_as_float(0x7fc00000), alone);
        });
        if (alone)
            for_lanes(rule_.experts + 1,
                      [&](int e) { call_.plan.indptr[e] = min(e, rule_.top_k); });
    }

    // Replaces the logits in memory by their softmax.
    __device__ void make_softmax() {
        float maximum = -std::numeric_limits<float>::infinity();
        each_in_turn(
            [&](int e) { maximum = memory_.score[e] > maximum ? memory_.score[e] : maximum; });
        maximum = unordered(__reduce_max_sync(kAllLanes, ordered(maximum)));
        // The sum is taken in double, by ascending expert as everywhere. Numbers of 24 bits between
        // 2⁻²⁰ and 1, of which there are up to 2¹⁰, have sums of 53 bits at most: they are exact in
        // any order.
        static_assert(kMaxExperts <= 1024);
        bool exact = true;
        double sum = 0.0;
        each_in_turn([&](int e) {
            const float score = portable_exp(memory_.score[e] - maximum);
            exact &= score == 0.0f || (score >= 0x1p-20f && score <= 1.0f);
            sum += static_cast<double>(score);
            memory_.score[e] = score;
        });
        if (__all_sync(kAllLanes, exact)) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
        } else {
            __syncwarp();
            sum = 0.0;
#pragma unroll 1
            for (int e = 0; e < rule_.experts; ++e) sum += static_cast<double>(memory_.score[e]);
            __syncwarp();
        }
        const auto divisor = static_cast<float>(sum);
        each_in_turn([&](int e) { memory_.score[e] /= divisor; });
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
#pragma unroll 1
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
#pragma unroll 1
        for (int step = 1; step < lanes; step *= 2) {
            const std::uint32_t other = __shfl_xor_sync(kAllLanes, first, step);
            const std::uint32_t next = __shfl_xor_sync(kAllLanes, second, step);
            second = max(min(first, other), max(second, next));
            first = max(first, other);
        }
        const bool best_alone = rule_.group_score == GroupScore::maximum || second == 0;
        const float mine = best_alone ? unordered(first) : unordered(first) + unordered(second);
        int better = 0;
#pragma unroll 1
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
#pragma unroll 1
        for (int i = 1; i < count; ++i) {
            second = fmaxf(second, fminf(first, choice[i]));
            first = fmaxf(first, choice[i]);
        }
        return rule_.group_score == GroupScore::maximum || count == 1 ? first : first + second;
    }

    // The largest top_k, ties to the lower index. Returns this lane's as bits.
    __device__ std::uint32_t take_largest() {
        std::uint32_t taken_bits = 0;
#pragma unroll 1
        for (int taken = 0; taken < rule_.top_k; ++taken) {
            std::uint32_t best = 0;
            int at = 0;
#pragma unroll
            for (int j = 0; j < kPer; ++j)
                if (key_[j] > best) {
                    best = key_[j];
                    at = j;
                }
            const std::uint32_t largest = __reduce_max_sync(kAllLanes, best);
            const unsigned holders = __ballot_sync(kAllLanes, best == largest);
            if (lane_id() != __ffs(static_cast<int>(holders)) - 1) continue;
            taken_bits |= 1u << at;
#pragma unroll
            for (int j = 0; j < kPer; ++j)
                if (j == at) key_[j] = 0;
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
            memory_.weight[place] = memory_.score[e];
        });
        if (alone && lane_id() == 0) call_.plan.indptr[rule_.experts] = rule_.top_k;
        __syncwarp();
    }

    const RouteCall& call_;
    const RouterRule& rule_;
    TokenMemory memory_;
    int per_;  // experts of a lane: the last lanes may have fewer
    float choice_[kPer];
    std::uint32_t key_[kPer] = {};  // choice as an ordered integer; 0: not to be chosen (any more)
};

inline constexpr std::int64_t kFewChoices = 256;  // that one block places

// Shared memory of the next two functions in a block of `threads` threads, at least one a choice.
constexpr std::int64_t routing_bytes(std::int64_t experts, std::int64_t threads) {
    return threads / 32 * TokenMemory::bytes(experts);
}

// One block: the choices of tokens first … last - 1.
template <int kPer>
__device__ void route_tokens(const RouteCall& call, std::int64_t first, std::int64_t last,
                             std::byte* memory) {
    const std::int32_t experts = call.rule.experts;
    const TokenMemory mine(memory + warp_id() * TokenMemory::bytes(experts), experts);
#pragma unroll 1
    for (std::int64_t t = first; t < last; t += block_warps()) {
        const auto count = static_cast<int>(min(std::int64_t{block_warps()}, last - t));
        load_scores(call, t, count, memory);
        __syncthreads();
        if (warp_id() < count)
            TokenRouter<kPer>(call, mine).run(t + warp_id(), call.logits.rows == 1);
        __syncthreads();
    }
}

// One block: the places of all pairs, few enough; what is chosen is in the plan. A token has an
// expert once, so a bit for each token says where an expert's pairs go, tokens ascending.
__device__ inline void place_choices(const RouteCall& call, std::byte* memory) {
    __shared__ std::int32_t by_warp[32];
    const RouterRule& rule = call.rule;
    const auto threads = static_cast<std::int32_t>(blockDim.x);
    const auto thread = static_cast<std::int32_t>(threadIdx.x);
    const auto tokens = static_cast<std::int32_t>(call.logits.rows);
    const std::int32_t words = (tokens + 31) / 32, choices = tokens * rule.top_k;
    auto* starts = reinterpret_cast<std::int32_t*>(memory);               // [experts]
    auto* has = reinterpret_cast<std::uint32_t*>(starts + rule.experts);  // [experts, words]
#pragma unroll 1
    for (std::int32_t i = thread; i < rule.experts * words; i += threads) has[i] = 0;
    __syncthreads();
    const std::int32_t own =
        thread < choices ? __ldcg(call.plan.expert + thread) : std::int32_t{-1};
    const std::int32_t token = thread / rule.top_k;
    if (own >= 0) atomicOr(has + own * words + token / 32, 1u << token % 32);
    __syncthreads();
    // A thread has neighbouring experts.
    const std::int32_t per = (rule.experts + threads - 1) / threads;
    const std::int32_t begin = min(thread * per, rule.experts);
    const std::int32_t end = min(begin + per, rule.experts);
    std::int32_t sum = 0;
#pragma unroll 1
    for (std::int32_t i = begin * words; i < end * words; ++i) sum += __popc(has[i]);
    std::int32_t through = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const std::int32_t other = __shfl_up_sync(kAllLanes, through, step);
        if (lane_id() >= step) through += other;
    }
    if (lane_id() == 31) by_warp[warp_id()] = through;
    __syncthreads();
    std::int32_t start = through - sum;
#pragma unroll 1
    for (int warp = 0; warp < warp_id(); ++warp) start += by_warp[warp];
    if (thread == threads - 1) call.plan.indptr[rule.experts] = start + sum;
#pragma unroll 1
    for (std::int32_t e = begin; e < end; ++e) {
        starts[e] = call.plan.indptr[e] = start;
        for (std::int32_t i = 0; i < words; ++i) start += __popc(has[e * words + i]);
    }
    __syncthreads();
    if (own < 0) return;
    std::int32_t pair = starts[own];
    for (std::int32_t i = 0; i < token / 32; ++i) pair += __popc(has[own * words + i]);
    pair += __popc(has[own * words + token / 32] & ((1u << token % 32) - 1));
    call.plan.source_token[pair] = token;
    call.plan.pair_of[thread] = pair;
}

// One block: the choices of all tokens, then the places of all pairs.
template <int kPer>
__device__ void route_and_place(const RouteCall& call, std::byte* memory) {
    route_tokens<kPer>(call, 0, call.logits.rows, memory);
    if (call.logits.rows > 1) place_choices(call, memory);
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
