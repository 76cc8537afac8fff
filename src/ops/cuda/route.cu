// SPDX-License-Identifier: Apache-2.0
// The router's choice, a warp for a token, with the CPU's bits: scores by the same text, sums and
// ties in the same order. Then pairs find their places, expert by expert, tokens ascending. For few
// tokens one block does both; for many the places are a kernel of their own, with a block for each
// expert, and no order of blocks shows.
#include <algorithm>
#include <limits>

#include "base/portable_math.hpp"
#include "ops/cuda/block.cuh"
#include "ops/cuda/elements.cuh"
#include "ops/cuda/kernels.hpp"
#include "ops/cuda/launch.cuh"

namespace espalier::ops::cuda {
namespace {

constexpr int kMostWarps = 16;
constexpr int kPairThreads = 512;
constexpr std::int64_t kFewChoices = 256;        // that one block places
constexpr std::int64_t kWarpsBytes = 44 * 1024;  // of shared memory for the warps' tokens

// A warp's memory for one token.
struct TokenMemory {
    float* scores;       // [experts]
    float* choice;       // [experts]: corrected scores
    float* group;        // [experts]: scores of groups
    std::uint32_t* key;  // [experts]: choice as an ordered integer; 0: not to be chosen (any more)
    float* weight;       // [kMaxTopK]
    std::int32_t* expert;

    static constexpr std::int64_t bytes(std::int64_t experts) {
        return (4 * experts + 2 * kMaxTopK) * 4;
    }
    __device__ TokenMemory(std::byte* memory, std::int32_t experts) {
        scores = reinterpret_cast<float*>(memory);
        choice = scores + experts;
        group = choice + experts;
        key = reinterpret_cast<std::uint32_t*>(group + experts);
        weight = reinterpret_cast<float*>(key + experts);
        expert = reinterpret_cast<std::int32_t*>(weight + kMaxTopK);
    }
};

__device__ int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ int warp_id() { return static_cast<int>(threadIdx.x / 32); }

// The lanes share the indices below count; what they write is there for all of them afterwards.
template <typename Body>
__device__ void for_lanes(std::int32_t count, const Body& body) {
    for (int i = lane_id(); i < count; i += 32) body(i);
    __syncwarp();
}

// Whether candidate a comes before b.
__device__ bool beats(float a, int a_index, float b, int b_index) {
    return a > b || (a == b && a_index < b_index);
}

// Ascends with the value, which is no NaN; above 0. -0 is 0.
__device__ std::uint32_t ordered(float value) {
    const std::uint32_t bits = __float_as_uint(value + 0.0f);
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

// From logits in memory.choice.
__device__ void make_scores(const RouterRule& rule, TokenMemory& memory) {
    const float* logits = memory.choice;
    if (rule.score == RouterScore::sigmoid)
        return for_lanes(rule.experts,
                         [&](int e) { memory.scores[e] = portable_sigmoid(logits[e]); });
    float maximum = -std::numeric_limits<float>::infinity();
    for_lanes(rule.experts, [&](int e) { maximum = logits[e] > maximum ? logits[e] : maximum; });
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(kAllLanes, maximum, step);
        maximum = other > maximum ? other : maximum;
    }
    for_lanes(rule.experts, [&](int e) { memory.scores[e] = portable_exp(logits[e] - maximum); });
    double sum = 0.0;  // in double by ascending expert, as everywhere; every lane for itself
#pragma unroll 16
    for (int e = 0; e < rule.experts; ++e) sum += static_cast<double>(memory.scores[e]);
    __syncwarp();
    for_lanes(rule.experts, [&](int e) { memory.scores[e] /= static_cast<float>(sum); });
}

__device__ float group_score(const float* choice, int count, GroupScore rule) {
    float first = choice[0];
    float second = -std::numeric_limits<float>::infinity();
    for (int i = 1; i < count; ++i) {
        second = fmaxf(second, fminf(first, choice[i]));
        first = fmaxf(first, choice[i]);
    }
    return rule == GroupScore::maximum || count == 1 ? first : first + second;
}

// Keys of the experts that may be chosen: all, or those in groups that are kept.
__device__ void make_keys(const RouterRule& rule, TokenMemory& memory) {
    const int groups = rule.group_score == GroupScore::none ? 1 : rule.groups;
    const int size = rule.experts / groups;
    if (groups > 1)
        for_lanes(groups, [&](int g) {
            memory.group[g] = group_score(memory.choice + g * size, size, rule.group_score);
        });
    for_lanes(rule.experts, [&](int e) {
        int better = 0;
        for (int g = 0; g < groups && groups > 1; ++g)
            better += beats(memory.group[g], g, memory.group[e / size], e / size) ? 1 : 0;
        const bool open = groups == 1 || better < rule.top_groups;
        memory.key[e] = open ? ordered(memory.choice[e]) : 0;
    });
}

// Takes the largest top_k, ties to the lower index; the taken ones' choice becomes NaN.
__device__ void take_largest(const RouterRule& rule, TokenMemory& memory) {
    for (int taken = 0; taken < rule.top_k; ++taken) {
        std::uint32_t best = 0;
        unsigned mine = ~0u;
        for (int e = lane_id(); e < rule.experts; e += 32)
            if (memory.key[e] > best) {
                best = memory.key[e];
                mine = static_cast<unsigned>(e);
            }
        const std::uint32_t largest = __reduce_max_sync(kAllLanes, best);
        const unsigned winner = __reduce_min_sync(kAllLanes, best == largest ? mine : ~0u);
        if (mine == winner) {
            memory.key[winner] = 0;
            memory.choice[winner] = __int_as_float(0x7fc00000);
        }
    }
    __syncwarp();
}

// The chosen experts, ascending, with their weights.
__device__ void list_choices(const RouterRule& rule, TokenMemory& memory) {
    int before = 0;
    for (int first = 0; first < rule.experts; first += 32) {
        const int e = first + lane_id();
        const bool chosen = e < rule.experts && memory.choice[e] != memory.choice[e];
        const unsigned lanes = __ballot_sync(kAllLanes, chosen);
        const int place = before + __popc(lanes & ((1u << lane_id()) - 1));
        if (chosen) {
            memory.expert[place] = e;
            memory.weight[place] = memory.scores[e];
        }
        before += __popc(lanes);
    }
    __syncwarp();
    float sum = 0.0f;
    for (int i = 0; i < rule.top_k && rule.normalise; ++i) sum += memory.weight[i];
    __syncwarp();
    for_lanes(rule.top_k, [&](int i) {
        if (rule.normalise) memory.weight[i] /= sum + 1e-20f;
        memory.weight[i] *= rule.scaling;
    });
}

struct RouteCall {
    Matrix logits;
    const float* bias;
    RouterRule rule;
    const std::int32_t* row_of_token;
    ExpertPlan plan;
};

// A warp finds the choices of token t; they are in its memory too.
__device__ void route_token(const RouteCall& call, std::int64_t t, TokenMemory& memory) {
    const RouterRule& rule = call.rule;
    const float* logits = row_of(call.logits, t);
    const std::int32_t row = call.row_of_token[t];
    for_lanes(rule.experts, [&](int e) { memory.choice[e] = logits[e]; });
    if (row < 0) {
        for_lanes(rule.top_k, [&](int i) {
            memory.expert[i] = -1;
            memory.weight[i] = 0.0f;
            call.plan.pair_of[t * rule.top_k + i] = -1;
        });
    } else {
        make_scores(rule, memory);
        bool nan = false;
        for_lanes(rule.experts, [&](int e) {
            memory.choice[e] =
                call.bias == nullptr ? memory.scores[e] : memory.scores[e] + call.bias[e];
            nan |= memory.choice[e] != memory.choice[e];
        });
        if (__any_sync(kAllLanes, nan)) {
            for_lanes(rule.top_k, [&](int i) {
                memory.expert[i] = i;
                memory.weight[i] = __int_as_float(0x7fc00000);
            });
        } else {
            make_keys(rule, memory);
            take_largest(rule, memory);
            list_choices(rule, memory);
        }
    }
    for_lanes(rule.top_k, [&](int i) {
        call.plan.expert[t * rule.top_k + i] = memory.expert[i];
        call.plan.weight[t * rule.top_k + i] = memory.weight[i];
    });
}

__global__ void route_tokens(RouteCall call) {
    begin_kernel();
    extern __shared__ std::byte warps[];
    const auto experts = call.rule.experts;
    TokenMemory memory(warps + warp_id() * TokenMemory::bytes(experts), experts);
    const std::int64_t t = std::int64_t{blockIdx.x} * (blockDim.x / 32) + warp_id();
    if (t < call.logits.rows) route_token(call, t, memory);
}

// One block: all tokens, then the places of all their choices.
__global__ void __launch_bounds__(kMostWarps * 32) route_few(RouteCall call) {
    begin_kernel();
    extern __shared__ std::byte warps[];
    __shared__ __align__(16) std::int32_t chosen[kFewChoices];
    constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();  // behind all experts
    const RouterRule& rule = call.rule;
    TokenMemory memory(warps + warp_id() * TokenMemory::bytes(rule.experts), rule.experts);
    const auto choices = static_cast<std::int32_t>(call.logits.rows) * rule.top_k;
    if (threadIdx.x < 4 && choices + threadIdx.x < kFewChoices)
        chosen[choices + threadIdx.x] = kNone;
    for (std::int64_t t = warp_id(); t < call.logits.rows; t += blockDim.x / 32) {
        route_token(call, t, memory);
        for_lanes(rule.top_k, [&](int i) {
            chosen[t * rule.top_k + i] = memory.expert[i] < 0 ? kNone : memory.expert[i];
        });
    }
    __syncthreads();
    // Thread i has choice i and expert i: how many choices come before each?
    const std::int32_t last = max(choices, rule.experts + 1);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < last;
         i += static_cast<int>(blockDim.x)) {
        const std::int32_t mine = i < choices ? chosen[i] : kNone;
        std::int32_t pair = 0, start = 0;
#pragma unroll 4
        for (std::int32_t j = 0; j < choices; j += 4) {
            const int4 four = *reinterpret_cast<const int4*>(chosen + j);
            const std::int32_t others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                pair += others[k] < mine || (others[k] == mine && j + k < i) ? 1 : 0;
                start += others[k] < i ? 1 : 0;
            }
        }
        if (mine != kNone) {
            call.plan.source_token[pair] = i / rule.top_k;
            call.plan.pair_of[i] = pair;
        }
        if (i <= rule.experts) call.plan.indptr[i] = start;
    }
}

// A block for each expert, a warp for each part of the choices: it counts the expert's in front of
// its part, then places its own, and waits for the others once.
__global__ void place_pairs(std::int64_t choices, std::int32_t top_k, std::int32_t experts,
                            ExpertPlan plan) {
    begin_kernel();
    constexpr int kAtOnce = 8;  // loads of a lane that are on their way together
    __shared__ std::int32_t sums[kPairThreads / 32];
    __shared__ std::int32_t found[kPairThreads / 32];
    const auto expert = static_cast<std::int32_t>(blockIdx.x);
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::int64_t part = (choices + kPairThreads - 1) / kPairThreads * 32;
    const std::int64_t begin = warp * part, end = min(choices, begin + part);
    std::int32_t chosen[kAtOnce];
    const auto load = [&](std::int64_t first) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const std::int64_t at = first + i * 32 + lane;
            chosen[i] = at < end ? plan.expert[at] : -1;
        }
    };
    std::int32_t before = 0, own = 0;
    for (std::int64_t first = begin; first < end; first += kAtOnce * 32) {
        load(first);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            before += chosen[i] >= 0 && chosen[i] < expert ? 1 : 0;
            own += chosen[i] == expert ? 1 : 0;
        }
    }
    own = __reduce_add_sync(kAllLanes, own);
    if (lane == 0) found[warp] = own;
    std::int32_t next = block_sum<kPairThreads>(before, sums);
    __syncthreads();
    if (threadIdx.x == 0) plan.indptr[expert] = next;
    std::int32_t after = next;
    for (unsigned w = 0; w < kPairThreads / 32; ++w) {
        if (w < warp) next += found[w];
        after += found[w];
    }
    if (threadIdx.x == 0 && expert + 1 == experts) plan.indptr[experts] = after;
    for (std::int64_t first = begin; first < end; first += kAtOnce * 32) {
        load(first);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const unsigned lanes = __ballot_sync(kAllLanes, chosen[i] == expert);
            const std::int32_t pair = next + __popc(lanes & ((1u << lane) - 1));
            if (chosen[i] == expert) {
                const std::int64_t at = first + i * 32 + lane;
                plan.source_token[pair] = static_cast<std::int32_t>(at / top_k);
                plan.pair_of[at] = pair;
            }
            next += __popc(lanes);
        }
    }
}

}  // namespace

void route(Stream stream, const Matrix& logits, const float* bias, const RouterRule& rule,
           const std::int32_t* row_of, const ExpertPlan& plan) {
    const std::int64_t bytes = TokenMemory::bytes(rule.experts);
    static_assert(2 * TokenMemory::bytes(kMaxExperts) <= kWarpsBytes);
    const std::int64_t choices = logits.rows * rule.top_k;
    const RouteCall call{logits, bias, rule, row_of, plan};
    if (choices <= kFewChoices) {
        const std::int64_t warps = std::min<std::int64_t>(kMostWarps, kWarpsBytes / bytes);
        return launch("route", route_few, 1u, static_cast<int>(32 * warps),
                      SharedBytes{static_cast<std::size_t>(warps * bytes)}, stream, call);
    }
    const std::int64_t warps = std::min<std::int64_t>(4, kWarpsBytes / bytes);
    launch("route", route_tokens, static_cast<unsigned>((logits.rows + warps - 1) / warps),
           static_cast<int>(32 * warps), SharedBytes{static_cast<std::size_t>(warps * bytes)},
           stream, call);
    launch("the places of pairs", place_pairs, static_cast<unsigned>(rule.experts), kPairThreads,
           stream, choices, rule.top_k, rule.experts, plan);
}

}  // namespace espalier::ops::cuda
